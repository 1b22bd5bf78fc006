package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// call is one process: a verb of a plugin, or a program that stands beside it.
type call struct {
	argv  []string
	env   []string
	stdin string
}

// pipeSize is how much fits into a pipe that nobody reads yet.
const pipeSize = 64 << 10

// run runs the process as a runtime would, and takes its time from fork to the
// end. Nothing of ours runs beside it: input and output fit into pipes.
func (c call) run() (sample, string, error) { return c.with(nil) }

// with is run, with more files for the process, from descriptor 3 on.
func (c call) with(extra []*os.File) (sample, string, error) {
	stdin, err := c.input()
	if err != nil {
		return sample{}, "", err
	}
	defer stdin.Close()
	out, stdout, err := os.Pipe()
	if err != nil {
		return sample{}, "", err
	}
	defer out.Close()
	attr := &os.ProcAttr{Env: c.env, Files: append([]*os.File{stdin, stdout, stdout}, extra...)}
	start := time.Now()
	process, err := os.StartProcess(c.argv[0], c.argv, attr)
	stdout.Close()
	if err != nil {
		return sample{}, "", err
	}
	state, err := process.Wait()
	took := time.Since(start)
	if err != nil {
		return sample{}, "", err
	}
	printed, err := io.ReadAll(out)
	if err == nil && !state.Success() {
		err = fmt.Errorf("%s: %v: %s", strings.Join(c.argv, " "), state, printed)
	}
	return sample{took, state.UserTime() + state.SystemTime()}, string(printed), err
}

// input is c.stdin as a file that has it all already.
func (c call) input() (*os.File, error) {
	if len(c.stdin) < pipeSize {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		defer w.Close()
		_, err = w.WriteString(c.stdin)
		return r, err
	}
	f, err := os.CreateTemp("/run", "stdin")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, err
	}
	if _, err := f.WriteString(c.stdin); err != nil {
		return nil, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

// peak returns how many MB of memory the call has at most. Its number is too
// large where it is below that of a Go program that does nothing.
func (c call) peak() (float64, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	c.argv = append([]string{bench("peak")}, c.argv...)
	_, _, err = c.with([]*os.File{w})
	w.Close()
	if err != nil {
		return 0, err
	}
	var kib float64
	_, err = fmt.Fscan(r, &kib)
	return kib * 1024 / 1e6, err
}

// counted is what strace sees of a call.
type counted struct{ all, flushes int }

// count counts the system calls of the call and of what it starts.
func (c call) count() (counted, error) {
	trace, err := os.CreateTemp("/run", "strace")
	if err != nil {
		return counted{}, err
	}
	defer os.Remove(trace.Name())
	defer trace.Close()
	strace, err := exec.LookPath("strace")
	if err != nil {
		return counted{}, err
	}
	c.argv = append([]string{strace, "-f", "-qq", "-e", "signal=none", "-o", trace.Name()}, c.argv...)
	if _, _, err := c.run(); err != nil {
		return counted{}, err
	}
	lines, err := io.ReadAll(trace)
	if err != nil {
		return counted{}, err
	}
	var n counted
	for line := range bytes.SplitSeq(bytes.TrimSpace(lines), []byte("\n")) {
		_, line, _ = bytes.Cut(line, []byte(" ")) // the process ID
		line = bytes.TrimSpace(line)
		if bytes.HasPrefix(line, []byte("<...")) {
			continue // the end of one that has been counted
		}
		n.all++
		name, _, _ := bytes.Cut(line, []byte("("))
		switch string(name) {
		case "fsync", "fdatasync", "sync", "syncfs", "msync", "sync_file_range":
			n.flushes++
		}
	}
	return n, nil
}

// cpuOfChildren is what all children that have ended have used.
func cpuOfChildren() (time.Duration, error) {
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), err
}
