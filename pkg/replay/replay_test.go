package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
)

// forbidden are the words by which containerd takes a failed DEL for a success:
// go-cni looks for exactly these with strings.Contains.
var forbidden = []string{"not found", "no such file or directory"}

// lost is a DEL of which nothing has been delivered.
var lost = Delivery{}

// before and after run lost down the two passes.
func (n *node) before(r Replayer, container string) error {
	n.Helper()
	return n.with(container, func(f *journal.File) error { return r.BeforePass(n.Context(), f, lost) })
}

func (n *node) after(r Replayer, container string) error {
	n.Helper()
	return n.with(container, func(f *journal.File) error { return r.AfterPass(n.Context(), f, lost) })
}

func (n *node) instead(r Replayer, container string, today chain.Call) error {
	n.Helper()
	return n.with(container, func(f *journal.File) error { return r.InsteadOfPass(n.Context(), f, today) })
}

func TestAReplayThatSucceeds(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		del      func(n *node) error
		left     string
		replayed bool
	}{
		{"before the pass it leaves the file, and says that it owes nothing", func(n *node) error { return n.before(n.replayer(3), "c1") }, "c1", true},
		{"after the pass it removes the file", func(n *node) error { return n.after(n.replayer(3), "c1") }, "", false},
		{"instead of the pass it removes the file", func(n *node) error { return n.instead(n.replayer(3), "c1", chain.Call{}) }, "", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "bridge", "portmap")
			n.journal("c1", n.add("bridge", "portmap"), result("10.0.0.2/24"))
			n.journal("c2", n.add("bridge"))
			if err := row.del(n); err != nil {
				t.Error(err)
			}
			for _, call := range n.calls() {
				if call.container != "c1" || call.args != "A=1" || call.path != n.bin || call.prevResult(t) != string(result("10.0.0.2/24")) {
					t.Errorf("a plugin was called like this: %+v", call)
				}
			}
			if called := n.called(); called != "portmap bridge" {
				t.Errorf("called: %q", called)
			}
			if left := n.left(); left != strings.TrimSpace(row.left+" c2") {
				t.Errorf("left: %q", left)
			}
			if row.replayed && n.record("c1").Newest() != nil {
				t.Errorf("the file owes %+v", n.record("c1").Adds)
			}
			if n.stderr.Len() > 0 {
				t.Errorf("the operator is told %q", n.stderr.String())
			}
		})
	}
}

func TestNothingIsCalledForWhatWasDelivered(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge")
	n.journal("c1", n.add("bridge"), result("10.0.0.2/24"))
	d := Delivery{
		Call:    chain.Call{Args: "A=1", PrevResult: json.RawMessage(result("10.0.0.2/24"))},
		Plugins: parsed(t, `{"type":"bridge"}`),
	}
	if err := n.with("c1", func(f *journal.File) error { return n.replayer(3).BeforePass(t.Context(), f, d) }); err != nil {
		t.Error(err)
	}
	if n.record("c1").Newest() == nil {
		t.Error("before the pass, the file already owes nothing: should the pass fail, all would be lost")
	}
	if err := n.with("c1", func(f *journal.File) error { return n.replayer(3).AfterPass(t.Context(), f, d) }); err != nil {
		t.Error(err)
	}
	if called, left := n.called(), n.left(); called != "" || left != "" {
		t.Errorf("called: %q, left: %q; want nothing", called, left)
	}
}

func TestAFileThatOwesNothingIsRemovedAfterThePass(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge")
	n.journal("c1", n.add("bridge"), result("10.0.0.2/24"))
	if err := n.before(n.replayer(3), "c1"); err != nil {
		t.Fatal(err)
	}
	n.called()
	if err := n.after(n.replayer(3), "c1"); err != nil {
		t.Error(err)
	}
	if called, left := n.called(), n.left(); called != "" || left != "" {
		t.Errorf("called: %q, left: %q; want nothing", called, left)
	}
}

