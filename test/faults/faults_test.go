// Package faults lets the plugin meet, one after the other, every failure that
// a system call can have.
//
// A run of a verb, or of a command of durable-argsctl, is recorded first: the
// system calls that the process makes on its store, a conflist or libcni's cache.
// Then it is run again for every one of these calls and every fault: the call
// fails with EIO, ENOSPC, EROFS, EACCES, EMFILE or EINTR, it writes half only, or
// the process is killed at it. After each of them
//
//   - an ADD has succeeded, and then its entry can be read and every flush that
//     makes it durable was made after the last write (what a flush is worth is
//     for package crash to find out), or it has failed with a CNI error, and
//     then no plugin of the chain was called, unless ours come after it;
//   - a DEL, GC or CHECK that succeeds has lost nothing that was owed, and the
//     error of a DEL has none of the words that containerd takes for success;
//   - a DEL that follows, by a runtime that has lost everything, waits for no
//     lock, succeeds, gives every plugin what a successful ADD had, and leaves
//     no file in the store;
//   - a conflist is the old one or the new one, a cache file as it was or whole,
//     and the next call puts right what is missing and leaves nothing beside it.
//
// A sample of the points is run; all of them with FAULTS=full in the environment,
// or make faults.
package faults

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/replay"
	"github.com/durable-args/durable-args/test/sandbox"
)

func TestMain(m *testing.M) {
	if target := os.Getenv(targetEnv); target != "" {
		fmt.Fprintln(os.Stderr, becomeTarget(target))
		os.Exit(1)
	}
	sandbox.Main(m)
}

// scenario is one verb, and what it finds.
type scenario struct {
	name, layout string
	// position is that of the stanza whose process meets the faults.
	position string
	prepare  func(n *node)
	act      func(n *node) error
	// holds returns what is wrong after act, nil if nothing is.
	holds func(n *node, o outcome) error
	// always is a fault that every run has, too.
	always func(call) fate
	// booted says that it is the first call after a boot, which repairs libcni's cache.
	booted bool
}

var scenarios = []scenario{
	{name: "ADD, first", layout: "first", prepare: nothing, act: (*node).add, holds: afterAdd},
	{name: "ADD, first, without O_TMPFILE", layout: "first", prepare: nothing, act: (*node).add, holds: afterAdd, always: noTmpfile},
	{name: "ADD, second", layout: "first", prepare: addedOther, act: (*node).add, holds: afterAdd},
	{name: "ADD, last", layout: "first-last", position: "last", prepare: nothing, act: (*node).add, holds: afterAdd},
	{name: "ADD, wrapped", layout: "wrapped", prepare: nothing, act: (*node).add, holds: afterAdd},
	{name: "DEL, delivered", layout: "first", prepare: added, act: (*node).del, holds: afterDel},
	{name: "DEL, replay in first", layout: "first", prepare: addedAndLost, act: (*node).del, holds: afterDel},
	{name: "DEL, replay in last", layout: "first-last", position: "last", prepare: addedAndLost, act: (*node).del, holds: afterDel},
	{name: "DEL, first after last", layout: "first-last", prepare: addedAndLost, act: (*node).del, holds: afterDel},
	{name: "DEL, replay fails", layout: "first-last", position: "last", prepare: addedAndBroken, act: (*node).del, holds: afterDel},
	{name: "DEL, wrapped", layout: "wrapped", prepare: addedAndLost, act: (*node).del, holds: afterDel},
	{name: "DEL, wrapped, fails", layout: "wrapped", prepare: addedAndBroken, act: (*node).del, holds: afterDel},
	{name: "DEL, corrupt", layout: "first", prepare: corrupted, act: (*node).del, holds: afterDel},
	{name: "CHECK, adopting in first", layout: "first-last", prepare: unjournaled, act: (*node).check, holds: afterCheck},
	{name: "CHECK, adopting in last", layout: "first-last", position: "last", prepare: unjournaled, act: (*node).check, holds: afterCheck},
	{name: "CHECK, adopting, wrapped", layout: "wrapped", prepare: unjournaled, act: (*node).check, holds: afterCheck},
	{name: "GC, first", layout: "first", prepare: dead, act: (*node).gc, holds: afterGC},
	{name: "GC, wrapped", layout: "wrapped", prepare: dead, act: (*node).gc, holds: afterGC},
	{name: "STATUS", layout: "first", prepare: added, act: (*node).status, holds: afterStatus},
	{name: "first call after a boot", layout: "first-last", prepare: addedAndEmptied, act: (*node).status, holds: afterBoot, booted: true},
	{name: "durable-argsctl repair", layout: "first-last", prepare: addedAndEmptied, act: (*node).repair, holds: afterRepair},
	{name: "durable-argsctl insert", layout: "first", prepare: installed, act: (*node).insert, holds: afterInsert},
	{name: "durable-argsctl remove", layout: "first", prepare: inserted, act: (*node).remove, holds: afterRemove},
}

