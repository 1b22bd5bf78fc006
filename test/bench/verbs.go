package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"time"
)

// contestant is a program that runs beside others, in turn, on the same
// attachments.
type contestant struct {
	name string
	// before and after are not measured; either may be nil.
	before func(id string) error
	after  func(id string) error
	// add and del are; either may be nil.
	add func(id string) call
	del func(id string) call
}

// series by the name of the contestant.
type results struct{ add, del map[string]series }

// contest runs ADD and DEL of all contestants, in another order in every round.
func contest(r rig, contestants []contestant, rounds int) (results, error) {
	res := results{make(map[string]series), make(map[string]series)}
	const warmup = 2
	for round := -warmup; round < rounds; round++ {
		id := id(round + warmup)
		for _, c := range contestants {
			if c.before != nil {
				if err := c.before(id); err != nil {
					return res, fmt.Errorf("%s: %w", c.name, err)
				}
			}
		}
		for _, phase := range []struct {
			of   func(contestant) func(string) call
			into map[string]series
		}{
			{func(c contestant) func(string) call { return c.add }, res.add},
			{func(c contestant) func(string) call { return c.del }, res.del},
		} {
			if err := r.flushDisk(); err != nil {
				return res, err
			}
			runtime.GC() // now, rather than beside a call
			for _, i := range rand.Perm(len(contestants)) {
				c := contestants[i]
				make := phase.of(c)
				if make == nil {
					continue
				}
				sample, _, err := make(id).run()
				if err != nil {
					return res, fmt.Errorf("%s: %w", c.name, err)
				}
				if round >= 0 {
					phase.into[c.name] = append(phase.into[c.name], sample)
				}
			}
		}
		for _, c := range contestants {
			if c.after != nil {
				if err := c.after(id); err != nil {
					return res, fmt.Errorf("%s: %w", c.name, err)
				}
			}
		}
	}
	return res, nil
}

// The names of the contestants, in the order of the tables.
const (
	nothing   = "nothing: a Go program"
	floor     = "floor: write, fdatasync, fsync of the directory"
	tuning    = "tuning, nothing to do"
	portmap   = "portmap, nothing to do"
	hostLocal = "host-local"
	first     = "durable-args, first"
	known     = "durable-args, first, ADD again"
	last      = "durable-args, last"
	wrapped   = "durable-args, wrapped around tuning"
)

var contestantNames = []string{nothing, floor, tuning, portmap, hostLocal, first, known, last, wrapped}

// contestants of single verbs.
func (r rig) contestants() []contestant {
	prev := object{"prevResult": result}
	ipam := object{"ipam": object{"type": "host-local", "dataDir": r.path("host-local", ""),
		"ranges": []any{[]any{object{"subnet": "10.244.0.0/16"}}}}}
	ours := func(verb, name string, more object) func(string) call {
		return func(id string) call { return r.ours(verb, name, id, more) }
	}
	reference := func(verb, plugin string, conf object) func(string) call {
		return func(id string) call { return r.reference(verb, plugin, id, conf) }
	}
	once := func(f func(string) call) func(string) error {
		return func(id string) error {
			_, _, err := f(id).run()
			return err
		}
	}
	// gone also proves that DEL was measured on an attachment that was there.
	gone := func(name string) func(string) error {
		return func(id string) error {
			if r.journaled(name, id) {
				return fmt.Errorf("%s is still in the journal", id)
			}
			return nil
		}
	}
	lastStanza := object{"position": "last", "prevResult": result}
	alone := object{"plugins": []any{object{"type": "tuning"}}, "prevResult": result}
	return []contestant{
		{name: nothing, add: func(string) call { return program("nothing") }, del: func(string) call { return program("nothing") }},
		{name: floor, add: func(id string) call { return program("floor", filepath.Join(r.dir, "floor", id)) }},
		{name: tuning, add: reference("ADD", "tuning", prev), del: reference("DEL", "tuning", prev)},
		{name: portmap, add: reference("ADD", "portmap", prev), del: reference("DEL", "portmap", prev)},
		{name: hostLocal, add: reference("ADD", "host-local", ipam), del: reference("DEL", "host-local", ipam)},
		{name: first, add: ours("ADD", "first", nil), del: ours("DEL", "first", prev), after: gone("first")},
		{name: known, before: once(ours("ADD", "known", nil)), add: ours("ADD", "known", nil), after: once(ours("DEL", "known", prev))},
		{name: last, before: once(ours("ADD", "first and last", nil)), add: ours("ADD", "first and last", lastStanza),
			del: ours("DEL", "first and last", lastStanza), after: once(ours("DEL", "first and last", prev))},
		{name: wrapped, add: ours("ADD", "tuning alone", alone), del: ours("DEL", "tuning alone", alone), after: gone("tuning alone")},
	}
}

// measureVerbs compares single verbs, whole processes, with the references.
func measureVerbs(b budget, rep *report) error {
	r, err := newRig("/var/lib/verbs")
	if err != nil {
		return err
	}
	res, err := contest(r, r.contestants(), b.rounds)
	if err != nil {
		return err
	}
	for _, verb := range []struct {
		name string
		of   map[string]series
	}{{"ADD", res.add}, {"DEL", res.del}} {
		t := table{head: []string{verb.name, "wall ms", "CPU ms", "wall : floor", "wall : portmap", "CPU : tuning"}}
		for _, name := range contestantNames {
			s, ok := verb.of[name]
			if !ok {
				continue
			}
			row := []string{name, spread(s.of(wall)), spread(s.of(cpu))}
			for _, ref := range []struct {
				name string
				of   func(sample) time.Duration
			}{{floor, wall}, {portmap, wall}, {tuning, cpu}} {
				cell := ""
				if against, ok := verb.of[ref.name]; ok && name != ref.name {
					cell = times(pairs(s.of(ref.of), against.of(ref.of), quotient))
				}
				row = append(row, cell)
			}
			t.rows = append(t.rows, row)
			rep.bar(verb.name, name, s.of(wall))
		}
		rep.add(fmt.Sprintf("%s, one at a time", verb.name),
			"Whole processes, from fork to the end. A column with a colon is the quotient, round by round.", t)
	}
	rep.target("ADD (first): CPU at most 1.25 times tuning's", 1.25, pairs(res.add[first].of(cpu), res.add[tuning].of(cpu), quotient))
	rep.target("ADD (first): wall at most 1.15 times the floor's", 1.15, pairs(res.add[first].of(wall), res.add[floor].of(wall), quotient))
	rep.target("DEL (first), delivered: wall at most portmap's", 1, pairs(res.del[first].of(wall), res.del[portmap].of(wall), quotient))
	return nil
}
