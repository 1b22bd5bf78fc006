package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/pkg/chain"
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
	files, err := i.cacheFiles()
	if err != nil {
		return err
	}
	var failed, imported, known int
	var ours []*cacheFile
	for _, file := range files {
		f, err := readCacheFile(file)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// Deleted meanwhile.
		case err != nil:
			say(i.Command, "cannot be imported: %s: %v", file, err)
			failed++
		case networks[f.key.Network] != nil:
			ours = append(ours, f)
		}
	}
	// The oldest first, as they were added.
	slices.SortStableFunc(ours, func(a, b *cacheFile) int { return a.modified.Compare(b.modified) })
	p := newProgress(i.Command, "importing", len(ours))
	defer p.clear()
	for n, f := range ours {
		if i.Context().Err() != nil {
			p.clear()
			return fmt.Errorf("interrupted: %d imported; run it again for the rest", imported)
		}
		p.at(n, f.key)
		done, err := i.importFile(f, networks[f.key.Network], ours)
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

func (i importing) cacheFiles() ([]string, error) {
	dir := filepath.Join(i.node.cacheDir, "results")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		say(i.Command, "libcni has cached nothing in %s", dir)
		return nil, nil
	}
	if err != nil {
		return nil, needsRoot(err)
	}
	var files []string
	for _, entry := range entries {
		if entry.Type().IsRegular() {
			files = append(files, filepath.Join(dir, entry.Name()))
		}
	}
	return files, nil
}

// importFile reports whether the attachment has been journaled; if not, and
// there is no error, it was already.
func (i importing) importFile(f *cacheFile, s *stanza.Stanza, all []*cacheFile) (bool, error) {
	if known, err := hasFile(s.DataDir, f.key); known || err != nil {
		return false, err
	}
	add, result, err := f.entries(s)
	if err != nil {
		return false, err
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
	if err := store.Append(f.key, add); err != nil {
		return false, err
	}
	if result != nil {
		err = store.Append(f.key, result)
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

// cacheFile is a file of libcni's cache (libcni/api.go, cachedInfo), with raw
// JSON for what libcni's maps would round.
type cacheFile struct {
	path     string
	modified time.Time
	key      journal.Key

	Kind           string                     `json:"kind"`
	ContainerID    string                     `json:"containerId"`
	Config         []byte                     `json:"config"`
	IfName         string                     `json:"ifName"`
	NetworkName    string                     `json:"networkName"`
	NetNS          string                     `json:"netns"`
	CNIArgs        [][2]string                `json:"cniArgs"`
	CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs"`
	Result         json.RawMessage            `json:"result"`
}

func readCacheFile(path string) (*cacheFile, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f := &cacheFile{path: path, modified: st.ModTime()}
	switch err := json.Unmarshal(data, f); {
	case len(data) == 0:
		return nil, errors.New("it is empty")
	case err != nil:
		return nil, err
	case f.Kind != libcni.CNICacheV1:
		return nil, fmt.Errorf("it is of kind %q, not %q, so it does not hold what ADD was given", f.Kind, libcni.CNICacheV1)
	}
	f.key = journal.Key{Network: f.NetworkName, ContainerID: f.ContainerID, IfName: f.IfName}
	return f, f.key.Validate()
}

// entries are what the journal would hold if the attachment had been made
// today, on the configuration that libcni has cached.
func (f *cacheFile) entries(s *stanza.Stanza) (journal.Add, journal.Result, error) {
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
	shown := make(map[string]json.RawMessage)
	for name, value := range f.CapabilityArgs {
		if s.Capabilities[name] {
			shown[name] = value
		}
	}
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
func (f *cacheFile) args() string {
	var pairs []string
	for _, pair := range f.CNIArgs {
		pairs = append(pairs, pair[0]+"="+pair[1])
	}
	return strings.Join(pairs, ";")
}

// result is what libcni would give to plugins as prevResult, nil if it has
// cached none.
func (f *cacheFile) result(cniVersion string) (journal.Result, error) {
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
