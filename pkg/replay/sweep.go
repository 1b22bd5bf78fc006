package replay

import (
	"cmp"
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

// AliveError says that a replay was refused, because it would take down what
// may be running.
type AliveError struct{ Key journal.Key }

func (e *AliveError) Error() string {
	return fmt.Sprintf("replaying %s is refused: its network namespace is still there, so the container may be running", e.Key)
}

// Sweep replays and removes every attachment of a network that is neither
// valid nor alive. It goes on after an error, and returns all of them joined.
func (r Replayer) Sweep(ctx context.Context, network string, valid func(journal.Key) bool, today chain.Call) error {
	dead, err := r.Dead(network, valid)
	if len(dead) == 0 {
		return err
	}
	round, roundErr := r.Round(network, today)
	if roundErr != nil {
		return errors.Join(err, roundErr)
	}
	errs := []error{err}
	for _, key := range dead {
		// It may have been added again since we looked.
		if err := round.Replay(ctx, key, false); !errors.As(err, new(*AliveError)) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Dead returns the attachments of a network that are neither valid nor alive,
// in the order in which they have to be replayed: the newest first, since an
// address passed on among the dead is then free when its earlier holder's turn
// comes. The error tells of those that cannot be read, beside those returned.
//
// An attachment is alive if the network namespace of any of its ADDs is; if
// that cannot be told, it is left alone.
func (r Replayer) Dead(network string, valid func(journal.Key) bool) ([]journal.Key, error) {
	keys, err := r.Store.Keys(network)
	if err != nil {
		return nil, err
	}
	var errs []error
	var dead []journal.Key
	added := make(map[journal.Key]time.Time)
	for _, key := range keys {
		if valid(key) {
			continue
		}
		rec, err := r.Store.Read(key)
		if err == nil {
			var live bool
			if live, err = alive(rec); err == nil && !live {
				dead = append(dead, key)
				added[key] = newest(rec)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	slices.SortFunc(dead, func(a, b journal.Key) int {
		return cmp.Or(added[b].Compare(added[a]), cmp.Compare(a.String(), b.String()))
	})
	return dead, errors.Join(errs...)
}

// Round replays attachments of one network out of band: in GC, or because an
// operator says so. It knows who holds which address, and keeps account of what
// it has released.
type Round struct {
	replayer Replayer
	today    chain.Call
	owners   map[netip.Addr][]owner
}

// Round begins a round. A plugin whose binary is no longer where it was on ADD
// is looked for in the path of today, too.
func (r Replayer) Round(network string, today chain.Call) (*Round, error) {
	keys, err := r.Store.Keys(network)
	if err != nil {
		return nil, err
	}
	owners, err := r.owners(keys)
	if err != nil {
		return nil, err
	}
	return &Round{r, today, owners}, nil
}

// Replay runs every DEL that the journal holds of an attachment, and removes
// its file. It stops at the first plugin that fails, which it notes, and between
// two plugins once ctx is done.
//
// An attachment that is alive is refused with an *[AliveError]; one whose
// address is in the result of another that is newer or alive, with a
// *[ConflictError]. Both are replayed if forced, but then plugins are not told
// a result whose address is another's.
func (o *Round) Replay(ctx context.Context, key journal.Key, force bool) error {
	r := o.replayer
	f, err := r.Store.Lock(key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if f.Record().Corrupt() {
		aside, err := f.SetAside()
		if err == nil {
			r.say("no entry in %s can be read; it is kept as %s", f.Path(), aside)
		}
		return err
	}
	steps, err := o.steps(f.Record(), force)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		// What has begun is not broken off.
		if err := r.run(context.WithoutCancel(ctx), s, chain.Call{}); err != nil {
			_, noteErr := r.note(f, failure{s.plugin.Type, err})
			return errors.Join(fmt.Errorf("replaying DEL of plugin %q for %s: %w", s.plugin.Type, key, err), noteErr)
		}
	}
	r.Remove(f)
	if r.Released != nil && f.Record().Unknown == 0 {
		r.Released(key)
	}
	o.release(f.Record())
	return nil
}

// Del is one DEL of one plugin.
type Del struct {
	Plugin chain.Plugin
	Call   chain.Call
}

// Plan returns the DELs that Replay would run, in order, and changes nothing.
// What it returns counts as done when the next attachment of the round is planned.
func (o *Round) Plan(key journal.Key, force bool) ([]Del, error) {
	rec, err := o.replayer.Store.Read(key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	steps, err := o.steps(rec, force)
	if err != nil {
		return nil, err
	}
	var dels []Del
	for _, s := range steps {
		dels = append(dels, Del{s.plugin, s.located(chain.Call{})})
	}
	o.release(rec)
	return dels, nil
}

// steps returns what a replay of rec has to run, unless it is refused.
func (o *Round) steps(rec journal.Record, force bool) ([]step, error) {
	if !force {
		live, err := alive(rec)
		if err == nil && live {
			err = &AliveError{rec.Key}
		}
		if err != nil {
			return nil, err
		}
	}
	steps, err := plan(rec, o.today)
	if err != nil {
		return nil, err
	}
	if err := conflict(rec, o.owners); err != nil {
		if !force {
			return nil, err
		}
		o.replayer.say("plugins are not told the result of %s: %v", rec.Key, err)
		steps = withoutResult(steps)
	}
	return steps, nil
}

// release takes from an attachment the addresses that it held.
func (o *Round) release(rec journal.Record) {
	for _, add := range rec.Adds {
		for _, address := range Addresses(add.Result) {
			o.owners[address] = slices.DeleteFunc(o.owners[address], func(o owner) bool { return o.key == rec.Key })
		}
	}
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
		var held []netip.Addr
		for _, a := range slices.Backward(rec.Adds) {
			if a.Result != nil {
				held = Addresses(a.Result)
				break
			}
		}
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
		for _, address := range Addresses(add.Result) {
			for _, o := range owners[address] {
				if o.key != rec.Key && (o.alive || o.added.After(add.Time)) {
					return &ConflictError{rec.Key, address, o.key}
				}
			}
		}
	}
	return nil
}

// Addresses returns the IP addresses of a result of any version; SPEC 0.2.0
// had ip4 and ip6 where later ones have ips.
func Addresses(result json.RawMessage) []netip.Addr {
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
