package main

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// measureScale shows what a verb costs with how many attachments there are.
func measureScale(b budget, rep *report) error {
	walls := table{head: []string{"attachments", "ADD", "DEL", "STATUS", "GC, all valid", "first call after a boot", "durable-argsctl list"}}
	memory := table{head: walls.head}
	for _, n := range b.scales {
		// A disk of its own: to delete this many files from one that is used
		// again would slow down the next (ext4).
		disk, err := newImage(fmt.Sprintf("scale-%d", n), 4<<30, "mkfs.ext4", "-q", "-N", "400000")
		if err != nil {
			return err
		}
		r, err := newRig(filepath.Join(disk.dir, "rig"))
		if err != nil {
			return err
		}
		valid, err := r.fill(n)
		if err != nil {
			return err
		}
		verbs := r.scaled(valid)
		samples, peaks := make([][]float64, len(verbs)), make([]float64, len(verbs))
		for round := range b.scaleRounds + 2 {
			id := id(1<<28 + round)
			if err := r.flushDisk(); err != nil {
				return err
			}
			for i, v := range verbs {
				if v.slow && round >= 7 || v.skip {
					continue
				}
				if v.before != nil {
					if err := v.before(); err != nil {
						return err
					}
				}
				if round == 0 {
					if peaks[i], err = v.call(id).peak(); err != nil {
						return fmt.Errorf("%s of %d: %w", v.name, n, err)
					}
					continue
				}
				sample, _, err := v.call(id).run()
				if err != nil {
					return fmt.Errorf("%s of %d: %w", v.name, n, err)
				}
				if round >= 2 {
					samples[i] = append(samples[i], sample.wall.Seconds()*1000)
				}
			}
		}
		row, peakRow := []string{fmt.Sprint(n)}, []string{fmt.Sprint(n)}
		for i, v := range verbs {
			if v.skip {
				row, peakRow = append(row, "not there yet"), append(peakRow, "")
				continue
			}
			row = append(row, spread(samples[i]))
			peakRow = append(peakRow, fmt.Sprintf("%.1f", peaks[i]))
			if n == b.scales[len(b.scales)-1] {
				if v.slow && v.limit > 0 {
					rep.target(fmt.Sprintf("%s of %d: under %v", v.name, n, v.limit*time.Duration(n)), (v.limit*time.Duration(n)).Seconds()*1000, samples[i])
				}
				if i < len(verbs)-1 {
					rep.fact(fmt.Sprintf("%s of %d: at most 25 MB", v.name, n), 25, peaks[i])
				}
			}
		}
		walls.rows, memory.rows = append(walls.rows, row), append(memory.rows, peakRow)
		if err := disk.unmount(); err != nil {
			return err
		}
	}
	rep.add("By the number of attachments", "Wall time in ms, on ext4 in a loop image.", walls)
	rep.add("Memory by the number of attachments", "Peak, in MB. GC's input alone, two lists, is 0.2 MB for 1,000.", memory)
	return nil
}

// scaledVerb is one of them.
type scaledVerb struct {
	name   string
	call   func(id string) call
	before func() error
	slow   bool          // as it visits every attachment
	limit  time.Duration // for each
	skip   bool
}

func (r rig) scaled(valid []any) []scaledVerb {
	const name = "first and last"
	prev := object{"prevResult": result}
	lists := object{"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid}
	ctl := filepath.Join(bin, "durable-argsctl")
	list := call{argv: []string{ctl, "list", "--conf-dir", r.confDir(name)}, env: os.Environ()}
	help, err := exec.Command(ctl, "--help").Output()
	noList := err != nil || !bytes.Contains(help, []byte("\n  list "))
	if noList {
		fmt.Fprintln(os.Stderr, "bench: SKIPPED: durable-argsctl list, as this durable-argsctl has no such command")
	}
	return []scaledVerb{
		{name: "ADD", call: func(id string) call { return r.ours("ADD", name, id, nil) }},
		{name: "DEL", call: func(id string) call { return r.ours("DEL", name, id, prev) }},
		{name: "STATUS", call: func(string) call { return r.ours("STATUS", name, "", nil) }},
		{name: "GC", call: func(string) call { return r.ours("GC", name, "", lists) }, slow: true, limit: 10 * time.Microsecond},
		{name: "first call after a boot", call: func(string) call { return r.ours("STATUS", name, "", nil) }, slow: true,
			before: func() error { return os.RemoveAll(filepath.Join(r.dataDir(name), ".boot")) }},
		{name: "list", call: func(string) call { return list }, slow: true, limit: 10 * time.Microsecond, skip: noList},
	}
}

// fill journals n attachments, with a result each, as ADD does but without the
// processes and the flushes. It returns them as GC's list has them.
func (r rig) fill(n int) ([]any, error) {
	const name = "first and last"
	// What ADD writes is the pattern.
	pattern := id(1 << 27)
	for _, more := range []object{nil, {"position": "last", "prevResult": result}} {
		if _, _, err := r.ours("ADD", name, pattern, more).run(); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(r.dataDir(name), network)
	file := filepath.Join(dir, pattern+"@eth0")
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file); err != nil {
		return nil, err
	}
	lines := bytes.SplitAfter(content, []byte("\n"))
	valid := []any{}
	for range n {
		id := fmt.Sprintf("%016x%048x", rand.Uint64(), len(valid)) // in no order, as containers' are
		address := fmt.Appendf(nil, `"10.%d.%d.%d/16"`, len(valid)>>16, len(valid)>>8&255, len(valid)&255)
		body := bytes.Replace(lines[1][9:len(lines[1])-1], []byte(`"10.244.0.2/16"`), address, 1)
		line := fmt.Appendf(bytes.Clone(lines[0]), "%08x %s\n", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)), body)
		if err := os.WriteFile(filepath.Join(dir, id+"@eth0"), line, 0o600); err != nil {
			return nil, err
		}
		valid = append(valid, object{"containerID": id, "ifname": "eth0"})
	}
	return valid, r.flushDisk()
}
