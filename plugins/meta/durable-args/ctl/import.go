package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/cnicache"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

const importHelp = `Journals attachments that were made before the installation, from libcni's
readable cache files, so that their DEL is protected from now on. Those of
networks whose conflist in --conf-dir holds the durable-args stanza are
imported, unless they have a journal file already. It can be run at any time,
and again.

An attachment whose network namespace is gone is imported, too, and is stale
then. libcni before 1.2 (containerd 1.6 and 1.7) does not cache which namespace
it is: its attachments count as alive until the next boot. Each file that cannot be imported is named on stderr, with the reason.`

// importing is import with its flags.
type importing struct {
	*cobra.Command
	node    *node
	cniPath string
	// aliveOnly leaves out those whose network namespace cannot be seen, since
	// a container may not see those of the node.
	aliveOnly bool
}

func newImport(n *node) *cobra.Command {
	i := importing{node: n}
	i.Command = &cobra.Command{
		Use:   "import",
		Short: "Journals attachments made before the installation",
		Long:  importHelp,
		Example: `  durable-argsctl import
  durable-argsctl import --cni-path /usr/lib/cni`,
		Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error { return i.run() },
	}
	i.Flags().StringVar(&i.cniPath, "cni-path", cmp.Or(os.Getenv("CNI_PATH"), "/opt/cni/bin"), "where the plugins are, as CNI_PATH has it")
	return i.Command
}

func (i importing) run() error {
	networks, err := i.networks()
	if err != nil {
		return err
	}
	var seen, failed, imported, known int
	var ours []*cached
	err = cnicache.All(i.node.cacheDir, func(path string, file cnicache.File, err error) {
		seen++
		f, err := newCached(path, file, err)
		switch {
		case err != nil:
			say(i.Command, "cannot be imported: %s: %v", path, needsRoot(err))
			failed++
		case f != nil && networks[f.Network] != nil:
			ours = append(ours, f)
		}
	})
	if err != nil {
		return needsRoot(err)
	}
	if seen == 0 {
		say(i.Command, "libcni has cached nothing in %s", i.node.cacheDir)
	}
	// The oldest first, as they were added.
	slices.SortStableFunc(ours, func(a, b *cached) int { return a.modified.Compare(b.modified) })
	p := newProgress(i.Command, "importing", len(ours))
	defer p.clear()
	for n, f := range ours {
		if i.Context().Err() != nil {
			p.clear()
			return fmt.Errorf("interrupted: %d imported; run it again for the rest", imported)
		}
		p.at(n, f.key())
		done, err := i.importFile(f, networks[f.Network], ours)
		switch {
		case err != nil:
			p.clear()
			say(i.Command, "cannot be imported: %s: %v", f.path, needsRoot(err))
			failed++
		case done:
			imported++
		default:
			known++
		}
	}
	p.clear()
	say(i.Command, "%d imported, %d in the journal already, %d could not be imported", imported, known, failed)
	if failed > 0 {
		return errFinding
	}
	return nil
}

// networks are those that are protected, each with its first stanza.
func (i importing) networks() (map[string]*stanza.Stanza, error) {
	stanzas, err := i.node.stanzas()
	if err != nil {
		return nil, err
	}
	networks := make(map[string]*stanza.Stanza)
	for _, s := range stanzas {
		if s.Layout() == stanza.Last || networks[s.Name] != nil {
			continue
		}
		s.ConfDir = i.node.confDir
		if i.Flags().Changed("data-dir") {
			s.DataDir = i.node.dataDir
		}
		networks[s.Name] = s
	}
	if len(networks) == 0 {
		return nil, fmt.Errorf("no conflist in %s holds a durable-args stanza, so nothing can be imported; put one in with: durable-argsctl insert", i.node.confDir)
	}
	return networks, nil
}

// importFile reports whether the attachment has been journaled; if not, and
// there is no error, it was already.
func (i importing) importFile(f *cached, s *stanza.Stanza, all []*cached) (bool, error) {
	if known, err := hasFile(s.DataDir, f.key()); known || err != nil {
		return false, err
	}
	add, result, err := f.entries(s)
	if err != nil {
		return false, err
	}
	if i.aliveOnly && add.NetNS.BootID == "" {
		return false, errors.New("its network namespace cannot be seen from here; if the container is dead, run on the node: durable-argsctl import")
	}
	add.Path = i.cniPath
	if f.NetNS != "" && add.NetNS.BootID != "" {
		// If an identity were taken on a path that has been recycled, a DEL
		// would take down another container's interface.
		for _, other := range all {
			if other != f && other.NetNS == f.NetNS && other.IfName == f.IfName {
				return false, fmt.Errorf("%s says the same network namespace and interface, and at most one of them can be right; remove the file of the container that is gone", other.path)
			}
		}
	}
	store, err := journal.Create(s.DataDir)
	if err != nil {
		return false, err
	}
	defer store.Close()
	if err := store.Append(f.key(), add); err != nil {
		return false, err
	}
	if result != nil {
		err = store.Append(f.key(), result)
	}
	return err == nil, err
}

