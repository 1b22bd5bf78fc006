// Command bench measures what durable-args costs: on whole processes, as a
// runtime starts them, in namespaces of its own. make bench calls it.
//
// # How it measures
//
// Everything is compared with references that run on the same machine in the
// same run: a Go program that does nothing, one that makes one small file
// durable and nothing else (the floor, below which no journal can be), and
// reference plugins with nothing to do. All contestants run once a round, in an
// order that is drawn anew for each, and are compared round by round: what else
// the machine does falls on all of them alike.
//
// # How to read it
//
// A time is a median, in parentheses the middle half of the samples. A quotient or a difference is the
// median over the rounds, in parentheses the interval that holds the true one in
// 95 of 100 cases; where a target lies within it, the run cannot tell. CPU is
// user and system time of the process and of what it has started.
// Absolute times are this machine's; quotients travel better.
//
// # How long it takes
//
// BENCH=short, the default, takes about two minutes and shows whether something
// has become much slower. BENCH=full takes about a quarter of an hour, should
// have the machine to itself, and writes the tables and the charts that the
// README shows.
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/durable-args/durable-args/test/sandbox"
)

// budget is how much is measured.
type budget struct {
	rounds      int   // of single verbs
	chainRounds int   // of whole chains
	diskRounds  int   // on each file system
	scaleRounds int   // at each size of the journal
	scales      []int // the sizes
}

var budgets = map[string]budget{
	"short": {rounds: 60, chainRounds: 8, diskRounds: 15, scaleRounds: 8, scales: []int{0, 1_000, 10_000}},
	"full":  {rounds: 1000, chainRounds: 150, diskRounds: 150, scaleRounds: 40, scales: []int{0, 1_000, 100_000}},
}

// bin is where make puts the binaries.
var bin = os.Args[1]

// bench is the path of a program of this directory.
func bench(name string) string { return filepath.Join(bin, "bench", name) }

func main() {
	inside, err := sandbox.Furnish()
	if err == nil && inside {
		err = measure(os.Args[2])
	} else if err == nil {
		err = enter(os.Args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// enter runs the benchmark in a sandbox, and leaves nothing behind but its
// report.
func enter(into string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("this needs root, for network namespaces of its own; as root, run: make bench")
	}
	// Not /tmp, which may be in memory.
	dir, err := os.MkdirTemp("/var/tmp", "durable-args-bench.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	cmd := sandbox.Command(dir, os.Args[1], into)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		<-interrupt
		_ = cmd.Process.Kill() // the kernel takes down the rest
	}()
	return cmd.Wait()
}

// measure is what runs in the sandbox. It writes into the directory of that
// name.
func measure(into string) error {
	name := os.Getenv("BENCH")
	if name == "" {
		name = "short"
	}
	b, ok := budgets[name]
	if !ok {
		return fmt.Errorf("BENCH is short or full, not %q", name)
	}
	if err := run("ip", "netns", "add", filepath.Base(netns)); err != nil {
		return err
	}
	var text strings.Builder
	rep := &report{out: io.MultiWriter(os.Stdout, &text)}
	fmt.Fprintf(rep.out, "# What durable-args costs\n\nMeasured by `make bench` with BENCH=%s on %s.\n"+
		"Its package comment says how, and how to read this.\n\n", name, machine())
	parts := []struct {
		name string
		run  func(budget, *report) error
	}{
		{"verbs", measureVerbs},
		{"chain", measureChain},
		{"parallel", measureParallel},
		{"counts", measureCounts},
		{"disks", measureDisks},
		{"scale", measureScale},
	}
	only := os.Getenv("ONLY")
	for _, part := range parts {
		if only != "" && !strings.Contains(only, part.name) {
			continue
		}
		if err := part.run(b, rep); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	rep.targets.head = []string{"target", "measured", ""}
	rep.add("Targets", "Those that the project has set itself.", rep.targets)
	if name != "full" || only != "" {
		return nil
	}
	for file, content := range map[string]string{
		"RESULTS.md": text.String(),
		"light.svg":  chart(rep.bars, light),
		"dark.svg":   chart(rep.bars, dark),
	} {
		if err := os.WriteFile(filepath.Join(into, file), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// machine says what was measured on.
func machine() string {
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	cpus, _ := os.ReadFile("/proc/cpuinfo")
	disk, _ := exec.Command("stat", "-f", "-c", "%T", "/var/lib").Output()
	one, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%d CPUs, Linux %s, %s, load %s at the start", strings.Count(string(cpus), "processor\t"),
		strings.TrimSpace(string(kernel)), strings.TrimSpace(string(disk)), one)
}

// run runs a tool.
func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
