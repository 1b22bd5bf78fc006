// Package repair keeps libcni's cache in step with the journal: it writes files
// again that a crash has taken, and removes those of attachments that have been
// replayed.
//
// Runtimes with a libcni before 1.2, and podman, call no plugin at all while an
// attachment's cache file is unreadable, so there nothing that a plugin does on
// DEL can help; the file has to be put right again.
//
// One journal goes with one cache: all conflists that share a dataDir have to
// share a cacheDir, too.
package repair

import (
	"context"
	"errors"
	"io/fs"

	"github.com/durable-args/durable-args/pkg/cnicache"
	"github.com/durable-args/durable-args/pkg/journal"
)

// Action is what was done about an attachment's cache file.
type Action string

const (
	// Kept is a file that libcni can read.
	Kept Action = "kept"
	// Repaired is a file that was written from the journal, or would have been
	// but for a dry run.
	Repaired Action = "repaired"
	// Skipped is one that is not ours to write, or of which too little is
	// known. Another try would end alike.
	Skipped Action = "skipped"
	// Failed is one that could not be written this time.
	Failed Action = "failed"
)

// Outcome is what was done for one attachment.
type Outcome struct {
	Key  journal.Key
	Path string
	// Found is empty if it could not be told.
	Found  cnicache.State
	Action Action
	// Reason is empty unless the file was Skipped or Failed.
	Reason string
	// Err is the error, if that was the reason.
	Err error
}

// Repair writes every cache file that is missing, or that libcni cannot read,
// again from the journal, with the fields that libcni writes. On a dry run it
// says what it would do, and writes nothing.
//
// It touches no file that libcni can read, none whose attachment has no
// journaled result, and none whose name several journaled attachments claim. A
// file that is missing though its DEL has been tried stays so: libcni has
// removed it, and the attachment is a debt.
//
// What it cannot know, the file lacks: capability args that no plugin of the
// chain declares, and what plugins behind a last stanza have added to the result.
//
// It goes on after an error. The error that it returns says what kept it from
// seeing all attachments, which may be that ctx was cancelled; the outcomes, in
// the order of their keys, are those of the others.
func Repair(ctx context.Context, store *journal.Store, cacheDir string, dryRun bool) ([]Outcome, error) {
	claims, err := claimsOf(store)
	if !dryRun {
		err = errors.Join(err, cnicache.Sweep(cacheDir))
	}
	r := repairer{store, cacheDir, claims, dryRun}
	var outcomes []Outcome
	for _, key := range claims.keys() {
		if ctx.Err() != nil {
			return outcomes, errors.Join(err, ctx.Err())
		}
		o, err := r.repair(key)
		if !errors.Is(err, fs.ErrNotExist) { // it has gone since we looked
			outcomes = append(outcomes, o)
		}
	}
	return outcomes, err
}

type repairer struct {
	store    *journal.Store
	cacheDir string
	claims   claims
	dryRun   bool
}

// repair does what is to be done for one attachment. The error wraps
// fs.ErrNotExist if the journal does not hold it any more.
func (r repairer) repair(key journal.Key) (Outcome, error) {
	o := r.look(key)
	if o.Action != Repaired {
		return o, nil
	}
	// Held, so that no DEL comes between the journal and the cache: it would
	// leave a file behind that nobody removes.
	rec, release, err := r.hold(key)
	if errors.Is(err, journal.ErrLocked) {
		return o.skipped("in use just now"), nil
	}
	if err != nil {
		return o.unknown(err), err
	}
	defer release()
	if o = r.look(key); o.Action != Repaired {
		return o, nil
	}
	a, reason := attachment(rec, o.Found)
	if reason != "" {
		return o.skipped(reason), nil
	}
	if _, err := a.Encode(); err != nil {
		return o.unknown(err), nil
	}
	if r.dryRun {
		return o, nil
	}
	if err := cnicache.Write(r.cacheDir, a); err != nil {
		o.Action, o.Reason, o.Err = Failed, err.Error(), err
	}
	return o, nil
}

// look says whether the attachment's file is to be repaired.
func (r repairer) look(key journal.Key) Outcome {
	o := Outcome{Key: key, Path: id(key).Path(r.cacheDir)}
	file, err := cnicache.Read(r.cacheDir, id(key))
	o.Found = file.State
	switch {
	case err != nil:
		return o.unknown(err)
	case file.Foreign(id(key)):
		return o.skipped("another's file")
	case file.State == cnicache.Readable:
		o.Action = Kept
		return o
	case r.claims.shared(key):
		return o.skipped("name is another's, too")
	}
	o.Action = Repaired
	return o
}

func (r repairer) hold(key journal.Key) (rec journal.Record, release func(), err error) {
	if r.dryRun {
		rec, err = r.store.Read(key)
		return rec, func() {}, err
	}
	f, err := r.store.TryLock(key)
	if err != nil {
		return rec, nil, err
	}
	return f.Record(), func() { _ = f.Close() }, nil
}

func (o Outcome) skipped(reason string) Outcome {
	o.Action, o.Reason = Skipped, reason
	return o
}

func (o Outcome) unknown(err error) Outcome {
	o.Action, o.Reason, o.Err = Skipped, err.Error(), err
	return o
}

// attachment is what libcni would have cached, or the reason why that is not known.
func attachment(rec journal.Record, found cnicache.State) (a cnicache.Attachment, reason string) {
	add := rec.Newest()
	switch {
	case rec.Unknown > 0:
		return a, "of a later version"
	case add == nil:
		return a, "nothing is owed"
	case add.Result == nil:
		return a, "no result journaled"
	case add.Conflist == nil:
		// Its chain was wrapped, and came from elsewhere than confDir.
		return a, "no conflist journaled"
	case found == cnicache.Missing && len(rec.Attempts) > 0:
		return a, "DEL has been tried"
	}
	return cnicache.Attachment{
		ID:             id(rec.Key),
		NetNS:          add.NetNS.Path,
		Config:         add.Conflist,
		Args:           cnicache.ParseArgs(string(add.Args)),
		CapabilityArgs: add.RuntimeConfig,
		Result:         add.Result,
	}, ""
}

func id(key journal.Key) cnicache.ID { return cnicache.ID(key) }

// Differences returns the names of libcni's fields in which the attachment's
// cache file, though libcni can read it, says something else than the journal.
func Differences(cacheDir string, rec journal.Record) ([]string, error) {
	file, err := cnicache.Read(cacheDir, id(rec.Key))
	if err != nil || file.State != cnicache.Readable || file.Legacy || file.Foreign(id(rec.Key)) {
		return nil, err
	}
	a, reason := attachment(rec, file.State)
	if reason != "" {
		return nil, nil
	}
	return a.Differences(*file.Attachment), nil
}
