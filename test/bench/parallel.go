package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
)

// measureParallel runs many calls at once: of single verbs, and of whole
// chains.
func measureParallel(b budget, rep *report) error {
	r, err := newRig("/var/lib/parallel")
	if err != nil {
		return err
	}
	contestants := slices.DeleteFunc(r.contestants(), func(c contestant) bool {
		return !slices.Contains([]string{floor, tuning, hostLocal, first, wrapped}, c.name)
	})
	t := table{head: []string{"", "at once", "ADD: ms each", "a second", "DEL: ms each", "a second"}}
	next := 0
	for _, at := range []int{1, 8, 64} {
		rounds := max(3, b.rounds/at)
		add, del := make(map[string][]float64), make(map[string][]float64)
		for range rounds {
			for _, phase := range []struct {
				of   func(contestant) func(string) call
				into map[string][]float64
			}{
				{func(c contestant) func(string) call { return c.add }, add},
				{func(c contestant) func(string) call { return c.del }, del},
			} {
				if err := r.flushDisk(); err != nil {
					return err
				}
				runtime.GC()
				for _, i := range rand.Perm(len(contestants)) {
					c := contestants[i]
					make := phase.of(c)
					if make == nil {
						continue
					}
					took, err := together(at, func(i int) error {
						_, _, err := make(id(next + i)).run()
						return err
					})
					if err != nil {
						return fmt.Errorf("%s: %w", c.name, err)
					}
					phase.into[c.name] = append(phase.into[c.name], took.wall.Seconds()*1000)
				}
			}
			next += at
		}
		for _, c := range contestants {
			row := []string{c.name, fmt.Sprint(at)}
			for _, ms := range [][]float64{add[c.name], del[c.name]} {
				if ms == nil {
					row = append(row, "", "")
					continue
				}
				row = append(row, spread(pairs(ms, ms, func(ms, _ float64) float64 { return ms / float64(at) })),
					fmt.Sprintf("%.0f", 1000*float64(at)/median(ms)))
			}
			t.rows = append(t.rows, row)
		}
	}
	rep.add("Single verbs, 1, 8 and 64 at once", "ms each: until the last has ended, divided by how many there are. The floor has no DEL.", t)

	chains, err := newRig("/var/lib/parallel-chain")
	if err != nil {
		return err
	}
	for _, at := range []int{8, 64} {
		res, err := chainContest(chains, at, max(2, b.chainRounds/at))
		if err != nil {
			return err
		}
		rep.add(fmt.Sprintf("ADD of bridge, portmap and firewall, %d at once", at), "Until the last has ended.", chainTable("ADD", res.add))
		rep.add(fmt.Sprintf("DEL of bridge, portmap and firewall, %d at once", at), "Until the last has ended.", chainTable("DEL", res.del))
	}
	return nil
}
