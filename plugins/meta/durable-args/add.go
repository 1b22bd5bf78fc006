package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

// add journals what the runtime gave, before any other plugin has run; in the
// last position, what the chain has made of it.
func (p plugin) add(args *skel.CmdArgs) error {
	s, err := p.begin(args)
	if err != nil {
		return err
	}
	if s.Layout() == stanza.Last {
		return p.addLast(s, args)
	}
	if err := key(s, args).Validate(); err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, err.Error(), "")
	}
	n, err := s.Network()
	if err != nil {
		return err
	}
	if err := n.Covered(); err != nil {
		return err
	}
	entry, err := entry(s, n, args)
	if err != nil {
		return err
	}
	if err := appendAdd(s, args, entry, "nothing has been set up"); err != nil {
		return err
	}
	if s.Layout() == stanza.Wrapped {
		return p.addWrapped(s, n.Protected, args)
	}
	return p.passOn(s)
}

// addLast journals the result.
func (p plugin) addLast(s *stanza.Stanza, args *skel.CmdArgs) error {
	if s.PrevResult != nil {
		if err := appendResult(s, args, s.PrevResult); err != nil {
			return err
		}
	}
	return p.passOn(s)
}

// appendResult makes the result of an attachment durable. It fails if nothing
// is journaled for it: a result alone would be worth nothing. Its errors are
// *types.Error.
func appendResult(s *stanza.Stanza, args *skel.CmdArgs, result []byte) error {
	store, f, err := lock(s, args)
	if err != nil {
		return err
	}
	if f == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("the arguments of %s are not journaled, so its result cannot be", key(s, args)),
			"a DEL came before ADD was done, or the conflist lacks a durable-args stanza without a position, and with the same dataDir, before the others")
	}
	defer store.Close()
	defer f.Close()
	return storeError(s, f.Append(journal.Result(result)), "the attachment is not protected")
}

// addWrapped runs the chain, journals its result and prints what the last
// plugin printed.
func (p plugin) addWrapped(s *stanza.Stanza, plugins []chain.Plugin, args *skel.CmdArgs) error {
	call, err := call(s, args)
	if err != nil {
		return err
	}
	result, printed, err := p.runner().Add(context.Background(), plugins, call)
	if err != nil {
		return chainError(err)
	}
	if err := appendResult(s, args, result); err != nil {
		return err
	}
	return p.print(printed)
}

// chainError is an error of the chain as the runtime should see it: a plugin's
// own is left untouched.
func chainError(err error) error {
	if errors.Is(err, chain.ErrMissing) {
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "install it, or take it out of the conflist")
	}
	return err
}

// entry is what the journal has to hold for args. Its errors are *types.Error.
func entry(s *stanza.Stanza, n *stanza.Network, args *skel.CmdArgs) (journal.Add, error) {
	// What no DEL could read must not be owed one.
	if _, err := call(s, args); err != nil {
		return journal.Add{}, err
	}
	// skel checks this too, but only after we are done.
	if args.NetnsOverride == "" && netnsid.Own(args.Netns) {
		return journal.Add{}, types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the plugin's own network namespace; give the container's", args.Netns)
	}
	netns, err := netnsid.Of(args.Netns)
	if err != nil {
		return journal.Add{}, types.NewError(types.ErrInvalidNetNS, err.Error(), "CNI_NETNS must name the container's network namespace")
	}
	return journal.Add{
		Layout:        s.Layout(),
		Args:          []byte(args.Args),
		RuntimeConfig: s.RuntimeConfig,
		CNIVersion:    s.CNIVersion,
		Path:          args.Path,
		NetNS:         journal.NetNS(netns),
		Conflist:      n.Conflist,
		Chain:         chain.Configs(n.Protected),
	}, nil
}

// appendAdd makes entry durable. Its errors are *types.Error, and say what
// follows from them.
func appendAdd(s *stanza.Stanza, args *skel.CmdArgs, entry journal.Add, so string) error {
	store, err := journal.Create(s.DataDir)
	if err == nil {
		defer store.Close()
		err = store.Append(key(s, args), entry)
	}
	return storeError(s, err, so)
}

// storeError is an error of the store on the way to the runtime.
func storeError(s *stanza.Stanza, err error, so string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, journal.ErrLocked):
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	default:
		return types.NewError(types.ErrIOFailure, fmt.Sprintf("cannot journal in dataDir %s, so %s: %v", s.DataDir, so, err), journal.Remedy(err))
	}
}

// passOn prints the result of whatever stands before us, byte for byte.
func (p plugin) passOn(s *stanza.Stanza) error {
	if s.PrevResult != nil {
		return p.print(s.PrevResult)
	}
	empty, err := json.Marshal(map[string]string{"cniVersion": s.CNIVersion})
	if err != nil {
		return err
	}
	return p.print(empty)
}

func (p plugin) print(result []byte) error {
	if _, err := p.stdout.Write(result); err != nil {
		return types.NewError(types.ErrIOFailure, fmt.Sprintf("printing the result: %v", err), "")
	}
	return nil
}
