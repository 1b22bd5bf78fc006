package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
)

// ConflictError says that a replay was refused, because an address that it
// would clean up after belongs to somebody else by now.
type ConflictError struct {
	Key     journal.Key
	Address netip.Addr
	Owner   journal.Key
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("replaying %s is refused: its address %s belongs to %s now; it can be replayed when that is gone", e.Key, e.Address, e.Owner)
}

// Sweep replays and removes every attachment of a network that is neither
// valid nor alive. It goes on after an error, and returns all of them joined.
//
// An attachment is alive if the network namespace of any of its ADDs is; if
// that cannot be told, it is left alone. One whose address is in the result of
// another that is newer or alive is refused with a *[ConflictError].
func (r Replayer) Sweep(ctx context.Context, network string, valid func(journal.Key) bool, today chain.Call) error {
	keys, err := r.Store.Keys(network)
	if err != nil {
		return err
	}
	var errs []error
	var dead []candidate
	for _, key := range keys {
		if valid(key) {
			continue
		}
		rec, err := r.Store.Read(key)
		if err == nil {
			var live bool
			if live, err = alive(rec); err == nil && !live {
				dead = append(dead, candidate{key, newest(rec)})
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if len(dead) == 0 {
		return errors.Join(errs...)
	}
	owners, err := r.owners(keys)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	// The newest first: an address passed on among the dead is then free when
	// its earlier holder's turn comes.
	slices.SortFunc(dead, func(a, b candidate) int { return b.added.Compare(a.added) })
	for _, c := range dead {
		if err := r.sweep(ctx, c.key, owners, today); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// candidate is a dead attachment.
type candidate struct {
	key   journal.Key
	added time.Time
}

func (r Replayer) sweep(ctx context.Context, key journal.Key, owners map[netip.Addr][]owner, today chain.Call) error {
	f, err := r.Store.Lock(key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	rec := f.Record()
	if rec.Corrupt() {
		aside, err := f.SetAside()
		r.say("no entry in %s can be read; it is kept as %s", f.Path(), aside)
		return err
	}
	// It may have been added again since we looked.
	if live, err := alive(rec); err != nil || live {
		return err
	}
	if err := conflict(rec, owners); err != nil {
		return err
	}
	steps, err := plan(rec, today)
	if err != nil {
		return err
	}
	if failed := r.runAll(ctx, steps, chain.Call{}); failed != nil {
		_, err := r.note(f, *failed)
		return errors.Join(fmt.Errorf("replaying DEL of plugin %q for %s: %w", failed.plugin, key, failed.err), err)
	}
	r.Remove(f)
	if r.Released != nil && rec.Unknown == 0 {
		r.Released(key)
	}
	for address := range owners {
		owners[address] = slices.DeleteFunc(owners[address], func(o owner) bool { return o.key == key })
	}
	return nil
}

// alive reports whether any namespace that rec knows of is still there.
func alive(rec journal.Record) (bool, error) {
	for _, add := range rec.Adds {
		if live, err := netnsid.ID(add.NetNS).Alive(); err != nil || live {
			return live, err
		}
	}
	return false, nil
}

func newest(rec journal.Record) time.Time {
	if add := rec.Newest(); add != nil {
		return add.Time
	}
	return time.Time{}
}

// owner is an attachment that holds an address.
type owner struct {
	key   journal.Key
	added time.Time
	alive bool
}

// owners returns who holds which address. The newest result of an attachment
// counts.
func (r Replayer) owners(keys []journal.Key) (map[netip.Addr][]owner, error) {
	owners := make(map[netip.Addr][]owner)
	for _, key := range keys {
		rec, err := r.Store.Read(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		add := rec.Newest()
		if add == nil {
			continue
		}
		held := addresses(add.Result)
		if len(held) == 0 {
			continue
		}
		live, err := alive(rec)
		for _, address := range held {
			// Whether it lives may not be told: then it counts as alive.
			owners[address] = append(owners[address], owner{key, add.Time, live || err != nil})
		}
	}
	return owners, nil
}

// conflict refuses rec if any of its addresses has another owner that is newer
// or alive. The clock alone would not do: it may have been set back.
func conflict(rec journal.Record, owners map[netip.Addr][]owner) error {
	for _, add := range rec.Adds {
		for _, address := range addresses(add.Result) {
			for _, o := range owners[address] {
				if o.key != rec.Key && (o.alive || o.added.After(add.Time)) {
					return &ConflictError{rec.Key, address, o.key}
				}
			}
		}
	}
	return nil
}

// addresses returns the IP addresses of a result of any version; SPEC 0.2.0
// had ip4 and ip6 where later ones have ips.
func addresses(result json.RawMessage) []netip.Addr {
	var r struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
		IP4 struct {
			IP string `json:"ip"`
		} `json:"ip4"`
		IP6 struct {
			IP string `json:"ip"`
		} `json:"ip6"`
	}
	if json.Unmarshal(result, &r) != nil {
		return nil
	}
	texts := []string{r.IP4.IP, r.IP6.IP}
	for _, ip := range r.IPs {
		texts = append(texts, ip.Address)
	}
	var found []netip.Addr
	for _, text := range texts {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			found = append(found, prefix.Addr())
		}
	}
	return found
}

func containsAll(have, want []netip.Addr) bool {
	for _, address := range want {
		if !slices.Contains(have, address) {
			return false
		}
	}
	return len(want) > 0
}
