package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/replay"
)

// del replays what the runtime's DEL, which has passed down the chain by now,
// did not deliver.
func (p plugin) del(args *skel.CmdArgs) error {
	s, err := parseStanza(args.StdinData)
	if err != nil {
		return err
	}
	f, err := s.lock(args)
	if err != nil || f == nil {
		return err
	}
	defer f.Close()
	if rec := f.Record(); len(rec.Damaged) > 0 {
		p.say("%s: lines %v are damaged and passed over", f.Path(), rec.Damaged)
	}
	if f.Record().Corrupt() {
		p.setAside(f)
		return nil
	}
	delivery, err := p.delivery(s, args)
	if err != nil {
		return err
	}
	replayer := replay.Replayer{Runner: chain.Runner{Stderr: p.stderr}, Attempts: *s.ReplayAttempts, Stderr: p.stderr}
	if err := replayer.AfterPass(context.Background(), f, delivery); err != nil {
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	}
	return nil
}

// lock opens the attachment's file, nil if nothing is journaled for it. Its
// errors are *types.Error: a store that cannot be read may owe something.
func (s *stanza) lock(args *skel.CmdArgs) (*journal.File, error) {
	store, err := journal.Open(s.DataDir)
	var f *journal.File
	if err == nil {
		defer store.Close()
		f, err = store.Lock(s.key(args))
	}
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, journal.ErrInvalidKey):
		return nil, nil
	case errors.Is(err, journal.ErrLocked):
		return nil, types.NewError(types.ErrTryAgainLater, replay.Words(err.Error()), "")
	default:
		return nil, types.NewError(types.ErrIOFailure,
			replay.Words(fmt.Sprintf("cannot read the journal in dataDir %s, so nobody knows what this DEL owes: %v", s.DataDir, err)), remedy(err))
	}
}

// delivery is what the runtime gives on this DEL. The conflist is not needed:
// without it, everything counts as not delivered.
func (p plugin) delivery(s *stanza, args *skel.CmdArgs) (replay.Delivery, error) {
	call, err := s.call(args)
	if err != nil {
		return replay.Delivery{}, err
	}
	_, plugins, err := s.conflist()
	if err != nil {
		p.say("replaying every plugin, since today's chain cannot be told: %v", err)
	}
	return replay.Delivery{Call: call, Plugins: plugins}, nil
}

func (p plugin) setAside(f *journal.File) {
	aside, err := f.SetAside()
	if err != nil {
		p.say("no entry in %s can be read, and it cannot be moved away: %v", f.Path(), err)
		return
	}
	p.say("no entry in %s can be read; DEL goes on without it, and it is kept as %s", f.Path(), aside)
}
