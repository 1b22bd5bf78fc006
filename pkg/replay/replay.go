// Package replay runs DEL down a chain with what the journal holds, where the
// runtime's own DEL did not carry it.
//
// Not every plugin bears a second DEL, though the spec demands it, so a plugin
// is called again only if its request differs from the one that the runtime
// gave it: CNI_ARGS as a set of pairs, its capability args and the result as
// JSON values, and its configuration, which must be in today's conflist.
//
// A replay that fails must neither be lost nor hold the pod for ever. It is
// noted in the journal and returned as an error, so that the runtime tries
// again; after a number of tries, or at once if no further try can help, DEL
// succeeds and the attachment stays in the journal as a debt.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
)

// Replayer replays the attachments of a store.
type Replayer struct {
	Store  *journal.Store
	Runner chain.Runner
	// Attempts is how many failed replays are returned as errors before the
	// attachment becomes a debt.
	Attempts int
	// Stderr gets what an operator should know though DEL succeeds, and the
	// words of plugins that must not be in an error.
	Stderr io.Writer
	// Released is called, if it is not nil, for each attachment that a sweep has
	// replayed, while the attachment is still locked. No runtime's DEL will
	// follow: what libcni has cached of the attachment has to go, too.
	Released func(journal.Key)
}

// FailedError says that a replay has failed and should be tried again.
type FailedError struct {
	Plugin    string // the type of the plugin that failed first
	Try       int    // which try this was, from 1
	Of        int    // how many there are before DEL succeeds regardless
	Container string // its ID, which durable-argsctl show takes
}

func (e *FailedError) Error() string {
	return Words(fmt.Sprintf("replaying DEL of plugin %q failed (try %d of %d); for its own words run: durable-argsctl show %s",
		e.Plugin, e.Try, e.Of, e.Container))
}

// Words returns s without the words that a DEL error must not contain:
// containerd takes any DEL error with "not found" for success and, if the
// netns is empty, also one with "no such file or directory" (go-cni, Remove).
func Words(s string) string {
	return strings.NewReplacer(
		"not found", "absent", "Not found", "Absent",
		"no such file or directory", "absent file or directory",
	).Replace(s)
}

// BeforePass replays what a DEL that is about to pass down the chain will not
// deliver, before anything else runs: no plugin then sees a stale address after
// it has been released. It stops at the first error (SPEC, "Deletion"). It
// leaves the file, in which it notes that nothing is owed any more. The error is
// a *[FailedError] if the runtime should send DEL again.
func (r Replayer) BeforePass(ctx context.Context, f *journal.File, d Delivery) error {
	rec := f.Record()
	steps, err := owed(rec, d)
	if err != nil {
		return r.retry(f, failure{"", err})
	}
	if len(steps) == 0 {
		return nil
	}
	if failed := r.runAll(ctx, r.defuse(rec, steps), d.Call); failed != nil {
		return r.retry(f, *failed)
	}
	if rec.Unknown > 0 {
		return nil // the note would settle what we cannot read
	}
	if err := f.Append(journal.Replayed{}); err != nil {
		r.say("the replay of %s is done, but cannot be noted: %v", rec.Key, err)
	}
	return nil
}

// AfterPass replays what a DEL that has already passed down the whole chain did
// not deliver, and removes the file once nothing is owed. Since the pass has
// succeeded, it goes on after a plugin that fails. The error is a
// *[FailedError] if the runtime should send DEL again, and its pass can succeed
// once more.
func (r Replayer) AfterPass(ctx context.Context, f *journal.File, d Delivery) error {
	rec := f.Record()
	steps, err := owed(rec, d)
	if err != nil {
		return r.retry(f, failure{"", err})
	}
	resulted := slices.ContainsFunc(rec.Adds, func(a journal.Add) bool { return a.Result != nil })
	if len(steps) > 0 && resulted && len(rec.Attempts) > 0 {
		// BeforePass has just failed to replay this. By now the chain may have
		// released the address, and somebody else may have it.
		r.say("%s stays in the journal as a debt, to be replayed later", rec.Key)
		return nil
	}
	var failures []failure
	for _, s := range r.defuse(rec, steps) {
		if err := r.run(ctx, s, d.Call); err != nil {
			failures = append(failures, failure{s.plugin.Type, err})
		}
	}
	if len(failures) == 0 {
		r.Remove(f)
		return nil
	}
	err = r.retry(f, failures...)
	if err != nil && !r.repeatable(ctx, d) {
		r.say("%s stays in the journal as a debt: the chain does not bear a second DEL, so the runtime would try again in vain", rec.Key)
		return nil
	}
	return err
}

// repeatable runs the pass again that the runtime has just run, as it will if
// DEL fails, and reports whether the chain bears that. Where it does not, as
// with host-device, an error of ours would hold the pod for ever.
func (r Replayer) repeatable(ctx context.Context, d Delivery) bool {
	for _, p := range slices.Backward(d.Plugins) {
		if r.Runner.Del(ctx, p, d.Call) != nil {
			return false
		}
	}
	return true
}

