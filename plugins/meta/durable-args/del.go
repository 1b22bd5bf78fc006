package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/replay"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

// del makes sure that every plugin of the chain gets what it got on ADD. libcni
// calls a chain in reverse: the last stanza runs before it, the first after it,
// and a wrapped one in its place.
func (p plugin) del(args *skel.CmdArgs) error {
	s, err := p.begin(args)
	if err != nil {
		return err
	}
	store, f, err := lock(s, args)
	if err != nil {
		return err
	}
	if f != nil {
		defer store.Close()
		defer f.Close()
		if rec := f.Record(); len(rec.Damaged) > 0 {
			p.say("%s: lines %v are damaged and passed over", f.Path(), rec.Damaged)
		}
		if f.Record().Corrupt() {
			p.setAside(f)
			f = nil
		}
	}
	if s.Layout() == stanza.Wrapped {
		return p.delWrapped(s, store, f, args)
	}
	if f == nil {
		return nil
	}
	delivery, err := p.delivery(s, args)
	if err != nil {
		return err
	}
	replayer := p.replayer(s, store)
	if s.Layout() == stanza.Last {
		err = replayer.BeforePass(context.Background(), f, delivery)
	} else {
		err = replayer.AfterPass(context.Background(), f, delivery)
	}
	if err != nil {
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	}
	return nil
}

// delWrapped runs the chain with what the journal holds or, for pods older than
// the installation, with what the runtime gave.
func (p plugin) delWrapped(s *stanza.Stanza, store *journal.Store, f *journal.File, args *skel.CmdArgs) error {
	call, err := call(s, args)
	if err != nil {
		return err
	}
	if f != nil && f.Record().Newest() != nil {
		return chainError(p.replayer(s, store).InsteadOfPass(context.Background(), f, call))
	}
	n, err := s.Nested()
	if err != nil {
		return err
	}
	for _, plugin := range slices.Backward(n.Protected) {
		if err := p.runner().Del(context.Background(), plugin, call); err != nil {
			return chainError(err)
		}
	}
	if f != nil {
		p.replayer(s, store).Remove(f)
	}
	return nil
}

// lock opens the attachment's file, nil if nothing is journaled for it. Its
// errors are *types.Error: a store that cannot be read may owe something.
func lock(s *stanza.Stanza, args *skel.CmdArgs) (*journal.Store, *journal.File, error) {
	store, err := journal.Open(s.DataDir)
	if err == nil {
		var f *journal.File
		if f, err = store.Lock(key(s, args)); err == nil {
			return store, f, nil
		}
		store.Close()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, journal.ErrInvalidKey):
		return nil, nil, nil // ADD cannot have journaled anything there
	case errors.Is(err, journal.ErrLocked):
		return nil, nil, types.NewError(types.ErrTryAgainLater, replay.Words(err.Error()), "")
	default:
		return nil, nil, types.NewError(types.ErrIOFailure,
			replay.Words(fmt.Sprintf("cannot read the journal in dataDir %s, so nobody knows what it owes: %v", s.DataDir, err)), journal.Remedy(err))
	}
}

// delivery is what the runtime gives on this DEL. The conflist is not needed:
// without it, everything counts as not delivered.
func (p plugin) delivery(s *stanza.Stanza, args *skel.CmdArgs) (replay.Delivery, error) {
	call, err := call(s, args)
	if err != nil {
		return replay.Delivery{}, err
	}
	n, err := s.Network()
	if err != nil {
		p.say("today's chain cannot be told, so every plugin counts as not called: %v", err)
		return replay.Delivery{Call: call}, nil
	}
	return replay.Delivery{Call: call, Plugins: n.Plugins, Extended: n.Extended}, nil
}

func (p plugin) setAside(f *journal.File) {
	aside, err := f.SetAside()
	if err != nil {
		p.say("no entry in %s can be read, and it cannot be moved away: %v", f.Path(), err)
		return
	}
	p.say("no entry in %s can be read; DEL goes on without it, and it is kept as %s", f.Path(), aside)
}