func hasFile(dataDir string, key journal.Key) (bool, error) {
	store, err := journal.Open(dataDir)
	if err == nil {
		defer store.Close()
		_, err = store.Read(key)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// cached is an attachment that libcni's cache knows.
type cached struct {
	cnicache.Attachment
	path     string
	modified time.Time
}

// newCached returns nil for a file that has been deleted meanwhile.
func newCached(path string, file cnicache.File, err error) (*cached, error) {
	switch {
	case err != nil:
		return nil, err
	case file.State == cnicache.Missing:
		return nil, nil
	case file.State == cnicache.Damaged:
		return nil, file.Why
	case file.Legacy:
		return nil, errors.New("it holds a result alone, and not what ADD was given")
	}
	f := &cached{*file.Attachment, path, file.Modified}
	return f, f.key().Validate()
}

func (f *cached) key() journal.Key { return journal.Key(f.ID) }

// entries are what the journal would hold if the attachment had been made
// today, on the configuration that libcni has cached.
func (f *cached) entries(s *stanza.Stanza) (journal.Add, journal.Result, error) {
	list, err := libcni.NetworkConfFromBytes(f.Config)
	if err != nil {
		return journal.Add{}, nil, err
	}
	n, err := protected(list, s)
	if err != nil {
		return journal.Add{}, nil, err
	}
	if err := n.Covered(); err != nil {
		return journal.Add{}, nil, err
	}
	id, err := identity(f.NetNS)
	if err != nil {
		return journal.Add{}, nil, err
	}
	result, err := f.result(list.CNIVersion)
	if err != nil {
		return journal.Add{}, nil, err
	}
	add := journal.Add{
		Layout:     s.Layout(),
		Args:       []byte(f.args()),
		CNIVersion: list.CNIVersion,
		NetNS:      id,
		Conflist:   f.Config,
		Chain:      chain.Configs(n.Protected),
	}
	if len(f.CapabilityArgs) == 0 {
		return add, result, nil
	}
	var shown map[string]json.RawMessage
	if err := json.Unmarshal(f.CapabilityArgs, &shown); err != nil {
		return add, nil, err
	}
	maps.DeleteFunc(shown, func(name string, _ json.RawMessage) bool { return !s.Capabilities[name] })
	if len(shown) > 0 {
		add.RuntimeConfig, err = json.Marshal(shown)
	}
	return add, result, err
}

// protected are the plugins of a cached configuration that a DEL must reach.
// libcni does not cache those that it finds beside the conflist.
func protected(list *libcni.NetworkConfigList, today *stanza.Stanza) (*stanza.Network, error) {
	configs := list.Plugins
	if !list.LoadOnlyInlinedPlugins {
		more, err := libcni.NetworkPluginConfsFromFiles(today.ConfDir, list.Name)
		if err != nil {
			return nil, err
		}
		configs = append(configs, more...)
	}
	var plugins []chain.Plugin
	var own *stanza.Stanza
	for _, config := range configs {
		p, err := chain.Parse(config.Bytes)
		if err != nil {
			return nil, err
		}
		plugins = append(plugins, p)
		if p.Type == pluginType && own == nil {
			if own, err = stanza.Parse(config.Bytes); err != nil {
				return nil, err
			}
		}
	}
	switch {
	case len(plugins) == 0:
		return nil, errors.New("the cached configuration has no plugins")
	case own == nil:
		return &stanza.Network{Protected: plugins, Capabilities: []map[string]bool{today.Capabilities}}, nil
	case own.Layout() == stanza.Wrapped:
		return own.Nested()
	default:
		return own.In(plugins)
	}
}

// identity is that of the network namespace at path. If it is gone, it is one
// that nothing will ever match. libcni before 1.2 does not cache the path: the
// container may be running, so until the next boot nothing may take it for dead.
func identity(path string) (journal.NetNS, error) {
	gone := journal.NetNS{Path: path}
	if path == "" {
		boot, err := netnsid.BootID()
		return journal.NetNS{BootID: boot}, err
	}
	if netnsid.Own(path) {
		return gone, fmt.Errorf("its network namespace %s is this process's own", path)
	}
	id, err := netnsid.Of(path)
	if err == nil {
		return journal.NetNS(id), nil
	}
	boot, bootErr := netnsid.BootID()
	if bootErr != nil {
		return gone, bootErr
	}
	// Alive tells a namespace that is gone from one that cannot be looked at.
	if _, aliveErr := (netnsid.ID{Path: path, BootID: boot}).Alive(); aliveErr != nil {
		return gone, err
	}
	return gone, nil
}

// args is CNI_ARGS as libcni makes it of the pairs.
func (f *cached) args() string {
	var pairs []string
	for _, pair := range f.Args {
		pairs = append(pairs, pair[0]+"="+pair[1])
	}
	return strings.Join(pairs, ";")
}

// result is what libcni would give to plugins as prevResult, nil if it has
// cached none.
func (f *cached) result(cniVersion string) (journal.Result, error) {
	if len(f.Result) == 0 || string(f.Result) == "null" {
		return nil, nil
	}
	result, err := create.CreateFromBytes(f.Result)
	if err != nil {
		return nil, err
	}
	if result, err = result.GetAsVersion(cniVersion); err != nil {
		return nil, err
	}
	return json.Marshal(result)
}