func TestAFailedReplayIsReturnedAFewTimesAndThenADebt(t *testing.T) {
	t.Parallel()
	for _, pass := range []struct {
		name string
		del  func(n *node, r Replayer) error
	}{
		{"before the pass", func(n *node, r Replayer) error { return n.before(r, "c1") }},
		{"after the pass", func(n *node, r Replayer) error { return n.after(r, "c1") }},
	} {
		for _, attempts := range []int{0, 1, 3} {
			t.Run(fmt.Sprintf("%s, attempts %d", pass.name, attempts), func(t *testing.T) {
				t.Parallel()
				n := newNode(t, "bridge", "portmap")
				n.journal("c1", n.add("bridge", "portmap"))
				n.fails("bridge", "link not found")
				r := n.replayer(attempts)
				for try := 1; try <= attempts; try++ {
					n.stderr.Reset()
					err := pass.del(n, r)
					var failed *FailedError
					if !errors.As(err, &failed) || *failed != (FailedError{"bridge", try, attempts, "c1"}) {
						t.Fatalf("try %d: %v", try, err)
					}
					if called := n.called(); called != "portmap bridge" {
						t.Errorf("try %d: called: %q", try, called)
					}
					if told := n.stderr.String(); !strings.Contains(told, "link not found") || !strings.Contains(told, "web/c1@eth0") {
						t.Errorf("try %d: the operator is told %q; the plugin's own words are missing, or whose they are", try, told)
					}
				}
				for range 3 {
					n.stderr.Reset()
					if err := pass.del(n, r); err != nil {
						t.Errorf("after %d tries: %v; want success", attempts, err)
					}
					if told := n.stderr.String(); !strings.Contains(told, "debt") {
						t.Errorf("the operator is told %q, and not of the debt", told)
					}
				}
				rec := n.record("c1")
				// The debt is the same failure as the last that was returned.
				if want := max(attempts, 1); rec.Newest() == nil || len(rec.Attempts) != want {
					t.Errorf("the file has attempts %+v, want %d of them, and the ADD", rec.Attempts, want)
				}
				for _, attempt := range rec.Attempts {
					if attempt.Plugin != "bridge" || !strings.Contains(attempt.Error, "link not found") {
						t.Errorf("an attempt says %+v", attempt)
					}
				}
			})
		}
	}
}

func TestTheSameFailureOfADebtIsNotWrittenDownAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge", "portmap")
	n.journal("c1", n.add("bridge", "portmap"))
	for i, step := range []struct {
		plugin, words string
		attempts      int
	}{
		{"bridge", "busy", 1},
		{"bridge", "busy", 2}, // still an error to the runtime, which counts them
		{"bridge", "busy", 2},
		{"bridge", "busy", 2},
		{"bridge", "gone", 3},
		{"bridge", "gone", 3},
		{"portmap", "gone", 4},
		{"portmap", "gone", 4},
		{"bridge", "busy", 5},
	} {
		n.succeeds("bridge")
		n.succeeds("portmap")
		n.fails(step.plugin, step.words)
		_ = n.before(n.replayer(2), "c1")
		attempts := n.record("c1").Attempts
		if len(attempts) != step.attempts {
			t.Fatalf("step %d: the attempts are %+v, want %d", i, attempts, step.attempts)
		}
		if last := attempts[len(attempts)-1]; last.Plugin != step.plugin || !strings.Contains(last.Error, step.words) {
			t.Errorf("step %d: the last attempt is %+v", i, last)
		}
	}
}

func TestANewADDIsGivenAllItsTries(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge")
	n.journal("c1", n.add("bridge"))
	n.fails("bridge", "busy")
	r := n.replayer(1)
	if err := n.after(r, "c1"); err == nil {
		t.Error("the first try is no error")
	}
	if err := n.after(r, "c1"); err != nil {
		t.Error(err)
	}
	n.journal("c1", n.add("bridge"))
	if err := n.after(r, "c1"); err == nil {
		t.Error("the first try after another ADD is no error")
	}
}

