package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/pkg/journal"
)

// openJournal is store, but that there is none is no error: the store is then
// nil, and the operator has been told.
func (n *node) openJournal(cmd *cobra.Command) (*journal.Store, error) {
	store, err := n.store()
	if errors.Is(err, fs.ErrNotExist) {
		say(cmd, "there is no journal in %s, so nothing is journaled", n.dataDir)
		return nil, nil
	}
	return store, err
}

// allKeys returns every attachment that has a file, sorted. The error tells of
// networks that cannot be read, beside those returned.
func allKeys(store *journal.Store) ([]journal.Key, error) {
	networks, err := store.Networks()
	if err != nil {
		return nil, err
	}
	var all []journal.Key
	var errs []error
	for _, network := range networks {
		keys, err := store.Keys(network)
		slices.SortFunc(keys, func(a, b journal.Key) int {
			return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
		})
		all = append(all, keys...)
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// selection is which of a container's attachments are meant.
type selection struct{ network, ifName string }

func (s *selection) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.network, "network", "", "only the attachment to this network")
	cmd.Flags().StringVar(&s.ifName, "ifname", "", "only the attachment with this interface name")
}

func (s selection) given() bool { return s != selection{} }

// find returns the attachments of the container whose ID is or begins with
// prefix; there is at least one.
func (s selection) find(cmd *cobra.Command, store *journal.Store, prefix string) ([]journal.Key, error) {
	all, err := allKeys(store)
	if err != nil {
		say(cmd, "not everything could be searched: %v", err)
	}
	var found []journal.Key
	var containers []string
	for _, key := range all {
		if strings.HasPrefix(key.ContainerID, prefix) &&
			(s.network == "" || s.network == key.Network) && (s.ifName == "" || s.ifName == key.IfName) {
			found = append(found, key)
			containers = append(containers, key.ContainerID)
		}
	}
	if slices.Contains(containers, prefix) {
		return slices.DeleteFunc(found, func(key journal.Key) bool { return key.ContainerID != prefix }), nil
	}
	slices.Sort(containers)
	containers = slices.Compact(containers)
	switch {
	case len(containers) == 0:
		return nil, fmt.Errorf("nothing is journaled for container %q; what is, shows: durable-argsctl list", prefix)
	case len(containers) > 1:
		return nil, fmt.Errorf("%q is the beginning of %d container IDs; give more of the one that is meant: %s",
			prefix, len(containers), strings.Join(containers[:min(5, len(containers))], ", "))
	}
	return found, nil
}

// findOne is find for what must not happen to more than one attachment.
func (s selection) findOne(cmd *cobra.Command, store *journal.Store, prefix string) (journal.Key, error) {
	found, err := s.find(cmd, store, prefix)
	if err != nil {
		return journal.Key{}, err
	}
	if len(found) > 1 {
		var names []string
		for _, key := range found {
			names = append(names, key.String())
		}
		return journal.Key{}, usage("container %s has %d attachments, and only one may be meant: %s; choose it with --network and --ifname",
			found[0].ContainerID, len(found), strings.Join(names, ", "))
	}
	return found[0], nil
}

// completeContainer completes the argument of a command that takes a container.
func (n *node) completeContainer(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 || n.complete() != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	store, err := n.store()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer store.Close()
	keys, _ := allKeys(store)
	var ids []string
	for _, key := range keys {
		ids = append(ids, key.ContainerID)
	}
	slices.Sort(ids)
	return slices.Compact(ids), cobra.ShellCompDirectiveNoFileComp
}
