package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/cnicache"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/repair"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

const doctorHelp = `Looks at the conflists, the journal and libcni's cache, and prints for each thing
that is not as it should be what it is, why it matters, and what to do about it.
It changes nothing, and exits with 1 if it has found something.

With -o json: an array with an object for each finding, whose fields are

  what, why, do    strings

Fields may be added to it, but none is taken away or changes its meaning.`

func newDoctor(n *node) *cobra.Command {
	var format output
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Finds out what is wrong on this node",
		Long:  doctorHelp,
		Example: `  durable-argsctl doctor
  durable-argsctl doctor -o json | jq -r '.[].what'`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runDoctor(cmd, n, format) },
	}
	addOutput(cmd, &format)
	return cmd
}

// finding is something that is not as it should be.
type finding struct {
	What string `json:"what"`
	Why  string `json:"why"`
	Do   string `json:"do"`
}

// doctor collects findings.
type doctor struct {
	node     *node
	findings []finding
	// caches are the first conflist that journals in a dataDir, and its cacheDir.
	caches map[string]struct{ file, cacheDir string }
}

func runDoctor(cmd *cobra.Command, n *node, format output) error {
	d := &doctor{node: n, findings: []finding{}, caches: make(map[string]struct{ file, cacheDir string })}
	d.conflists()
	d.unit("/")
	store, err := n.store()
	switch {
	case err == nil:
		defer store.Close()
		d.attachments(cmd, store)
		d.cache(cmd, store)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, journal.ErrUntrusted):
		// The former is fine, and the latter is a finding of conflists.
	default:
		return err
	}
	if format == jsonOutput {
		err = writeJSON(cmd.OutOrStdout(), d.findings)
	} else {
		err = d.print(cmd.OutOrStdout())
	}
	if err == nil && len(d.findings) > 0 {
		return errFinding
	}
	return err
}