func nothing(*node) {}

func added(n *node) {
	must(n.t, n.add())
	n.owed = []string{n.args}
}

// addedOther leaves an ADD to which DEL owes a replay of its own.
func addedOther(n *node) {
	n.args = otherArgs
	added(n)
	n.args = args
	must(n.t, os.Remove(n.records))
}

func addedAndLost(n *node) {
	added(n)
	n.lose()
}

func addedAndBroken(n *node) {
	addedAndLost(n)
	must(n.t, os.WriteFile(n.broken(), nil, 0o600))
}

// addedAndEmptied leaves a cache file as a power cut does.
func addedAndEmptied(n *node) {
	added(n)
	must(n.t, os.Truncate(n.cacheFile(), 0))
}

// installed adds a conflist without us.
func installed(n *node) {
	must(n.t, os.WriteFile(n.other(), []byte(otherConflist), 0o644))
}

func inserted(n *node) {
	installed(n)
	must(n.t, n.insert())
}

func corrupted(n *node) {
	addedAndLost(n)
	must(n.t, os.WriteFile(filepath.Join(n.dataDir(), key.String()), make([]byte, 4096), 0o600))
	n.owed, n.corrupt = nil, 1
}

func unjournaled(n *node) {
	added(n)
	must(n.t, os.RemoveAll(n.dataDir()))
	n.owed = nil
}

func dead(n *node) {
	n.addDead()
	n.owed = []string{n.args}
	n.lose()
}

// noTmpfile makes the file system one without O_TMPFILE.
func noTmpfile(c call) fate {
	if c.flags&unix.O_TMPFILE == unix.O_TMPFILE {
		return fate{errno: unix.EOPNOTSUPP}
	}
	return fate{}
}

func afterAdd(n *node, o outcome) error {
	rec, err := n.journaled()
	if err != nil {
		return fmt.Errorf("the journal cannot be read: %w", err)
	}
	first := len(n.list.Plugins) == 2 // neither wrapped nor with a last stanza
	newest := rec.Newest()
	switch {
	case o.err != nil && first && n.recorded("ADD", ""):
		return errors.New("ADD failed, but the chain was called")
	case o.err != nil:
		return n.thenDel()
	case newest == nil || string(newest.Args) != args || string(newest.RuntimeConfig) != capability:
		return fmt.Errorf("ADD succeeded, but the journal has %+v", newest)
	case !first && newest.Result == nil:
		return errors.New("ADD succeeded, but its result is not journaled")
	case !n.recorded("ADD", ""):
		return errors.New("ADD succeeded, but the chain was not called")
	}
	if missing := unflushed(o.calls); len(missing) > 0 {
		return fmt.Errorf("ADD succeeded, but %s is not flushed", strings.Join(missing, ", "))
	}
	n.owed = append(n.owed, args)
	return n.thenDel()
}

func afterDel(n *node, o outcome) error {
	if o.err != nil && replay.Words(o.err.Error()) != o.err.Error() {
		return errors.New("a runtime takes this error for success")
	}
	if o.err == nil && !n.told() && !strings.Contains(n.stderr.String(), "stays in the journal as a debt") {
		return errors.New("DEL succeeded, but the chain was not told what ADD had")
	}
	return n.thenDel()
}