func TestAMissingPluginIsADebtAtOnceUnlessAnotherTryMayHelp(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name      string
		chain     []string
		installed []string
		fails     string
		// What is called, and whether the runtime has to try again.
		before, after           string
		beforeAgain, afterAgain bool
	}{
		{"only one is missing", []string{"bridge", "portmap"}, []string{"bridge"}, "", "", "bridge", false, false},
		{"all are missing", []string{"bridge", "portmap"}, nil, "", "", "", false, false},
		{"one is missing, and one that comes after it fails", []string{"bridge", "portmap"}, []string{"bridge"}, "bridge", "", "bridge", false, true},
		{"one is missing, and one that comes before it fails", []string{"bridge", "portmap"}, []string{"portmap"}, "portmap", "portmap", "portmap", true, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, row.installed...)
			n.journal("c1", n.add(row.chain...))
			n.journal("c2", n.add(row.chain...))
			if row.fails != "" {
				n.fails(row.fails, "busy")
			}
			for _, pass := range []struct {
				container string
				del       func(Replayer, string) error
				called    string
				again     bool
			}{
				{"c1", n.before, row.before, row.beforeAgain},
				{"c2", n.after, row.after, row.afterAgain},
			} {
				err := pass.del(n.replayer(3), pass.container)
				if again := err != nil; again != pass.again {
					t.Errorf("%s: %v; to be tried again: want %v", pass.container, err, pass.again)
				}
				if called := n.called(); called != pass.called {
					t.Errorf("%s: called: %q, want %q", pass.container, called, pass.called)
				}
				if rec := n.record(pass.container); rec.Newest() == nil || len(rec.Attempts) != 1 {
					t.Errorf("%s: the file says %+v", pass.container, rec)
				}
			}
		})
	}
}

func TestWhoStopsAtAPluginThatFails(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		del    func(n *node) error
		called string
	}{
		{"before the pass it stops: no address is released while others point at it", func(n *node) error { return n.before(n.replayer(3), "c1") }, "tuning portmap"},
		{"after the pass it goes on", func(n *node) error { return n.after(n.replayer(3), "c1") }, "tuning portmap bridge"},
		{"instead of the pass it stops", func(n *node) error { return n.instead(n.replayer(3), "c1", chain.Call{}) }, "tuning portmap"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "bridge", "portmap", "tuning")
			n.journal("c1", n.add("bridge", "portmap", "tuning"))
			n.fails("portmap", "busy")
			if err := row.del(n); err == nil {
				t.Error("no error")
			}
			if called := n.called(); called != row.called {
				t.Errorf("called: %q, want %q", called, row.called)
			}
			if left := n.left(); left != "c1" {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestAllFailuresAfterThePassAreWrittenDown(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge", "portmap")
	n.journal("c1", n.add("bridge", "portmap", "tuning"))
	n.fails("portmap", "no DNAT")
	n.fails("bridge", "no link")
	var failed *FailedError
	if err := n.after(n.replayer(3), "c1"); !errors.As(err, &failed) || failed.Plugin != "tuning" {
		t.Errorf("the error is %v, want it to name the plugin that failed first", err)
	}
	attempts := n.record("c1").Attempts
	if len(attempts) != 1 || attempts[0].Plugin != "tuning" {
		t.Fatalf("the attempts are %+v", attempts)
	}
	for _, words := range []string{"no such plugin", "portmap: no DNAT", "bridge: no link"} {
		if !strings.Contains(attempts[0].Error, words) {
			t.Errorf("the attempt has not %q: %q", words, attempts[0].Error)
		}
	}
	for _, words := range []string{"no such plugin", "no DNAT", "no link"} {
		if !strings.Contains(n.stderr.String(), words) {
			t.Errorf("the operator is not told %q: %q", words, n.stderr.String())
		}
	}
}

// By then the chain may have released the address, and somebody else may have
// it.
func TestWhatFailedBeforeThePassIsNotReplayedAfterIt(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		entries func(n *node) []journal.Entry
	}{
		{"one ADD", func(n *node) []journal.Entry {
			return []journal.Entry{n.add("bridge", "portmap"), result("10.0.0.2/24")}
		}},
		{"two ADDs, and the second has no result", func(n *node) []journal.Entry {
			return []journal.Entry{n.add("bridge", "portmap"), result("10.0.0.2/24"), n.add("bridge", "portmap")}
		}},
		{"an ADD below 0.4.0", func(n *node) []journal.Entry {
			add := n.add("bridge", "portmap")
			add.CNIVersion = "0.3.1"
			return []journal.Entry{add, result("10.0.0.2/24")}
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "bridge", "portmap")
			n.journal("c1", row.entries(n)...)
			n.fails("portmap", "busy")
			if err := n.before(n.replayer(0), "c1"); err != nil {
				t.Fatal(err)
			}
			if called := n.called(); called != "portmap" {
				t.Fatalf("before the pass, called: %q", called)
			}
			if err := n.after(n.replayer(0), "c1"); err != nil {
				t.Error(err)
			}
			if called, left := n.called(), n.left(); called != "" || left != "c1" {
				t.Errorf("after the pass, called: %q, left: %q; want nothing, and the file", called, left)
			}
			if !strings.Contains(n.stderr.String(), "debt") {
				t.Errorf("the operator is told %q", n.stderr.String())
			}
		})
	}
}

