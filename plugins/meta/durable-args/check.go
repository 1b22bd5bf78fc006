package main

import (
	"context"
	"encoding/json"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/replay"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

// check writes again what the journal should hold of the attachment, since
// CHECK carries all that ADD had, and the result. It never fails on account of
// the journal: CRI-O calls it after every ADD and at start-up, also for pods
// older than the installation, and undoes the pod on an error.
func (p plugin) check(args *skel.CmdArgs) error {
	s, err := p.begin(args)
	if err != nil {
		return err
	}
	known, err := p.adopt(s, args)
	if err != nil {
		p.say("CHECK cannot adopt the attachment: %v", err)
	}
	if s.Layout() == stanza.Wrapped {
		return p.checkWrapped(s, known, args)
	}
	return nil
}

// checkWrapped runs the chain's CHECK with what the journal holds or, if it
// holds nothing, with what the runtime gave.
func (p plugin) checkWrapped(s *stanza.Stanza, known *journal.Add, args *skel.CmdArgs) error {
	call, err := call(s, args)
	if err != nil {
		return err
	}
	n, err := s.Nested()
	if err != nil {
		return err
	}
	plugins := n.Protected
	if known != nil {
		prevResult := call.PrevResult
		if plugins, call, err = replay.Journaled(key(s, args), *known, args.Path); err != nil {
			return err
		}
		call.NetNS = args.Netns
		if call.PrevResult == nil {
			call.PrevResult = prevResult
		}
	}
	return chainError(p.runner().Check(context.Background(), plugins, call))
}

// adopt returns what the journal holds of the newest ADD once what was missing
// or damaged has been written again, nil if it holds nothing.
func (p plugin) adopt(s *stanza.Stanza, args *skel.CmdArgs) (*journal.Add, error) {
	known, damaged, err := journaled(s, args)
	if err != nil {
		return nil, err
	}
	if s.Layout() != stanza.Last {
		differs := known != nil && !replay.SameArgs(string(known.Args), args.Args)
		if differs {
			p.say("CNI_ARGS of CHECK differ from those of ADD, which stand")
		}
		// If lines are damaged, the newest ADD may be among them.
		if known == nil || differs && damaged {
			n, err := s.Network()
			if err != nil {
				return known, err
			}
			entry, err := entry(s, n, args)
			if err != nil {
				return known, err
			}
			if err := appendAdd(s, args, entry, "a DEL has only what the runtime gives"); err != nil {
				return known, err
			}
			known = &entry
		}
	}
	if s.Layout() != stanza.First && known != nil && known.Result == nil && substantial(s.PrevResult) {
		if err := appendResult(s, args, s.PrevResult); err != nil {
			return known, err
		}
		known.Result = s.PrevResult
	}
	return known, nil
}

// substantial reports whether a result says anything. libcni sends an empty one
// when its cache holds "{}" or "null".
func substantial(result json.RawMessage) bool {
	var r struct {
		Interfaces []json.RawMessage `json:"interfaces"`
		IPs        []json.RawMessage `json:"ips"`
	}
	return json.Unmarshal(result, &r) == nil && len(r.Interfaces)+len(r.IPs) > 0
}

// journaled returns the newest ADD in the journal, nil if there is none, and
// whether lines of the file are damaged.
func journaled(s *stanza.Stanza, args *skel.CmdArgs) (*journal.Add, bool, error) {
	store, f, err := lock(s, args)
	if err != nil || f == nil {
		return nil, false, err
	}
	defer store.Close()
	defer f.Close()
	return f.Record().Newest(), len(f.Record().Damaged) > 0, nil
}
