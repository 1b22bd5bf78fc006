package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/replay"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/repair"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

const replayHelp = `Runs DEL down the chain with what the journal holds, and removes the attachment
from the journal: for a container whose runtime never will, or for all whose
network namespace no longer exists. CONTAINER is a container's ID or its
beginning.

An attachment is refused if its network namespace is still there or may be, since
a container does not see all that is mounted on its node, or if its address belongs
to another attachment by now. --force replays one nevertheless; if the address is
another's, plugins are then not told the result, so that they leave the other alone.

It stops at the first plugin that fails, which it notes in the journal, and goes
on with the next attachment. It can be interrupted and run again at any time. A
plugin that is no longer where it was on ADD is looked for in $CNI_PATH, too.

With --dry-run -o json: an array with an object for each DEL, in order, whose
fields are

  network, containerID, ifName    strings
  plugin                          the plugin's type
  env                             object with the CNI variables it would be given
  stdin                           the request it would be given

Fields may be added to it, but none is taken away or changes its meaning.`

// replaying is replay with its flags.
type replaying struct {
	*cobra.Command
	node   *node
	sel    selection
	stale  bool
	force  bool
	dryRun bool
	format output
	// hostRoot says that the root is the node's, whatever it looks like.
	hostRoot bool
	// cniPath is where to look for a plugin that has moved.
	cniPath string
	// observe, if not nil, is told how each replay has ended.
	observe func(error)
}

func newReplay(n *node) *cobra.Command {
	r := replaying{node: n, cniPath: os.Getenv("CNI_PATH")}
	r.Command = &cobra.Command{
		Use:   "replay {CONTAINER | --stale}",
		Short: "Runs the DELs that a runtime never will",
		Long:  replayHelp,
		Example: `  durable-argsctl replay --stale --dry-run
  durable-argsctl replay --stale
  durable-argsctl replay 5b6e0c --ifname eth0 --force`,
		Args:              r.checkArgs,
		ValidArgsFunction: n.completeContainer,
		RunE:              func(_ *cobra.Command, args []string) error { return r.run(args) },
	}
	r.sel.flags(r.Command)
	r.Flags().BoolVar(&r.stale, "stale", false, "every attachment whose network namespace no longer exists")
	r.Flags().BoolVar(&r.force, "force", false, "replay one attachment though it is alive, or its address another's")
	r.Flags().BoolVar(&r.dryRun, "dry-run", false, "print each DEL that would run, in order, and change nothing")
	addOutput(r.Command, &r.format)
	return r.Command
}

func (r *replaying) checkArgs(cmd *cobra.Command, args []string) error {
	switch {
	case r.stale && len(args) > 0:
		return usage("takes CONTAINER or --stale, not both")
	case r.stale && r.force:
		return usage("--force is for one attachment, not for --stale")
	case r.stale && r.sel.given():
		return usage("--network and --ifname choose among a container's attachments, not with --stale")
	case r.format == jsonOutput && !r.dryRun:
		return usage("-o is for --dry-run")
	case r.stale:
		return nil
	}
	return exactArgs("CONTAINER")(cmd, args)
}

func (r *replaying) run(args []string) error {
	store, err := r.node.openJournal(r.Command)
	if err != nil {
		return err
	}
	if store == nil {
		if r.format == jsonOutput {
			return writeJSON(r.OutOrStdout(), []plannedDel{})
		}
		return nil
	}
	defer store.Close()
	replayer := replay.Replayer{
		Store:    store,
		Runner:   chain.Runner{Stderr: r.ErrOrStderr(), OwnGroup: true},
		Attempts: stanza.DefaultAttempts,
		Stderr:   r.ErrOrStderr(),
		Released: repair.Released(store, r.node.cacheDir, func(format string, args ...any) { say(r.Command, format, args...) }),
	}
	keys, err := r.keys(replayer, args)
	failed := err != nil
	if failed && len(keys) == 0 {
		return err
	}
	if failed {
		say(r.Command, "%v", err)
	}
	if !r.force {
		seen, err := r.inSight(store, keys)
		if err != nil {
			return err
		}
		failed = failed || len(seen) < len(keys)
		if keys = seen; failed && len(keys) == 0 {
			return errFinding
		}
	}
	if r.dryRun {
		err = r.plan(replayer, keys)
	} else {
		err = r.replay(replayer, keys)
	}
	if err == nil && failed {
		return errFinding
	}
	return err
}

// keys are the attachments to replay, in order. The error may tell of some
// beside those returned.
func (r *replaying) keys(replayer replay.Replayer, args []string) ([]journal.Key, error) {
	if r.force {
		key, err := r.sel.findOne(r.Command, replayer.Store, args[0])
		if err != nil {
			return nil, err
		}
		return []journal.Key{key}, nil
	}
	if !r.stale {
		return r.sel.find(r.Command, replayer.Store, args[0])
	}
	networks, err := replayer.Store.Networks()
	if err != nil {
		return nil, err
	}
	var all []journal.Key
	var errs []error
	for _, network := range networks {
		dead, err := replayer.Dead(network, func(journal.Key) bool { return false })
		all = append(all, dead...)
		errs = append(errs, err)
	}
	return all, errors.Join(errs...)
}