func afterCheck(n *node, o outcome) error {
	if o.err != nil && !o.fate.kill {
		return errors.New("CHECK failed on account of the journal")
	}
	rec, err := n.journaled()
	if err != nil {
		return fmt.Errorf("the journal cannot be read: %w", err)
	}
	switch {
	case rec.Newest() != nil:
		n.owed = []string{args}
	case o.err == nil && !strings.Contains(n.stderr.String(), "CHECK cannot adopt"):
		return errors.New("CHECK has not adopted the attachment, and has not said so")
	}
	return n.thenDel()
}

func afterGC(n *node, o outcome) error {
	if o.err == nil && !n.told() {
		return errors.New("GC succeeded, but has not replayed what is dead")
	}
	if o.err != nil {
		if err := n.gc(); err != nil {
			return fmt.Errorf("the GC that follows fails: %w", err)
		}
		if !n.told() {
			return errors.New("the GC that follows has not replayed what is dead")
		}
	}
	return n.thenDel()
}

func afterStatus(n *node, o outcome) error {
	for _, c := range o.calls {
		switch c.name {
		case "write", "pwrite64", "ftruncate", "mkdirat", "linkat", "renameat", "unlinkat", "fchmod", "fsync", "fdatasync":
			return fmt.Errorf("STATUS writes: %s", c)
		}
	}
	return n.thenDel()
}

func afterBoot(n *node, o outcome) error {
	// A fault may have kept it from that, and then the next one does it.
	must(n.t, os.RemoveAll(filepath.Join(n.dataDir(), ".boot")))
	if err := n.status(); err != nil {
		return fmt.Errorf("the next call fails: %w", err)
	}
	if err := n.repaired(); err != nil {
		return err
	}
	return n.thenDel()
}

func afterRepair(n *node, o outcome) error {
	if o.err == nil {
		// What it printed may have told that it could not.
		if err := n.repaired(); err != nil && !strings.Contains(n.stdout.String(), "in use just now") {
			return fmt.Errorf("repair succeeded, but %w", err)
		}
	}
	if err := n.repair(); err != nil {
		return fmt.Errorf("the repair that follows fails: %w", err)
	}
	if err := n.repaired(); err != nil {
		return err
	}
	return n.thenDel()
}

func afterInsert(n *node, o outcome) error {
	return n.afterEdit(o, n.insert, n.remove, otherConflist)
}

func afterRemove(n *node, o outcome) error {
	return n.afterEdit(o, n.remove, n.insert, n.edited)
}

// afterEdit looks whether an edit of a conflist that was old has left the old one
// or the new one, and nothing that a runtime would load besides.
func (n *node) afterEdit(o outcome, edit, undo func() error, old string) error {
	got := n.otherText()
	if err := edit(); err != nil {
		return fmt.Errorf("the edit that follows fails: %w", err)
	}
	edited := n.otherText()
	switch {
	case got != old && got != edited:
		return fmt.Errorf("the conflist is neither the old nor the new one: %q", got)
	case o.err == nil && got != edited:
		return errors.New("the edit succeeded, but the conflist is the old one")
	case edited == old:
		return errors.New("the edit that follows has changed nothing")
	}
	names, err := filepath.Glob(filepath.Join(n.confDir(), "*"))
	must(n.t, err)
	hidden, err := filepath.Glob(filepath.Join(n.confDir(), ".*"))
	must(n.t, err)
	if len(names) != 2 || len(hidden) > 0 {
		return fmt.Errorf("left beside the conflists: %q", append(names, hidden...))
	}
	if err := undo(); err != nil || n.otherText() != old {
		return fmt.Errorf("undoing it leaves %q: %w", n.otherText(), err)
	}
	return nil
}