// The cause may have been set right: args are back, say, with the runtime's cache.
func TestWhatFailedBeforeAndIsDeliveredNowIsOwedNoMore(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge")
	n.journal("c1", n.add("bridge"), result("10.0.0.2/24"))
	n.fails("bridge", "busy")
	if err := n.before(n.replayer(1), "c1"); err == nil {
		t.Error("the first try is no error")
	}
	n.called()
	d := Delivery{
		Call:    chain.Call{Args: "A=1", PrevResult: json.RawMessage(result("10.0.0.2/24"))},
		Plugins: parsed(t, `{"type":"bridge"}`),
	}
	if err := n.with("c1", func(f *journal.File) error { return n.replayer(1).AfterPass(t.Context(), f, d) }); err != nil {
		t.Error(err)
	}
	if called, left := n.called(), n.left(); called != "" || left != "" {
		t.Errorf("called: %q, left: %q; want nothing", called, left)
	}
}

func TestAnErrorInsteadOfThePassIsThePluginsOwn(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge", "portmap")
	n.journal("c1", n.add("bridge", "portmap"))
	n.fails("portmap", "rule not found: no such file or directory")
	want := types.Error{Code: 999, Msg: "rule not found: no such file or directory", Details: "d"}
	for try := 1; try <= 3; try++ { // it is the runtime's to see, however often
		own, ok := n.instead(n.replayer(1), "c1", chain.Call{}).(*types.Error)
		if !ok || *own != want {
			t.Fatalf("try %d: the error is %+v, want %+v", try, own, want)
		}
	}
	if attempts := n.record("c1").Attempts; len(attempts) != 1 || attempts[0].Plugin != "portmap" {
		t.Errorf("the attempts are %+v", attempts)
	}
	n.succeeds("portmap")
	if err := n.instead(n.replayer(1), "c1", chain.Call{}); err != nil || n.left() != "" {
		t.Errorf("once it succeeds: %v, left: %q", err, n.left())
	}
}

func TestAMissingPluginInsteadOfThePassIsAnError(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.journal("c1", n.add("bridge"))
	if err := n.instead(n.replayer(0), "c1", chain.Call{}); !errors.Is(err, chain.ErrMissing) || n.left() != "c1" {
		t.Errorf("the error is %v, left: %q", err, n.left())
	}
}

func TestABinaryThatHasMovedIsFoundWhereItIsToday(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge")
	add := n.add("bridge")
	add.Path = "/nonexistent"
	n.journal("c1", add)
	if err := n.instead(n.replayer(0), "c1", chain.Call{Path: n.bin}); err != nil || n.called() != "bridge" {
		t.Error(err, n.stderr.String())
	}
}

func TestInsteadOfThePassAPluginIsToldWhatOnlyTheRuntimeKnows(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge")
	n.journal("c1", n.add("bridge"))
	today := chain.Call{Args: "A=2", PrevResult: json.RawMessage(`{"a":1}`)}
	if err := n.instead(n.replayer(0), "c1", today); err != nil {
		t.Fatal(err)
	}
	calls := n.calls()
	if len(calls) != 1 || calls[0].args != "A=1" || calls[0].prevResult(t) != `{"a":1}` {
		t.Errorf("called: %+v", calls)
	}
}

func TestAFileWithEntriesOfALaterVersionStays(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		del  func(n *node) error
		says bool
	}{
		{"before the pass", func(n *node) error { return n.before(n.replayer(3), "c1") }, false},
		{"after the pass", func(n *node) error { return n.after(n.replayer(3), "c1") }, true},
		{"instead of the pass", func(n *node) error { return n.instead(n.replayer(3), "c1", chain.Call{}) }, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "bridge")
			n.journal("c1", n.add("bridge"), result("10.0.0.2/24"))
			n.write("c1", later())
			before, err := os.ReadFile(n.file("c1"))
			if err != nil {
				t.Fatal(err)
			}
			if err := row.del(n); err != nil {
				t.Error(err)
			}
			if called := n.called(); called != "bridge" {
				t.Errorf("called: %q", called)
			}
			if after, err := os.ReadFile(n.file("c1")); err != nil || string(after) != string(before) {
				t.Errorf("the file is now %q, %v; want it as it was", after, err)
			}
			if told := n.stderr.String(); row.says != strings.Contains(told, n.file("c1")+" stays") {
				t.Errorf("the operator is told %q", told)
			}
		})
	}
}

