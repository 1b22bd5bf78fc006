package main

import (
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/replay"
)

// check writes again what the journal should hold of the attachment, since
// CHECK carries all that ADD had. It never fails on account of the journal:
// CRI-O calls it after every ADD and at start-up, also for pods older than the
// installation, and undoes the pod on an error.
func (p plugin) check(args *skel.CmdArgs) error {
	s, err := parseStanza(args.StdinData)
	if err != nil {
		return err
	}
	if err := p.adopt(s, args); err != nil {
		p.say("CHECK cannot adopt the attachment: %v", err)
	}
	return nil
}

func (p plugin) adopt(s *stanza, args *skel.CmdArgs) error {
	known, damaged, err := s.journaled(args)
	if err != nil {
		return err
	}
	if known != nil {
		same := replay.SameArgs(string(known.Args), args.Args)
		if !same {
			p.say("CNI_ARGS of CHECK differ from those of ADD, which stand")
		}
		if same || !damaged {
			return nil
		}
		// The damaged entry may have been the newer one.
	}
	entry, err := s.entry(args, false)
	if err != nil {
		return err
	}
	return s.append(args, entry)
}

// journaled returns the newest ADD in the journal, nil if there is none, and
// whether lines of the file are damaged.
func (s *stanza) journaled(args *skel.CmdArgs) (*journal.Add, bool, error) {
	f, err := s.lock(args)
	if err != nil || f == nil {
		return nil, false, err
	}
	defer f.Close()
	return f.Record().Newest(), len(f.Record().Damaged) > 0, nil
}
