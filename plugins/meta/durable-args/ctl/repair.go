package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/pkg/cnicache"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/repair"
)

func newRepair(n *node) *cobra.Command {
	var dryRun bool
	var format output
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Writes libcni's cache files again that a crash has taken",
		Long: `Writes every file in libcni's cache that is missing, zero-length or unreadable
again from the journal, so that the runtime's own DEL, CHECK and GC work again.

No file is touched that libcni can read, and none whose attachment has no
journaled result. The plugin does the same at its first call after a boot; run
this before the runtime starts, or when a file has been lost since.

The table has a row for each file that is not as it should be. With -o json it is
an array with an object for each attachment in the journal:

  network, containerID, ifName   the attachment
  file                           the path of its cache file
  found                          readable, damaged or missing; empty if that
                                 could not be told
  action                         kept, repaired, skipped or failed
  reason                         why it was skipped, or has failed; else empty

With --dry-run, "repaired" is what would be.`,
		Example: `  durable-argsctl repair --dry-run
  durable-argsctl repair -o json | jq -r '.[] | select(.action=="failed").file'`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runRepair(cmd, n, dryRun, format)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and write nothing")
	addOutput(cmd, &format)
	return cmd
}

// repairOutcome is an element of what repair -o json prints.
type repairOutcome struct {
	Network     string         `json:"network"`
	ContainerID string         `json:"containerID"`
	IfName      string         `json:"ifName"`
	File        string         `json:"file"`
	Found       cnicache.State `json:"found"`
	Action      repair.Action  `json:"action"`
	Reason      string         `json:"reason"`
}

func runRepair(cmd *cobra.Command, n *node, dryRun bool, format output) error {
	var outcomes []repair.Outcome
	store, err := n.store()
	switch {
	case err == nil:
		defer store.Close()
		outcomes, err = repair.Repair(cmd.Context(), store, n.cacheDir, dryRun)
	case errors.Is(err, fs.ErrNotExist):
		say(cmd, "there is no journal in %s, so there is nothing to repair", n.dataDir)
		err = nil
	default:
		return err
	}
	print := printRepair
	if format == jsonOutput {
		print = printRepairJSON
	}
	err = errors.Join(err, print(cmd, outcomes, dryRun))
	failed := 0
	for _, o := range outcomes {
		if o.Err != nil {
			failed++
			say(cmd, "%s: %v", o.Key, o.Err)
		}
	}
	if failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d files could not be examined or written", failed, len(outcomes)))
	}
	return err
}

func printRepairJSON(cmd *cobra.Command, outcomes []repair.Outcome, _ bool) error {
	all := []repairOutcome{} // never null
	for _, o := range outcomes {
		all = append(all, repairOutcome{o.Key.Network, o.Key.ContainerID, o.Key.IfName, o.Path, o.Found, o.Action, o.Reason})
	}
	return writeJSON(cmd.OutOrStdout(), all)
}

func printRepair(cmd *cobra.Command, outcomes []repair.Outcome, dryRun bool) error {
	t := table{columns: []column{{name: "NETWORK", least: 8}, {name: "CONTAINER", least: 12}, {name: "INTERFACE"},
		{name: "CACHE FILE"}, {name: "OUTCOME", least: 20}}}
	for _, o := range outcomes {
		outcome := string(o.Action)
		switch {
		case o.Action == repair.Kept:
			continue
		case o.Action == repair.Repaired && dryRun:
			outcome = "would be repaired"
		case o.Action == repair.Skipped && o.Err == nil:
			outcome = o.Reason
		}
		t.add(cell{o.Key.Network, plain}, cell{o.Key.ContainerID, plain}, cell{printable(o.Key.IfName), plain},
			cell{string(o.Found), plain}, cell{printable(outcome), plain})
	}
	if len(t.rows) == 0 {
		return nil
	}
	return t.print(cmd.OutOrStdout())
}