// An ADD that cannot be read back is counted like a plugin that fails.
func TestAnEntryThatMakesNoSenseBecomesADebt(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{true, false} {
		n := newNode(t, "bridge")
		add := n.add("bridge")
		add.RuntimeConfig = json.RawMessage(`[]`)
		n.journal("c1", add)
		del := n.after
		if before {
			del = n.before
		}
		if err := del(n.replayer(1), "c1"); err == nil {
			t.Error("the first try is no error")
		}
		if err := del(n.replayer(1), "c1"); err != nil || n.called() != "" || n.left() != "c1" {
			t.Errorf("%v, left: %q", err, n.left())
		}
		if err := n.instead(n.replayer(1), "c1", chain.Call{}); err == nil || n.called() != "" || n.left() != "c1" {
			t.Errorf("instead of the pass: %v, left: %q", err, n.left())
		}
	}
}

// Bookkeeping that fails is never a reason for DEL to fail. A closed file
// stands for a read-only file system here.
func TestWhatCannotBeJournaledIsSaidAndHoldsNobody(t *testing.T) {
	t.Parallel()
	type del func(Replayer, context.Context, *journal.File) error
	before := del(func(r Replayer, ctx context.Context, f *journal.File) error { return r.BeforePass(ctx, f, lost) })
	after := del(func(r Replayer, ctx context.Context, f *journal.File) error { return r.AfterPass(ctx, f, lost) })
	instead := del(func(r Replayer, ctx context.Context, f *journal.File) error {
		return r.InsteadOfPass(ctx, f, chain.Call{})
	})
	for _, row := range []struct {
		name  string
		del   del
		fails bool
		err   bool
		says  string
	}{
		{"that nothing is owed any more", before, false, false, "cannot be noted"},
		{"that the file goes", after, false, false, "the journal file stays"},
		{"that the file goes, instead of the pass", instead, false, false, "the journal file stays"},
		{"a failure before the pass", before, true, false, "cannot be journaled"},
		{"a failure after the pass", after, true, false, "cannot be journaled"},
		{"a failure instead of the pass, which is the plugin's", instead, true, true, "cannot be journaled"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "bridge")
			n.journal("c1", n.add("bridge"))
			if row.fails {
				n.fails("bridge", "busy")
			}
			err := n.with("c1", func(f *journal.File) error {
				f.Close()
				return row.del(n.replayer(3), t.Context(), f)
			})
			if (err != nil) != row.err {
				t.Errorf("the error is %v", err)
			}
			if told := n.stderr.String(); !strings.Contains(told, row.says) {
				t.Errorf("the operator is told %q, not that it %s", told, row.says)
			}
			if left := n.left(); left != "c1" {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func TestContainerdTakesNoErrorOfOursForASuccess(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"not found", "Not found", "link not found: not found", "not not found found", "nonot foundt found",
		"no such file or directory", "open /run/netns/c1: no such file or directory: not found",
		"no such no such file or directory file or directory",
		fmt.Errorf("cannot read: %w", &fs.PathError{Op: "open", Path: "/not found/no such file or directory", Err: fs.ErrNotExist}).Error(),
		fmt.Errorf("cannot read: %w", &fs.PathError{Op: "open", Path: "/x", Err: errors.Join(os.ErrNotExist, errors.New("not found"))}).Error(),
		types.NewError(types.ErrIOFailure, "not found", "no such file or directory").Error(),
		(&FailedError{Plugin: "not found", Container: "c1"}).Error(),
		(&FailedError{Plugin: "no such file or directory", Container: "/data/not found/c1@eth0"}).Error(),
		fmt.Errorf("%w", &FailedError{Plugin: "p", Try: 1, Of: 3, Container: "/not found"}).Error(),
	} {
		for _, words := range forbidden {
			if got := Words(text); strings.Contains(got, words) {
				t.Errorf("Words(%q) = %q", text, got)
			}
		}
	}
	failed := &FailedError{Plugin: "port not found map", Try: 2, Of: 3, Container: "/not found/no such file or directory"}
	for _, words := range forbidden {
		if strings.Contains(failed.Error(), words) {
			t.Errorf("the error is %q", failed)
		}
	}
	for _, kept := range []string{"", "a plugin of another word: not, found", "/var/lib/durable-args/web/c1@eth0"} {
		if got := Words(kept); got != kept {
			t.Errorf("Words(%q) = %q", kept, got)
		}
	}
	failed = &FailedError{Plugin: "portmap", Try: 2, Of: 3, Container: "/var/lib/durable-args/web/c1@eth0"}
	if got := failed.Error(); !strings.Contains(got, `"portmap"`) || !strings.Contains(got, "try 2 of 3") || !strings.Contains(got, "durable-argsctl show "+failed.Container) {
		t.Errorf("the error is %q", got)
	}
}

func FuzzWords(f *testing.F) {
	for _, text := range append(slices.Clone(forbidden), "not not found found", "no such Not found file or directory") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, words := range forbidden {
			if got := Words(text); strings.Contains(got, words) {
				t.Errorf("Words(%q) = %q", text, got)
			}
		}
	})
}