// repaired returns an error if libcni does not find what it had written.
func (n *node) repaired() error {
	rt := n.runtimeConf()
	cached, err := n.cni.GetNetworkListCachedResult(n.list, rt)
	if err != nil || cached == nil {
		return fmt.Errorf("the cache file is not repaired: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(n.cacheDir(), ".*")); len(left) > 0 {
		return fmt.Errorf("left in the cache: %q", left)
	}
	return nil
}

// thenDel is the DEL of a runtime that has lost everything, from which nothing
// is left.
func (n *node) thenDel() error {
	must(n.t, os.RemoveAll(n.broken()))
	n.lose()
	start := time.Now()
	if err := n.del(); err != nil {
		return fmt.Errorf("the DEL that follows fails: %w", err)
	}
	if took := time.Since(start); took > patience {
		return fmt.Errorf("the DEL that follows took %s, as if somebody held a lock", took)
	}
	if !n.told() {
		return errors.New("the chain was never told what ADD had")
	}
	files, aside := n.files()
	if slices.Equal(files, []string{network + "/.new"}) {
		// What a killed writer without O_TMPFILE leaves is the next one's.
		n.divert("", func(cmd *exec.Cmd) error {
			_, err := supervise(cmd, n.dir, noTmpfile)
			return err
		})
		if err := errors.Join(n.add(), n.del()); err != nil {
			return fmt.Errorf("the ADD that follows fails: %w", err)
		}
		files, aside = n.files()
	}
	if len(files) > 0 {
		return fmt.Errorf("left in the store: %s", strings.Join(files, ", "))
	}
	if aside != n.corrupt {
		return fmt.Errorf("%d files were set aside, and %d were corrupt", aside, n.corrupt)
	}
	return nil
}

// patience is far less than journal.LockTimeout, and far more than a call takes.
const patience = 15 * time.Second

// unflushed returns what a run has written and not flushed.
func unflushed(calls []call) []string {
	dirty := make(map[string]bool)
	for _, c := range calls {
		if c.fate != (fate{}) {
			continue
		}
		path := c.paths[len(c.paths)-1]
		switch c.name {
		case "write", "pwrite64":
			dirty[fmt.Sprintf("descriptor %d", c.fd)] = true
		case "mkdirat", "linkat", "renameat":
			dirty[filepath.Dir(path)] = true
		case "fdatasync", "fsync":
			delete(dirty, fmt.Sprintf("descriptor %d", c.fd))
			delete(dirty, path)
		}
	}
	return slices.Sorted(maps.Keys(dirty))
}

// faults returns what can befall c.
func faults(c call) []fate {
	all := []fate{{kill: true}}
	for _, errno := range []unix.Errno{unix.EIO, unix.ENOSPC, unix.EROFS, unix.EACCES, unix.EMFILE, unix.EINTR} {
		all = append(all, fate{errno: errno})
	}
	if c.name == "write" {
		all = append(all, fate{short: true})
	}
	return all
}

// outcome is how a run has ended.
type outcome struct {
	calls []call
	fate  fate // what one of them has met
	err   error
}

// run lets n meet f at the at-th call, none if at is negative.
func (s scenario) run(n *node, at int, f fate) outcome {
	n.reset()
	s.prepare(n)
	o := outcome{fate: f}
	n.divert(s.position, func(cmd *exec.Cmd) (err error) {
		if !s.booted {
			n.noteBoot()
		}
		seen := -1
		o.calls, err = supervise(cmd, n.dir, func(c call) fate {
			seen++
			switch {
			case seen == at:
				return f
			case s.always != nil:
				return s.always(c)
			}
			return fate{}
		})
		return err
	})
	o.err = s.act(n)
	return o
}

// verdict returns what is wrong after a run, nil if nothing is.
func (s scenario) verdict(n *node, o outcome) error {
	var own *types.Error
	if o.err != nil && !o.fate.kill && !errors.As(o.err, &own) {
		return errors.New("the error is none of CNI's")
	}
	return s.holds(n, o)
}

// sampled is about how many points of a scenario a short run has.
const sampled = 7

func TestEveryFailingSystemCall(t *testing.T) {
	if !sandbox.Enter(t) {
		return
	}
	makeNetns(t)
	full := os.Getenv("FAULTS") == "full"
	rows := []string{fmt.Sprintf("%-30s %6s %7s %6s %6s %6s", "verb", "calls", "points", "kills", "errors", "wrong")}
	var mu sync.Mutex
	t.Run("sweep", func(t *testing.T) {
		for _, s := range scenarios {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				row := s.sweep(t, full)
				mu.Lock()
				defer mu.Unlock()
				rows = append(rows, row)
				sandbox.Report(t, strings.Join(rows, "\n"))
			})
		}
	})
}