func (d *doctor) print(w io.Writer) error {
	bold, end := "", ""
	if hasColour(w) {
		bold, end = yellow, endColour
	}
	var text strings.Builder
	for i, f := range d.findings {
		if i > 0 {
			text.WriteString("\n")
		}
		fmt.Fprintf(&text, "%s%s%s\n  why: %s\n  do:  %s\n", bold, printable(f.What), end, printable(f.Why), printable(f.Do))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func (d *doctor) found(what, why, do string) {
	d.findings = append(d.findings, finding{what, why, do})
}

// conflists looks at every file that a runtime may load from confDir.
func (d *doctor) conflists() {
	files, err := libcni.ConfFiles(d.node.confDir, []string{".conflist"})
	if err != nil {
		d.found(fmt.Sprintf("%s cannot be read: %v", d.node.confDir, err),
			"neither a runtime nor durable-args finds a conflist there", "run this as root, or name another directory with --conf-dir")
		return
	}
	slices.Sort(files)
	byName := make(map[string]string)
	protected := false
	for _, file := range files {
		list, err := libcni.NetworkConfFromFile(file)
		if err != nil {
			d.found(fmt.Sprintf("%s is no conflist: %v", file, err),
				"runtimes pass over it, and cnitool stops at it", "mend or remove it: "+file)
			continue
		}
		if other, ok := byName[list.Name]; ok {
			d.found(fmt.Sprintf("%s and %s are both of network %s", other, file, list.Name),
				"a runtime and durable-args may mean different ones, and DEL then misses plugins", "remove or rename one of them")
			continue
		}
		byName[list.Name] = file
		if d.conflist(file, list) {
			protected = true
		}
	}
	if !protected {
		d.found(fmt.Sprintf("no conflist in %s has a durable-args stanza", d.node.confDir),
			"nothing is journaled", "durable-argsctl insert "+filepath.Join(d.node.confDir, "NAME.conflist"))
	}
}

// conflist looks at one, and reports whether it has a stanza of ours.
func (d *doctor) conflist(file string, list *libcni.NetworkConfigList) bool {
	var ours []*stanza.Stanza
	firstAt, lastAt := -1, -1
	var others []chain.Plugin
	for i, plugin := range list.Plugins {
		if plugin.Network.Type != pluginType {
			if p, err := chain.Parse(plugin.Bytes); err == nil {
				others = append(others, p)
			}
			continue
		}
		s, err := stanza.Parse(plugin.Bytes)
		if err != nil {
			d.found(fmt.Sprintf("%s: %v", file, err), "every ADD and DEL of the network fails", "mend the stanza in "+file)
			return true
		}
		s.Name = list.Name
		ours = append(ours, s)
		if s.Position == stanza.Last {
			lastAt = i
		} else if firstAt < 0 {
			firstAt = i
		}
	}
	if len(ours) == 0 {
		return false
	}
	if list.CNIVersion == "" {
		d.found(file+" has no cniVersion", "libcni refuses every DEL of such a network", `add "cniVersion": "1.0.0" to `+file)
	}
	if firstAt > 0 {
		d.found(fmt.Sprintf("%s: %d plugins stand before the durable-args stanza", file, firstAt),
			"they run before anything is journaled", "durable-argsctl remove "+file+" && durable-argsctl insert "+file)
	}
	if lastAt >= 0 && lastAt < len(list.Plugins)-1 {
		d.found(fmt.Sprintf("%s: %d plugins stand behind the last durable-args stanza", file, len(list.Plugins)-1-lastAt),
			"they are not protected, and the result that they print is not journaled", "durable-argsctl remove "+file+" && durable-argsctl insert "+file)
	}
	s := ours[0]
	if s.Layout() != stanza.Wrapped {
		for _, weak := range weakIn(others) {
			d.found(file+": "+weak, "its pods do not start, or their DEL fails",
				"durable-argsctl remove "+file+" && durable-argsctl insert --layout wrapped "+file)
		}
	}
	s.ConfDir = d.node.confDir
	if n, err := s.Network(); err != nil {
		d.found(fmt.Sprintf("%s: %v", file, err), "every ADD of the network fails", "mend the stanza in "+file)
	} else if err := n.Covered(); err != nil {
		d.found(fmt.Sprintf("%s: %v", file, err), "every ADD of the network fails", "durable-argsctl insert "+file)
	}
	d.dataDir(s)
	d.cacheDir(file, s)
	return true
}

// cacheDir looks whether a journal goes with one cache.
func (d *doctor) cacheDir(file string, s *stanza.Stanza) {
	first, ok := d.caches[s.DataDir]
	if !ok {
		d.caches[s.DataDir] = struct{ file, cacheDir string }{file, s.CacheDir}
	} else if first.cacheDir != s.CacheDir {
		d.found(fmt.Sprintf("%s and %s journal in %s, but have cacheDir %s and %s", first.file, file, s.DataDir, first.cacheDir, s.CacheDir),
			"a repair writes the files of both into one of the two caches", "give them the same cacheDir, the one that the runtime uses, or a dataDir each")
	}
}

// dataDir looks at where a stanza journals.
func (d *doctor) dataDir(s *stanza.Stanza) {
	if err := journal.Ready(s.DataDir, s.Name, s.AllowVolatile); err != nil {
		what := fmt.Sprintf("network %s cannot be journaled: %v", s.Name, err)
		why := "every ADD of it fails"
		if errors.Is(err, journal.ErrVolatile) {
			why = "what is journaled does not survive a reboot"
		}
		if !slices.ContainsFunc(d.findings, func(f finding) bool { return f.What == what }) {
			d.found(what, why, "do what it says; then run: durable-argsctl doctor")
		}
		return
	}
	var st unix.Statfs_t
	if unix.Statfs(s.DataDir, &st) != nil {
		return // not made yet
	}
	for _, kind := range []struct {
		name       string
		free, many uint64
	}{{"blocks", st.Bfree, st.Blocks}, {"inodes", st.Ffree, st.Files}} {
		// btrfs counts no inodes.
		if kind.many > 0 && kind.free*20 < kind.many {
			d.found(fmt.Sprintf("the file system of %s has %d of %d %s left", s.DataDir, kind.free, kind.many, kind.name),
				"when they run out, every ADD fails", "free some, or choose another dataDir: df -h "+s.DataDir+" && df -i "+s.DataDir)
		}
	}
}

// unit looks for what repairs libcni's cache before the runtimes start. root is
// where the file system begins.
func (d *doctor) unit(root string) {
	if _, err := os.Stat(filepath.Join(root, "run/systemd/system")); err != nil {
		return // no systemd runs here
	}
	const name = "durable-args-repair.service"
	wants, _ := filepath.Glob(filepath.Join(root, "etc/systemd/system/*.wants", name))
	if len(wants) == 0 {
		d.found(name+" is not enabled",
			"after a power cut, containerd 1.6 and 1.7 call no plugin for a container whose cache file is damaged, until something repairs it",
			"systemctl enable "+name+" durable-args-replay.timer")
	}
}

// attachments looks at everything that is journaled.
func (d *doctor) attachments(cmd *cobra.Command, store *journal.Store) {
	keys, err := allKeys(store)
	if err != nil {
		d.found(fmt.Sprintf("a part of the journal cannot be read: %v", err), "what it owes is not known", "do what it says; then run: durable-argsctl doctor")
	}
	missing := make(map[string]bool)
	stale := 0
	p := newProgress(cmd, "examining", len(keys))
	defer p.clear()
	for i, key := range keys {
		p.at(i, key)
		rec, err := store.Read(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			d.found(fmt.Sprintf("%s cannot be read: %v", key, err), "its DEL fails", "do what it says; then run: durable-argsctl show "+key.ContainerID)
			continue
		}
		d.record(rec)
		if state := netnsOf(rec); len(rec.Adds) > 0 && (state == netnsGone || state == netnsBeforeBoot) {
			stale++
		}
		d.binaries(rec, missing)
	}
	if stale > 0 {
		d.found(fmt.Sprintf("%d attachments are stale: their network namespaces are gone", stale),
			"their addresses and rules may still be there", "durable-argsctl replay --stale")
	}
}

func (d *doctor) record(rec journal.Record) {
	container := rec.Key.ContainerID
	if len(rec.Damaged) > 0 {
		d.found(fmt.Sprintf("%s: lines %v of its file are damaged", rec.Key, rec.Damaged),
			"what stood there is not replayed", "durable-argsctl show "+container)
	}
	if rec.Unknown > 0 {
		d.found(fmt.Sprintf("%s: %d entries are of a later version", rec.Key, rec.Unknown),
			"this version can neither replay nor remove them", "install the version that wrote them, then run: durable-argsctl replay "+container)
	}
	if n := len(rec.Attempts); n > 0 {
		d.found(fmt.Sprintf("%s is a debt: %d replays have failed, the last one of plugin %s", rec.Key, n, rec.Attempts[n-1].Plugin),
			"what it has set up may still be there", "durable-argsctl show "+container+"; then durable-argsctl replay "+container)
	}
}

// binaries looks for the plugins that a replay would call.
func (d *doctor) binaries(rec journal.Record, missing map[string]bool) {
	for _, add := range rec.Adds {
		plugins, err := chain.ParseAll(add.Chain)
		if err != nil {
			d.found(fmt.Sprintf("%s: its chain makes no sense: %v", rec.Key, err), "it cannot be replayed", "durable-argsctl forget "+rec.Key.ContainerID)
			return
		}
		for _, plugin := range plugins {
			where := plugin.Type + " in " + add.Path
			if missing[where] {
				continue
			}
			if _, err := invoke.FindInPath(plugin.Type, filepath.SplitList(add.Path)); err != nil {
				missing[where] = true
				d.found("there is no plugin "+where, "attachments made with it cannot be replayed", "install it again in "+add.Path)
			}
		}
	}
}

// cache compares libcni's files with the journal.
func (d *doctor) cache(cmd *cobra.Command, store *journal.Store) {
	outcomes, err := repair.Repair(cmd.Context(), store, d.node.cacheDir, true)
	if err != nil {
		d.found(fmt.Sprintf("not all of libcni's cache could be compared with the journal: %v", err), "files in it may be damaged", "durable-argsctl repair --dry-run")
	}
	for _, o := range outcomes {
		switch {
		case o.Found == cnicache.Damaged:
			do := "durable-argsctl repair"
			if o.Action != repair.Repaired {
				do = "rm " + o.Path
			}
			d.found(o.Path+" is damaged", "runtimes with libcni before 1.2, and podman, call no plugin for its container; others lose the result", do)
		case o.Action == repair.Repaired:
			d.found(o.Path+" is missing", "the runtime's DEL lacks the result, and its GC the attachment", "durable-argsctl repair")
		case o.Action == repair.Kept:
			d.differences(store, o)
		}
	}
}

func (d *doctor) differences(store *journal.Store, o repair.Outcome) {
	rec, err := store.Read(o.Key)
	if err != nil {
		return // gone since, or told of by attachments
	}
	if fields, err := repair.Differences(d.node.cacheDir, rec); err == nil && len(fields) > 0 {
		d.found(fmt.Sprintf("%s and the journal differ in %s", o.Path, strings.Join(fields, ", ")),
			"the runtime tells plugins something else than ADD did; DEL replays what ADD did", "durable-argsctl show "+o.Key.ContainerID)
	}
}