// A DEL that comes late must not hurt who has the address now.
func TestALateDELTellsNoAddressThatIsSomebodyElses(t *testing.T) {
	t.Parallel()
	const mine = "10.0.0.2/24"
	for _, row := range []struct {
		name string
		// What is journaled before and after the attachment; nil if nothing.
		earlier, later func(n *node) []journal.Entry
		told           bool
		says           string
	}{
		{"nobody else is there", nil, nil, true, ""},
		{"a newer one has another address", nil, func(n *node) []journal.Entry {
			return []journal.Entry{n.add("bridge"), result("10.0.0.3/24")}
		}, true, ""},
		{"a newer one has no result yet", nil, func(n *node) []journal.Entry { return []journal.Entry{n.add("bridge")} }, true, ""},
		{"a newer one has the address, though it is gone as well", nil, func(n *node) []journal.Entry {
			return []journal.Entry{n.add("bridge"), result(mine)}
		}, false, "web/c2@eth0"},
		{"a newer one has the address in another subnet", nil, func(n *node) []journal.Entry {
			return []journal.Entry{n.add("bridge"), result("10.0.0.2/16")}
		}, false, "web/c2@eth0"},
		{"a living one has the address, though it is older by the clock", func(n *node) []journal.Entry {
			add := n.add("bridge")
			add.NetNS = n.alive()
			return []journal.Entry{add, result(mine)}
		}, nil, false, "web/c0@eth0"},
		{"an older one of which nobody can tell whether it lives has the address", func(n *node) []journal.Entry {
			add := n.add("bridge")
			add.NetNS = n.untold()
			return []journal.Entry{add, result(mine)}
		}, nil, false, "web/c0@eth0"},
		{"an older one that is gone had the address", func(n *node) []journal.Entry {
			return []journal.Entry{n.add("bridge"), result(mine)}
		}, nil, true, ""},
		{"a newer one had the address, and owes nothing any more", nil, func(n *node) []journal.Entry {
			return []journal.Entry{n.add("bridge"), result(mine), journal.Replayed{}}
		}, true, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for _, del := range []func(n *node) error{
				func(n *node) error { return n.before(n.replayer(3), "c1") },
				func(n *node) error { return n.after(n.replayer(3), "c1") },
				func(n *node) error { return n.instead(n.replayer(3), "c1", chain.Call{}) },
			} {
				n := newNode(t, "bridge", "portmap")
				if row.earlier != nil {
					n.journal("c0", row.earlier(n)...)
				}
				n.journal("c1", n.add("bridge", "portmap"), result(mine))
				if row.later != nil {
					n.journal("c2", row.later(n)...)
				}
				if err := del(n); err != nil {
					t.Fatal(err)
				}
				calls := n.calls()
				if len(calls) != 2 {
					t.Fatalf("called: %+v", calls)
				}
				for _, call := range calls {
					if got := call.prevResult(t); call.args != "A=1" || row.told && got != string(result(mine)) || !row.told && got != "" {
						t.Errorf("plugin %s has args %q and is told %q; to be told: want %v", call.plugin, call.args, got, row.told)
					}
				}
				if told := n.stderr.String(); (row.says == "") != (told == "") || !strings.Contains(told, row.says) {
					t.Errorf("the operator is told %q, want %q", told, row.says)
				}
			}
		})
	}
}