func makeNetns(t *testing.T) {
	must(t, exec.Command("ip", "netns", "add", filepath.Base(liveNetns)).Run())
}

// sweep runs s with every fault at every call, or a sample of them, and returns
// a row of the table: how many calls there are, at how many points a fault was
// met, how many of the faults were kills, after how many others the verb
// failed, and how often something was wrong.
func (s scenario) sweep(t *testing.T, full bool) string {
	n := newNode(t, filepath.Join(t.TempDir(), "node"), s.layout)
	recorded := s.run(n, -1, fate{})
	if err := s.verdict(n, recorded); err != nil || len(recorded.calls) == 0 {
		t.Fatalf("without a fault: %v, after %d calls; it ended with: %v\nand said: %s", err, len(recorded.calls), recorded.err, &n.stderr)
	}
	type point struct {
		at   int
		fate fate
	}
	var points []point
	for at, c := range recorded.calls {
		for _, f := range faults(c) {
			points = append(points, point{at, f})
		}
	}
	step := 1
	if !full {
		// Prime to the number of faults, so that all get their turn.
		for step = max(1, len(points)/sampled); step%7 == 0 || step%2 == 0; step++ {
		}
	}
	var swept, kills, errs, wrong int
	for i := 0; i < len(points); i += step {
		p := points[i]
		o := s.run(n, p.at, p.fate)
		want := recorded.calls[p.at]
		if len(o.calls) <= p.at || o.calls[p.at].name != want.name || o.calls[p.at].fate != p.fate {
			t.Fatalf("call %d was not %s again", p.at, want)
		}
		swept++
		switch {
		case p.fate.kill:
			kills++
		case o.err != nil:
			errs++
		}
		if err := s.verdict(n, o); err != nil {
			wrong++
			t.Errorf("%s at call %d, %s: %v\nit ended with: %v\nand said: %s", p.fate, p.at, want, err, o.err, &n.stderr)
		}
	}
	return fmt.Sprintf("%-30s %6d %7d %6d %6d %6d", s.name, len(recorded.calls), swept, kills, errs, wrong)
}

// strace, as an independent witness, sees the same calls, of all that take a
// path or a descriptor.
func TestNothingIsOverlooked(t *testing.T) {
	if !sandbox.Enter(t) {
		return
	}
	makeNetns(t)
	strace, err := exec.LookPath("strace")
	must(t, err)
	for _, s := range scenarios {
		if s.always != nil {
			continue // strace cannot make those faults
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, filepath.Join(t.TempDir(), "node"), s.layout)
			var want []string
			for _, c := range s.run(n, -1, fate{}).calls {
				want = append(want, c.name)
			}
			n.reset()
			s.prepare(n)
			out := n.dir + ".strace"
			n.divert(s.position, func(cmd *exec.Cmd) error {
				if !s.booted {
					n.noteBoot()
				}
				arguments := cmd.Args[1:]
				// Threads, but no plugins.
				cmd.Args = []string{strace, "-f", "-b", "execve", "-y", "-o", out, "-e", "trace=%file,%desc", "-e", "signal=none", cmd.Path}
				cmd.Args = append(cmd.Args, arguments...)
				cmd.Path = strace
				return cmd.Run()
			})
			_ = s.act(n) // some are to fail
			b, err := os.ReadFile(out)
			must(t, err)
			var got []string
			for _, match := range regexp.MustCompile(`(?m)^\d+ +(\w+)\((.*)`).FindAllStringSubmatch(string(b), -1) {
				if strings.Contains(match[2], n.dir+"/") || strings.Contains(match[2], n.dir+">") || strings.Contains(match[2], n.dir+`"`) {
					got = append(got, match[1])
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("strace sees\n%s\nand we see\n%s", got, want)
			}
		})
	}
}
