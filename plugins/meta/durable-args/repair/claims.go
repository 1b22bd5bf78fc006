package repair

import (
	"cmp"
	"errors"
	"slices"

	"github.com/durable-args/durable-args/pkg/journal"
)

// claims are the attachments in the journal by the names of their cache files.
type claims map[string][]journal.Key

// claimsOf returns the claims of a store. Those that it could read are
// returned even with an error.
func claimsOf(store *journal.Store) (claims, error) {
	c := make(claims)
	networks, err := store.Networks()
	errs := []error{err}
	for _, network := range networks {
		keys, err := store.Keys(network)
		errs = append(errs, err)
		for _, key := range keys {
			name := id(key).Name()
			c[name] = append(c[name], key)
		}
	}
	return c, errors.Join(errs...)
}

// shared reports whether another attachment's file has the same name as key's.
func (c claims) shared(key journal.Key) bool {
	return slices.ContainsFunc(c[id(key).Name()], func(k journal.Key) bool { return k != key })
}

// drop takes the claim of key back.
func (c claims) drop(key journal.Key) {
	name := id(key).Name()
	c[name] = slices.DeleteFunc(c[name], func(k journal.Key) bool { return k == key })
}

// keys returns all attachments, in the order of their keys.
func (c claims) keys() []journal.Key {
	var keys []journal.Key
	for _, claimants := range c {
		keys = append(keys, claimants...)
	}
	slices.SortFunc(keys, func(a, b journal.Key) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
	})
	return keys
}