// Where nobody can have inherited the address, nobody is looked up. That
// nobody was shows in a neighbour that cannot be read.
func TestNeighboursAreLookedUpOnlyIfTheyMatter(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		entries func(n *node) []journal.Entry
		looked  bool
	}{
		{"the network namespace is alive", func(n *node) []journal.Entry {
			add := n.add("bridge")
			add.NetNS = n.alive()
			return []journal.Entry{add, result("10.0.0.2/24")}
		}, false},
		{"that of one of two ADDs is alive", func(n *node) []journal.Entry {
			add := n.add("bridge")
			add.NetNS = n.alive()
			return []journal.Entry{n.add("bridge"), add, result("10.0.0.2/24")}
		}, false},
		{"no result is journaled", func(n *node) []journal.Entry { return []journal.Entry{n.add("bridge")} }, false},
		{"the network namespace is gone", func(n *node) []journal.Entry {
			return []journal.Entry{n.add("bridge"), result("10.0.0.2/24")}
		}, true},
		{"nobody can tell whether it is alive", func(n *node) []journal.Entry {
			add := n.add("bridge")
			add.NetNS = n.untold()
			return []journal.Entry{add, result("10.0.0.2/24")}
		}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "bridge")
			n.journal("c1", row.entries(n)...)
			n.journal("c2", n.add("bridge"), result("10.0.0.9/24"))
			if err := os.Chmod(n.file("c2"), 0o644); err != nil {
				t.Fatal(err)
			}
			today := chain.Call{PrevResult: json.RawMessage(result("10.0.0.2/24"))}
			if err := n.instead(n.replayer(3), "c1", today); err != nil {
				t.Fatal(err)
			}
			calls := n.calls()
			if len(calls) != 1 {
				t.Fatalf("called: %+v", calls)
			}
			// What nobody knows is not told.
			if told := calls[0].prevResult(t) != ""; told == row.looked {
				t.Errorf("the plugin was given %s", calls[0].request)
			}
			if looked := strings.Contains(n.stderr.String(), "c2@eth0"); looked != row.looked {
				t.Errorf("the operator is told %q; looked up: want %v", n.stderr.String(), row.looked)
			}
		})
	}
}

func TestAPluginIsSentOnlyToTheNamespaceOfItsADD(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		netns func(n *node) (journal.NetNS, string) // on ADD, and the runtime's now
		want  func(onADD journal.NetNS, today string) string
	}{
		{"it is where it was", func(n *node) (journal.NetNS, string) {
			return n.identity(n.namespace("c1")[0]), ""
		}, func(onADD journal.NetNS, _ string) string { return onADD.Path }},
		{"it has another name now", func(n *node) (journal.NetNS, string) {
			paths := n.namespace("c1", "now")
			id := n.identity(paths[0])
			if err := os.Remove(paths[0]); err != nil {
				n.Fatal(err)
			}
			return id, paths[1]
		}, func(_ journal.NetNS, today string) string { return today }},
		{"it is gone, and the runtime names another", func(n *node) (journal.NetNS, string) {
			return n.gone(), n.namespace("other")[0]
		}, func(journal.NetNS, string) string { return "" }},
		{"its name was given to another", func(n *node) (journal.NetNS, string) {
			first, second := n.namespace("c1")[0], n.namespace("c2")[0]
			id := n.identity(first)
			if err := errors.Join(os.Remove(first), os.Rename(second, first)); err != nil {
				n.Fatal(err)
			}
			return id, first
		}, func(journal.NetNS, string) string { return "" }},
		{"it is our own", func(n *node) (journal.NetNS, string) { return n.alive(), "/proc/self/ns/net" },
			func(journal.NetNS, string) string { return "" }},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "bridge")
			onADD, today := row.netns(n)
			add := n.add("bridge")
			add.NetNS = onADD
			n.journal("c1", add)
			if err := n.instead(n.replayer(0), "c1", chain.Call{NetNS: today}); err != nil {
				t.Fatal(err)
			}
			calls := n.calls()
			if want := row.want(onADD, today); len(calls) != 1 || calls[0].netns != want {
				t.Errorf("called: %+v; want CNI_NETNS %q", calls, want)
			}
		})
	}
}
