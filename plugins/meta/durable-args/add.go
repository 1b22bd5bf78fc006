package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
)

// add journals what the runtime gave, before any other plugin has run.
func (p plugin) add(args *skel.CmdArgs) error {
	s, err := parseStanza(args.StdinData)
	if err != nil {
		return err
	}
	if err := s.key(args).Validate(); err != nil {
		return types.NewError(types.ErrInvalidEnvironmentVariables, err.Error(), "")
	}
	entry, err := s.entry(args, true)
	if err != nil {
		return err
	}
	if err := s.append(args, entry); err != nil {
		return err
	}
	return p.passOn(s)
}

// entry is what the journal has to hold for args. Its errors are *types.Error.
// With strict, everything must be as it should.
func (s *stanza) entry(args *skel.CmdArgs, strict bool) (journal.Add, error) {
	list, plugins, err := s.conflist()
	if err != nil {
		return journal.Add{}, err
	}
	if strict {
		if err := s.covers(plugins); err != nil {
			return journal.Add{}, err
		}
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
		Layout:        "first",
		Args:          []byte(args.Args),
		RuntimeConfig: s.RuntimeConfig,
		CNIVersion:    s.CNIVersion,
		Path:          args.Path,
		NetNS:         journal.NetNS(netns),
		Conflist:      list.Bytes,
		Chain:         configs(plugins),
	}, nil
}

// append makes entry durable. Its errors are *types.Error.
func (s *stanza) append(args *skel.CmdArgs, entry journal.Entry) error {
	store, err := journal.Create(s.DataDir)
	if err == nil {
		defer store.Close()
		err = store.Append(s.key(args), entry)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, journal.ErrLocked):
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	default:
		return types.NewError(types.ErrIOFailure,
			fmt.Sprintf("cannot journal in dataDir %s, so nothing has been set up: %v", s.DataDir, err), remedy(err))
	}
}

// remedy says what an operator can do about an error of the store.
func remedy(err error) string {
	switch {
	case errors.Is(err, journal.ErrUntrusted):
		return "" // says so itself
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "free space or inodes on that file system, or choose another dataDir"
	case errors.Is(err, unix.EROFS):
		return "mount that file system writable again, or choose another dataDir"
	case errors.Is(err, fs.ErrPermission):
		return "let root write there, or choose another dataDir"
	case errors.Is(err, unix.ENOTDIR):
		return "choose a dataDir whose parents are directories"
	default:
		return "look at that file system and at the kernel's log, or choose another dataDir"
	}
}

// passOn prints the result of whatever stands before us, byte for byte.
func (p plugin) passOn(s *stanza) error {
	result := []byte(s.PrevResult)
	if result == nil {
		var err error
		if result, err = json.Marshal(map[string]string{"cniVersion": s.CNIVersion}); err != nil {
			return err
		}
	}
	if _, err := p.stdout.Write(result); err != nil {
		return types.NewError(types.ErrIOFailure, fmt.Sprintf("printing the result: %v", err), "")
	}
	return nil
}
