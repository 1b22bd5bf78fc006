package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/libcni"
	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

const pluginType = "durable-args"

// errFinding is returned by a command that has printed what it found.
var errFinding = errors.New("something was found")

// usageError says that the command was called in a wrong way.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() + "; see --help" }
func (e *usageError) Unwrap() error { return e.err }

func usage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// node is where to look on this node: what every command's flags say or, where
// they are silent, the conflists that hold our stanza.
type node struct {
	confDir, dataDir, cacheDir string
	// look finds out which network namespaces are seen from here.
	look func(hostRoot bool) (*sight, error)
}

// newRoot returns the command with all of its subcommands.
func newRoot(look func(hostRoot bool) (*sight, error)) *cobra.Command {
	n := node{look: look}
	root := &cobra.Command{
		Use:           "durable-argsctl",
		Short:         "Shows and mends what durable-args has journaled on this node",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("no such command: %s", args[0])
			}
			return cmd.Help()
		},
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return n.complete()
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&n.confDir, "conf-dir", cmp.Or(os.Getenv("NETCONFPATH"), stanza.DefaultConfDir), "directory of the conflists")
	flags.StringVar(&n.dataDir, "data-dir", "", "directory of the journal (default: as the conflists say)")
	flags.StringVar(&n.cacheDir, "cache-dir", "", "directory of libcni's cache (default: as the conflists say)")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.AddCommand(newInsert(&n))
	root.AddCommand(newRemove())
	root.AddCommand(newDoctor(&n))
	root.AddCommand(newList(&n))
	root.AddCommand(newShow(&n))
	root.AddCommand(newReplay(&n))
	root.AddCommand(newRepair(&n))
	root.AddCommand(newForget(&n))
	root.AddCommand(newImport(&n))
	root.AddCommand(newAgent(&n))
	return root
}

// exactArgs is cobra.ExactArgs with our exit code.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == len(names):
			return nil
		case len(names) == 0:
			return usage("takes no arguments, not %q", args)
		default:
			return usage("takes %s, not %d arguments", strings.Join(names, " "), len(args))
		}
	}
}

// complete takes from the conflists what the flags leave open.
func (n *node) complete() error {
	stanzas, err := n.stanzas()
	if err != nil {
		return err
	}
	for _, s := range stanzas {
		n.dataDir = cmp.Or(n.dataDir, s.DataDir)
		n.cacheDir = cmp.Or(n.cacheDir, s.CacheDir)
	}
	n.dataDir = cmp.Or(n.dataDir, stanza.DefaultDataDir)
	n.cacheDir = cmp.Or(n.cacheDir, stanza.DefaultCacheDir)
	return nil
}

// stanzas returns ours from every conflist in confDir that can be read.
func (n *node) stanzas() ([]*stanza.Stanza, error) {
	files, err := libcni.ConfFiles(n.confDir, []string{".conflist"})
	if err != nil {
		return nil, fmt.Errorf("reading --conf-dir: %w", needsRoot(err))
	}
	slices.Sort(files)
	var found []*stanza.Stanza
	for _, file := range files {
		list, err := libcni.NetworkConfFromFile(file)
		if errors.As(err, new(syscall.Errno)) && !errors.Is(err, os.ErrNotExist) {
			// What cannot be read may be ours, with directories of its own.
			return nil, needsRoot(fmt.Errorf("%s: %w", file, err))
		}
		if err != nil {
			continue // doctor tells of it
		}
		for _, plugin := range list.Plugins {
			if plugin.Network.Type != pluginType {
				continue
			}
			if s, err := stanza.Parse(plugin.Bytes); err == nil {
				s.Name, s.CNIVersion = list.Name, list.CNIVersion
				found = append(found, s)
			}
		}
	}
	return found, nil
}

// store opens the journal. The error wraps fs.ErrNotExist if there is none.
func (n *node) store() (*journal.Store, error) {
	store, err := journal.Open(n.dataDir)
	return store, needsRoot(err)
}

func needsRoot(err error) error {
	if errors.Is(err, os.ErrPermission) && os.Geteuid() != 0 {
		return fmt.Errorf("%w; run it as root", err)
	}
	return err
}