// inSight returns those of the attachments whose network namespaces would be seen
// if they were there, and tells of the others.
func (r *replaying) inSight(store *journal.Store, keys []journal.Key) ([]journal.Key, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	sight, err := r.node.look(r.hostRoot)
	if err != nil {
		return nil, fmt.Errorf("finding out which network namespaces are seen from here: %w", err)
	}
	var seen []journal.Key
	hidden := make(map[string]int)
	for _, key := range keys {
		rec, err := store.Read(key)
		if err == nil {
			err = sight.of(rec)
		}
		if !errors.As(err, new(*hiddenError)) {
			seen = append(seen, key) // whatever else there is, the replay will tell
			continue
		}
		hidden[err.Error()]++
		if r.observe != nil {
			r.observe(err)
		}
	}
	for _, why := range slices.Sorted(maps.Keys(hidden)) {
		say(r.Command, "%d of %d left alone, since they may be alive: %s; --force replays one that is known to be dead", hidden[why], len(keys), why)
	}
	return seen, nil
}

// each calls do for every key, with the round of its network. It goes on after
// an error, of which it tells.
func (r *replaying) each(replayer replay.Replayer, keys []journal.Key, do func(*replay.Round, journal.Key) error) error {
	rounds := make(map[string]*replay.Round)
	p := newProgress(r.Command, "replaying", len(keys))
	defer p.clear()
	failed := 0
	for i, key := range keys {
		p.at(i, key)
		round, ok := rounds[key.Network]
		if !ok {
			var err error
			if round, err = replayer.Round(key.Network, chain.Call{Path: r.cniPath}); err != nil {
				p.clear()
				say(r.Command, "network %s is left alone: %v", key.Network, err)
			}
			rounds[key.Network] = round
		}
		if round == nil {
			failed++
			continue
		}
		err := r.Context().Err()
		if err == nil {
			err = do(round, key)
			if r.observe != nil {
				r.observe(err)
			}
		}
		switch {
		case errors.Is(err, context.Canceled):
			p.clear()
			return fmt.Errorf("interrupted: %d of %d done; run it again for the rest", i-failed, len(keys))
		case r.stale && errors.As(err, new(*replay.AliveError)):
			// It has been added again since we looked.
		case err != nil:
			p.clear()
			say(r.Command, "%v", err)
			failed++
		}
	}
	p.clear()
	if failed > 0 {
		say(r.Command, "%d of %d could not be replayed", failed, len(keys))
		return errFinding
	}
	return nil
}

func (r *replaying) replay(replayer replay.Replayer, keys []journal.Key) error {
	stop := context.AfterFunc(r.Context(), func() {
		say(r.Command, "stopping as soon as the plugin that runs has ended; press Ctrl-C again to break it off")
	})
	defer stop()
	err := r.each(replayer, keys, func(round *replay.Round, key journal.Key) error {
		return round.Replay(r.Context(), key, r.force)
	})
	if err == nil {
		say(r.Command, "%d of %d replayed", len(keys), len(keys))
	}
	return err
}

func (r *replaying) plan(replayer replay.Replayer, keys []journal.Key) error {
	planned := []plannedDel{}
	err := r.each(replayer, keys, func(round *replay.Round, key journal.Key) error {
		dels, err := round.Plan(key, r.force)
		for _, del := range dels {
			p, err := newPlannedDel(del)
			if err != nil {
				return err
			}
			planned = append(planned, p)
		}
		return err
	})
	if r.format == jsonOutput {
		return errors.Join(writeJSON(r.OutOrStdout(), planned), err)
	}
	var text bytes.Buffer
	for _, p := range planned {
		fmt.Fprintf(&text, "%s/%s@%s: DEL %s\n", p.Network, p.ContainerID, p.IfName, p.Plugin)
		for _, name := range []string{"CNI_NETNS", "CNI_ARGS", "CNI_PATH"} {
			fmt.Fprintf(&text, "  %s=%s\n", name, printable(p.Env[name]))
		}
		fmt.Fprintf(&text, "  stdin: %s\n", p.Stdin)
	}
	_, writeErr := text.WriteTo(r.OutOrStdout())
	return errors.Join(writeErr, err)
}

// plannedDel is a DEL as --dry-run shows it.
type plannedDel struct {
	Network     string            `json:"network"`
	ContainerID string            `json:"containerID"`
	IfName      string            `json:"ifName"`
	Plugin      string            `json:"plugin"`
	Env         map[string]string `json:"env"`
	Stdin       json.RawMessage   `json:"stdin"`
}

func newPlannedDel(del replay.Del) (plannedDel, error) {
	c := del.Call
	stdin, err := c.Request(del.Plugin)
	return plannedDel{
		Network:     c.Network,
		ContainerID: c.ContainerID,
		IfName:      c.IfName,
		Plugin:      del.Plugin.Type,
		Env: map[string]string{
			"CNI_COMMAND":     "DEL",
			"CNI_CONTAINERID": c.ContainerID,
			"CNI_NETNS":       c.NetNS,
			"CNI_IFNAME":      c.IfName,
			"CNI_ARGS":        c.Args,
			"CNI_PATH":        c.Path,
		},
		Stdin: stdin,
	}, err
}
