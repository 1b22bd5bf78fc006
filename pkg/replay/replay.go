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
	"strings"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
)

// Replayer replays attachments.
type Replayer struct {
	Runner chain.Runner
	// Attempts is how many failed replays are returned as errors before the
	// attachment becomes a debt.
	Attempts int
	// Stderr gets what an operator should know though DEL succeeds, and the
	// words of plugins that must not be in an error.
	Stderr io.Writer
}

// FailedError says that a replay has failed and should be tried again.
type FailedError struct {
	Plugin string // the type of the plugin that failed first
	Try    int    // which try this was, from 1
	Of     int    // how many there are before DEL succeeds regardless
	File   string // the attachment's file, whose last line has the plugin's words
}

func (e *FailedError) Error() string {
	return Words(fmt.Sprintf("replaying DEL of plugin %q failed (try %d of %d); for its own words run: tail -n 1 %s",
		e.Plugin, e.Try, e.Of, e.File))
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

// AfterPass replays what a DEL that has already passed down the whole chain did
// not deliver, and removes the file once nothing is owed. Since the pass has
// succeeded, it goes on after a plugin that fails. The error is a
// *[FailedError] if the runtime should send DEL again.
func (r Replayer) AfterPass(ctx context.Context, f *journal.File, d Delivery) error {
	steps, err := owed(f.Record(), d)
	if err != nil {
		return r.settle(f, []failure{{"", err}})
	}
	var failures []failure
	for _, s := range steps {
		if err := r.run(ctx, s); err != nil {
			failures = append(failures, failure{s.plugin.Type, err})
		}
	}
	return r.settle(f, failures)
}

// failure is a step that failed.
type failure struct {
	plugin string
	err    error
}

func (r Replayer) run(ctx context.Context, s step) error {
	if netnsid.ID(s.netns).Usable() {
		s.call.NetNS = s.netns.Path
	}
	return r.Runner.Del(ctx, s.plugin, s.call)
}

// settle writes down how a replay ended.
func (r Replayer) settle(f *journal.File, failures []failure) error {
	rec := f.Record()
	if len(failures) == 0 {
		if rec.Unknown > 0 {
			r.say("%s stays: %d of its entries are of a version that this one does not know", f.Path(), rec.Unknown)
			return nil
		}
		if err := f.Remove(); err != nil {
			r.say("nothing is owed any more, but the journal file stays: %v", err)
		}
		return nil
	}

	attempt := journal.Attempt{Plugin: failures[0].plugin}
	missing := true
	for i, failed := range failures {
		r.say("replaying DEL of plugin %q for %s failed: %v", failed.plugin, rec.Key, failed.err)
		if i > 0 {
			attempt.Error += "; " + failed.plugin + ": "
		}
		attempt.Error += failed.err.Error()
		missing = missing && errors.Is(failed.err, chain.ErrMissing)
	}
	try := len(rec.Attempts) + 1
	// A debt may be tried for months: it is written down again only when
	// there is something new to say.
	if last := len(rec.Attempts) - 1; try <= r.Attempts || last < 0 || rec.Attempts[last].Error != attempt.Error {
		if err := f.Append(attempt); err != nil {
			// Tries that cannot be counted would hold the pod for ever.
			r.say("the failed try cannot be journaled: %v", err)
			try = r.Attempts + 1
		}
	}
	if missing || try > r.Attempts {
		r.say("%s stays in the journal as a debt, to be replayed later", rec.Key)
		return nil
	}
	return &FailedError{Plugin: attempt.Plugin, Try: try, Of: r.Attempts, File: f.Path()}
}

// say writes a line for the operator; a full stderr is no reason to fail.
func (r Replayer) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.Stderr, "durable-args: "+format+"\n", args...)
}
