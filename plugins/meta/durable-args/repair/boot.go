package repair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/durable-args/durable-args/pkg/cnicache"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
)

// Say takes a line for the operator, in the form of fmt.Printf.
type Say func(format string, args ...any)

// AfterBoot repairs the cache at the first call after a boot. At every other
// call it reads <dataDir>/.boot, and the kernel's boot ID to compare it with,
// and no more (some 0.06 ms of CPU time); where there is no dataDir, there is
// nothing to do. What goes wrong is said, and is nobody's failure.
//
// If a file cannot be written, as on a full disk, the next call tries again. If
// another process is repairing at this moment, AfterBoot does not wait: libcni
// has read the cache before it calls a plugin, so the verb that follows does
// not depend on it.
func AfterBoot(dataDir, cacheDir string, say Say) {
	err := afterBoot(dataDir, cacheDir, say)
	if err != nil && !errors.Is(err, errNoJournal) {
		say("repairing libcni's cache after the boot: %v", err)
	}
}

var errNoJournal = errors.New("no journal")

func afterBoot(dataDir, cacheDir string, say Say) error {
	store, err := journal.Open(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return errNoJournal
	}
	if err != nil {
		return err
	}
	defer store.Close()
	boot, err := netnsid.BootID()
	if err != nil {
		return err
	}
	return store.OncePerBoot(boot, func() error {
		outcomes, err := Repair(context.Background(), store, cacheDir, false)
		if err != nil {
			// Not for the next call: it may stay like this for long.
			say("repairing libcni's cache after the boot: %v", err)
		}
		return report(outcomes, cacheDir, say)
	})
}

// report says what a repair has done, and returns an error if it is to be tried again.
func report(outcomes []Outcome, cacheDir string, say Say) error {
	var failed []error
	var repaired, damaged int
	for _, o := range outcomes {
		switch {
		case o.Action == Repaired:
			repaired++
		case o.Action == Failed:
			failed = append(failed, fmt.Errorf("%s: %w", o.Key, o.Err))
		case o.Action == Skipped && (o.Found == cnicache.Damaged || o.Err != nil):
			damaged++
		}
	}
	if repaired > 0 {
		say("%d files in libcni's cache in %s were missing or damaged, and are written again from the journal", repaired, cacheDir)
	}
	if damaged > 0 {
		say("%d files in libcni's cache in %s are damaged and stay so; to see why, run: durable-argsctl repair --dry-run", damaged, cacheDir)
	}
	return errors.Join(failed...)
}

// Released returns what to call once an attachment has been replayed out of
// band, when no runtime will: it removes the attachment's cache file, unless
// that may be another attachment's, too. A file that stays is said, and is
// nobody's failure.
func Released(store *journal.Store, cacheDir string, say Say) func(journal.Key) {
	var others claims
	return func(key journal.Key) {
		var err error
		if others == nil { // read once: a sweep may release thousands
			others, err = claimsOf(store)
		}
		others.drop(key)
		switch {
		case err != nil:
			others = nil
		case others.shared(key):
			say("%s stays: another attachment's file has the same name", id(key).Path(cacheDir))
		default:
			err = cnicache.Remove(cacheDir, id(key))
		}
		if err != nil {
			say("the file of %s stays in libcni's cache: %v", key, err)
		}
	}
}
