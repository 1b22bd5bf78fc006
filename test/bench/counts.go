package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// verbOf is a verb that is looked at on its own, in the order in which an
// attachment sees them.
type verbOf struct {
	name    string
	flushes int // the target
	call    func(id string) call
}

func (r rig) everyVerb() []verbOf {
	prev := object{"prevResult": result}
	lastStanza := object{"position": "last", "prevResult": result}
	alone := object{"plugins": []any{object{"type": "tuning"}}, "prevResult": result}
	ours := func(verb, name string, more object) func(string) call {
		return func(id string) call { return r.ours(verb, name, id, more) }
	}
	gc := func(id string) call {
		list := []any{object{"containerID": id, "ifname": "eth0"}}
		return r.ours("GC", "first and last", "", object{"cni.dev/valid-attachments": list, "cni.dev/attachments": list})
	}
	return []verbOf{
		{"ADD, first", 2, ours("ADD", "first and last", nil)},
		{"ADD, last", 1, ours("ADD", "first and last", lastStanza)},
		{"ADD, first, again", 1, ours("ADD", "first and last", nil)},
		{"ADD, last, again", 1, ours("ADD", "first and last", lastStanza)},
		{"CHECK, first", 0, ours("CHECK", "first and last", prev)},
		{"STATUS", 0, ours("STATUS", "first and last", nil)},
		{"GC, nothing to do", 0, gc},
		{"DEL, last, delivered", 0, ours("DEL", "first and last", lastStanza)},
		{"DEL, first, delivered", 0, ours("DEL", "first and last", prev)},
		{"DEL, first, nothing known", 0, ours("DEL", "first and last", prev)},
		{"ADD, wrapped around tuning", 3, ours("ADD", "tuning alone", alone)},
		{"DEL, wrapped around tuning", 0, ours("DEL", "tuning alone", alone)},
	}
}

// measureCounts counts what does not depend on the machine's load.
func measureCounts(b budget, rep *report) error {
	r, err := newRig("/var/lib/counts")
	if err != nil {
		return err
	}
	prev := object{"prevResult": result}
	ipam := object{"ipam": object{"type": "host-local", "dataDir": r.path("host-local", ""),
		"ranges": []any{[]any{object{"subnet": "10.244.0.0/16"}}}}}
	rows := append(r.everyVerb(),
		verbOf{"nothing", -1, func(string) call { return program("nothing") }},
		verbOf{"tuning, ADD", -1, func(id string) call { return r.reference("ADD", "tuning", id, prev) }},
		verbOf{"portmap, ADD", -1, func(id string) call { return r.reference("ADD", "portmap", id, prev) }},
		verbOf{"host-local, ADD", -1, func(id string) call { return r.reference("ADD", "host-local", id, ipam) }},
	)
	calls, flushes, peaks := make([][]float64, len(rows)), make([]int, len(rows)), make([][]float64, len(rows))
	n := 1 << 20
	const rounds = 9 // the Go runtime's own threads make the counts vary
	for round := range rounds {
		n++
		for i, v := range rows {
			counted, err := v.call(id(n)).count()
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			calls[i] = append(calls[i], float64(counted.all))
			if round > 0 { // the first ADD makes directories
				flushes[i] = max(flushes[i], counted.flushes)
			}
		}
		n++
		for i, v := range rows {
			peak, err := v.call(id(n)).peak()
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			peaks[i] = append(peaks[i], peak)
		}
	}
	t := table{head: []string{"", "flushes", "system calls", "peak memory, MB"}}
	for i, v := range rows {
		t.rows = append(t.rows, []string{v.name, fmt.Sprint(flushes[i]), fmt.Sprintf("%.0f", median(calls[i])), fmt.Sprintf("%.1f", median(peaks[i]))})
		if v.flushes >= 0 {
			rep.fact(fmt.Sprintf("%s: at most %d flushes", v.name, v.flushes), float64(v.flushes), float64(flushes[i]))
		}
	}
	rep.add("Flushes, system calls, memory", "Counted with strace, all threads and children; memory is ru_maxrss.", t)

	sizes := table{head: []string{"binary", "MB"}}
	for _, name := range []string{"durable-args", "durable-argsctl", "bench/nothing", "cni/tuning", "cni/portmap", "cni/host-local", "cni/bridge"} {
		st, err := os.Stat(filepath.Join(bin, name))
		if err != nil {
			return err
		}
		sizes.rows = append(sizes.rows, []string{name, fmt.Sprintf("%.1f", float64(st.Size())/1e6)})
	}
	rep.add("Binaries", "The reference plugins are not stripped, as they are released; ours are.", sizes)
	return nil
}