// InsteadOfPass runs DEL down the chain with what the journal holds, and removes
// the file. What the journal lacks comes from today, the runtime's own call. It
// stops at the first error, which it returns untouched: the plugin was called as
// the runtime would have called it.
func (r Replayer) InsteadOfPass(ctx context.Context, f *journal.File, today chain.Call) error {
	rec := f.Record()
	steps, err := plan(rec, today)
	if err != nil {
		return err
	}
	if failed := r.runAll(ctx, r.defuse(rec, steps), today); failed != nil {
		if _, err := r.note(f, *failed); err != nil {
			r.say("the failed DEL cannot be journaled: %v", err)
		}
		return failed.err
	}
	r.Remove(f)
	return nil
}

// defuse takes the result out of steps if an address in it belongs to somebody
// else by now. A DEL that comes late, after a reboot say, would else remove the
// firewall rules of the container that has inherited the address. While the
// network namespace is alive nobody can have, and nothing is looked up.
func (r Replayer) defuse(rec journal.Record, steps []step) []step {
	if !slices.ContainsFunc(steps, func(s step) bool { return s.result != nil }) {
		return steps
	}
	if live, err := alive(rec); err == nil && live {
		return steps
	}
	keys, err := r.Store.Keys(rec.Key.Network)
	if err == nil {
		var owners map[netip.Addr][]owner
		if owners, err = r.owners(keys); err == nil {
			err = conflict(rec, owners)
		}
	}
	if err == nil {
		return steps
	}
	r.say("plugins are not told the result of %s: %v", rec.Key, err)
	return withoutResult(steps)
}

func withoutResult(steps []step) []step {
	steps = slices.Clone(steps)
	for i := range steps {
		steps[i].call.PrevResult = nil
	}
	return steps
}

// failure is a step that failed.
type failure struct {
	plugin string
	err    error
}

func (r Replayer) run(ctx context.Context, s step, today chain.Call) error {
	return r.Runner.Del(ctx, s.plugin, s.located(today))
}

// located is s's call with the network namespace, if that is still there.
func (s step) located(today chain.Call) chain.Call {
	id := netnsid.ID(s.netns)
	if id.Path == "" { // imported: only the runtime knows
		s.call.NetNS = today.NetNS
		return s.call
	}
	s.call.NetNS = id.Find(id.Path, today.NetNS)
	return s.call
}

func (r Replayer) runAll(ctx context.Context, steps []step, today chain.Call) *failure {
	for _, s := range steps {
		if err := r.run(ctx, s, today); err != nil {
			return &failure{s.plugin.Type, err}
		}
	}
	return nil
}

// Remove removes a file that owes nothing any more. It never fails: DEL has
// done its work.
func (r Replayer) Remove(f *journal.File) {
	if unknown := f.Record().Unknown; unknown > 0 {
		r.say("%s stays: %d of its entries are of a version that this one does not know", f.Path(), unknown)
		return
	}
	if err := f.Remove(); err != nil {
		r.say("nothing is owed any more, but the journal file stays: %v", err)
	}
}

// retry writes down a failed replay, and returns an error if the runtime
// should try again.
func (r Replayer) retry(f *journal.File, failures ...failure) error {
	key := f.Record().Key
	missing := true
	for _, failed := range failures {
		r.say("replaying DEL of plugin %q for %s failed: %v", failed.plugin, key, failed.err)
		missing = missing && errors.Is(failed.err, chain.ErrMissing)
	}
	try, err := r.note(f, failures...)
	if err != nil {
		// Tries that cannot be counted would hold the pod for ever.
		r.say("the failed try cannot be journaled: %v", err)
	}
	if missing || err != nil || try > r.Attempts {
		r.say("%s stays in the journal as a debt, to be replayed later", key)
		return nil
	}
	return &FailedError{Plugin: failures[0].plugin, Try: try, Of: r.Attempts, Container: key.ContainerID}
}

// note appends an attempt, and returns how many there have been since ADD. A
// debt may be tried for months: beyond Attempts, the same failure is not
// written down again.
func (r Replayer) note(f *journal.File, failures ...failure) (try int, err error) {
	attempt := journal.Attempt{Plugin: failures[0].plugin, Error: failures[0].err.Error()}
	for _, failed := range failures[1:] {
		attempt.Error += "; " + failed.plugin + ": " + failed.err.Error()
	}
	before := f.Record().Attempts
	try = len(before) + 1
	if try > 1 && try > r.Attempts {
		if last := before[len(before)-1]; last.Plugin == attempt.Plugin && last.Error == attempt.Error {
			return try, nil
		}
	}
	return try, f.Append(attempt)
}

// say writes a line for the operator; a full stderr is no reason to fail.
func (r Replayer) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.Stderr, "durable-args: "+format+"\n", args...)
}
