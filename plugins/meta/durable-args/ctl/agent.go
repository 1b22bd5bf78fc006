package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"

	"github.com/durable-args/durable-args/plugins/meta/durable-args/repair"
)

const agentHelp = `Keeps durable-args installed on this node, for as long as it runs: meant for a
Kubernetes DaemonSet with the node's directories mounted at the same paths.

At the start it copies the plugin into --bin-dir, puts the stanzas into the
conflist as "insert" does, journals what runs already and is seen to be alive
("import"), and repairs libcni's cache ("repair"). With --interval it then replays
what is stale ("replay --stale"), again and again, but only where it sees the
network namespaces of the node, also those made after it started: in a container
that is where the node's directories are mounted with mountPropagation
HostToContainer. What may be out of its sight is left alone, and counted as refused.

When another tool rewrites the conflist, the stanzas are put in again, at most once
a second. If they are taken out again and again, it waits longer each time, up to
five minutes, until there is peace. A file that cannot be read as a conflist is
left alone until it can.

The conflist is the one named with --conflist or else the first by name in
--conf-dir that ends in .conflist. --conflist can be given more than once.

When it is told to end, it leaves everything as it is: the plugin works without
it. --uninstall takes the stanzas out of every conflist in --conf-dir, and removes
the plugin if nothing is journaled any more; else the plugin stays, since runtimes
call it for the pods that run. Stop the agent first, or it puts the stanzas back.
With --listen, --uninstall does not exit: it goes on, replaying what is stale if
--interval is given, and removes the plugin as soon as nothing needs it.

A replay runs the chain's plugins where the agent runs. In a container they find
only the programs of its image: without iptables there, portmap's replay fails and
is kept as a debt. With --host-root, where the container has the node's root, they
find those of the node.

With --listen it serves /metrics and /healthz. Reading /metrics reads the journal.`

// Retries of what did not go well, and looks that do not rely on inotify.
const (
	tick      = time.Second
	lookEvery = 10 * time.Second
)

// agent is agent with its flags.
type agent struct {
	*cobra.Command
	node      *node
	plugin    string
	program   []byte // what is in plugin
	hostRoot  string
	binDir    string
	conflists []string
	layout    string
	interval  time.Duration
	listen    string
	uninstall bool

	metrics  *agentMetrics
	backoffs map[string]*backoff
	// said is the last line about each thing, so that none is said every second.
	said map[string]string
}

func newAgent(n *node) *cobra.Command {
	a := agent{node: n, backoffs: make(map[string]*backoff), said: make(map[string]string)}
	a.Command = &cobra.Command{
		Use:   "agent",
		Short: "Keeps durable-args installed on a node, as a DaemonSet",
		Long:  agentHelp,
		Example: `  durable-argsctl agent --listen :9469
  durable-argsctl agent --conflist 10-pods.conflist --layout wrapped
  durable-argsctl agent --uninstall`,
		Args: exactArgs(),
		// In the root command's place: the directories are the node's.
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if err := a.enterHost(); err != nil {
				return err
			}
			return n.complete()
		},
		RunE: func(*cobra.Command, []string) error {
			if err := a.check(); err != nil {
				return err
			}
			if a.uninstall {
				return a.leave()
			}
			return a.run()
		},
	}
	flags := a.Flags()
	flags.StringVar(&a.plugin, "plugin", "", "the plugin to install (default: durable-args beside durable-argsctl)")
	flags.StringVar(&a.hostRoot, "host-root", "", "the node's root, to make one's own once the plugin has been read; all other directories are then the node's")
	flags.StringVar(&a.binDir, "bin-dir", "/opt/cni/bin", "directory where runtimes look for plugins")
	flags.StringArrayVar(&a.conflists, "conflist", nil, "a conflist, by its path or its name in --conf-dir (default: the first one)")
	flags.StringVar(&a.layout, "layout", "", "first, first-last or wrapped (default: the one that it has, else first-last)")
	flags.DurationVar(&a.interval, "interval", 0, "how often to replay what is stale, such as 10m (default: never)")
	flags.StringVar(&a.listen, "listen", "", "address to serve /metrics and /healthz at (default: none)")
	flags.BoolVar(&a.uninstall, "uninstall", false, "take the stanzas out, and the plugin if nothing is journaled")
	return a.Command
}

func (a *agent) check() error {
	switch {
	case a.layout != "" && !slices.Contains(layouts, a.layout):
		return usage("there is no layout %q, only %s", a.layout, strings.Join(layouts, ", "))
	case a.interval != 0 && a.interval < time.Second:
		return usage("--interval %s is too short; give at least 1s", a.interval)
	}
	for i, file := range a.conflists {
		if filepath.Ext(file) != ".conflist" {
			return usage("--conflist %s: runtimes take only a file whose name ends in .conflist for a chain of plugins", file)
		}
		if !strings.Contains(file, "/") {
			a.conflists[i] = filepath.Join(a.node.confDir, file)
		}
		if dir := filepath.Dir(a.conflists[i]); dir != filepath.Clean(a.node.confDir) {
			return usage("--conflist %s is not in %s; say with --conf-dir where the conflists are", file, a.node.confDir)
		}
	}
	return nil
}

// enterHost makes --host-root the root, and reads the plugin, which is then out of
// reach. The plugins that a replay runs find the node's iptables there.
func (a *agent) enterHost() error {
	if a.hostRoot == "" {
		return nil
	}
	if _, err := os.Stat(a.hostRoot); err != nil {
		return fmt.Errorf("--host-root: %w; mount the node's root there", err)
	}
	if err := a.readPlugin(); err != nil {
		return err
	}
	err := syscall.Chroot(a.hostRoot)
	if err == nil {
		err = os.Chdir("/")
	}
	if err != nil {
		return fmt.Errorf("--host-root %s: %w; mount the node's root there, and give the agent CAP_SYS_CHROOT", a.hostRoot, err)
	}
	return nil
}

// readPlugin reads what is to be installed, once.
func (a *agent) readPlugin() error {
	if a.program != nil || a.uninstall {
		return nil
	}
	if a.plugin == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("finding the plugin beside durable-argsctl: %w; say where it is with --plugin", err)
		}
		a.plugin = filepath.Join(filepath.Dir(self), pluginType)
	}
	program, err := readExecutable(a.plugin)
	if err != nil {
		return fmt.Errorf("installing the plugin: %w", needsRoot(err))
	}
	a.program = program
	return nil
}

func (a *agent) run() error {
	if err := a.readPlugin(); err != nil {
		return err
	}
	stop, err := a.serve()
	if err != nil {
		return err
	}
	defer stop()
	// A stanza without its plugin would let every ADD fail.
	if err := a.installPlugin(); err != nil {
		return err
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", a.node.confDir, err)
	}
	defer watcher.Close()
	a.keep()
	a.repair()

	var sweeps sync.WaitGroup
	if a.interval > 0 {
		sweeps.Go(a.sweepOnInterval)
	}
	defer sweeps.Wait()
	a.watch(watcher)
	return nil
}

// serve begins to answer at --listen, if it is given.
func (a *agent) serve() (stop func(), err error) {
	a.metrics = newAgentMetrics(a.node)
	if a.listen == "" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", a.listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return a.metrics.serve(listener), nil
}

func (a *agent) installPlugin() error {
	changed, err := installFile(a.program, a.target())
	if err != nil {
		return fmt.Errorf("installing the plugin: %w", needsRoot(err))
	}
	if changed {
		say(a.Command, "the plugin is installed as %s", a.target())
	}
	return nil
}

func (a *agent) target() string { return filepath.Join(a.binDir, pluginType) }

// watch puts the stanzas back until the agent is told to end. It looks every
// few seconds, too: the directory may not exist yet, or be replaced.
func (a *agent) watch(watcher *fsnotify.Watcher) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	_ = watcher.Add(a.node.confDir)
	dirty, looked := true, time.Now()
	for {
		select {
		case <-a.Context().Done():
			return
		case <-watcher.Events:
			dirty = true
			continue
		case <-watcher.Errors:
			// It may have lost some.
			dirty = true
			continue
		case <-ticker.C:
		}
		if !dirty && time.Since(looked) < lookEvery {
			continue
		}
		if time.Since(looked) >= lookEvery {
			_ = watcher.Add(a.node.confDir)
		}
		if _, err := os.Stat(a.target()); errors.Is(err, fs.ErrNotExist) {
			a.sayOnce(a.target(), a.installPlugin())
		}
		looked = time.Now()
		dirty = !a.keep()
	}
}

// keep puts the stanzas into the conflists that lack them, and reports whether
// all is as it should be.
func (a *agent) keep() bool {
	files, err := a.files()
	a.sayOnce(a.node.confDir, err)
	good, changed := err == nil, false
	for _, file := range files {
		did, err := a.keepIn(file)
		changed = changed || did
		good = good && err == nil
		a.sayOnce(file, err)
	}
	if changed {
		// Also those pods that were added while the stanzas were out.
		i := importing{Command: a.Command, node: a.node, aliveOnly: true, cniPath: cmp.Or(os.Getenv("CNI_PATH"), a.binDir)}
		if err := i.run(); err != nil && !errors.Is(err, errFinding) {
			say(a.Command, "importing: %v", err)
		}
	}
	a.metrics.setReady(good)
	return good
}

// files are the conflists to keep the stanzas in.
func (a *agent) files() ([]string, error) {
	if len(a.conflists) > 0 {
		return a.conflists, nil
	}
	files, err := libcni.ConfFiles(a.node.confDir, []string{".conflist"})
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading --conf-dir: %w", needsRoot(err))
	case len(files) == 0:
		return nil, fmt.Errorf("there is no .conflist in %s yet; waiting for it", a.node.confDir)
	}
	slices.Sort(files)
	return files[:1], nil
}

// errBackingOff is about a file that another tool has rewritten too often.
var errBackingOff = errors.New("another tool takes the stanzas out again and again")

func (a *agent) keepIn(file string) (changed bool, err error) {
	b := a.backoffs[file]
	if b == nil {
		b = new(backoff)
		a.backoffs[file] = b
	}
	now := time.Now()
	a.metrics.backoff.WithLabelValues(filepath.Base(file)).Set(b.current(now).Seconds())
	wait := b.left(now) > 0
	changed, told, err := a.edit(file, wait, func(e conflistEdit, c *conflistText) (edits []edit, done string, err error) {
		return e.insert(c, a.layout, a.node.asked(a.Command))
	})
	switch {
	case changed && wait && b.delay >= backoffSaid:
		return false, fmt.Errorf("%s: %w; they are put back %s after the last time. Find out which tool does it", file, errBackingOff, b.delay)
	case changed && wait:
		return false, errBackingOff
	case changed:
		fmt.Fprint(a.ErrOrStderr(), told)
		b.inserted(now)
		a.metrics.insertions.Inc()
	}
	return changed, err
}

// edit changes a conflist. What there is to tell is for when there is news: else it
// would be a line at each look.
func (a *agent) edit(file string, dryRun bool, plan func(conflistEdit, *conflistText) ([]edit, string, error)) (changed bool, told string, err error) {
	var text bytes.Buffer
	quiet := new(cobra.Command)
	quiet.SetErr(&text)
	quiet.SetOut(io.Discard)
	e := conflistEdit{cmd: quiet, path: file, dryRun: dryRun}
	changed, err = e.change(func(c *conflistText) ([]edit, string, error) { return plan(e, c) })
	return changed, text.String(), err
}

// sayOnce prints an error about a thing, unless it is the one said last.
func (a *agent) sayOnce(about string, err error) {
	text := ""
	if err != nil && err != errBackingOff {
		text = err.Error()
	}
	if text != "" && text != a.said[about] {
		say(a.Command, "%s", text)
	}
	a.said[about] = text
}

func (a *agent) repair() {
	store, err := a.node.store()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var outcomes []repair.Outcome
	if err == nil {
		defer store.Close()
		outcomes, err = repair.Repair(a.Context(), store, a.node.cacheDir, false)
	}
	if err != nil {
		say(a.Command, "repairing libcni's cache: %v", err)
	}
	for _, o := range outcomes {
		a.metrics.repairs.WithLabelValues(string(o.Action)).Inc()
		if o.Action == repair.Repaired || o.Err != nil {
			say(a.Command, "cache file of %s: %s %s", o.Key, o.Action, o.Reason)
		}
	}
}

func (a *agent) sweepOnInterval() {
	ticker := time.NewTicker(a.interval)
	defer ticker.Stop()
	for a.Context().Err() == nil {
		a.sweep()
		select {
		case <-a.Context().Done():
		case <-ticker.C:
		}
	}
}

func (a *agent) sweep() {
	r := replaying{Command: a.Command, node: a.node, stale: true, hostRoot: a.hostRoot != "", cniPath: cmp.Or(os.Getenv("CNI_PATH"), a.binDir), observe: a.metrics.observe}
	// It is silent where there is nothing to do, as nearly always.
	if n, err := a.stale(); err != nil || n > 0 {
		if err := r.run(nil); err != nil && !errors.Is(err, errFinding) && !errors.Is(err, context.Canceled) {
			say(a.Command, "replaying what is stale: %v", err)
		}
	}
	a.metrics.swept.SetToCurrentTime()
}

// stale is how many attachments a sweep would take on.
func (a *agent) stale() (int, error) {
	c, err := a.node.count()
	return c.stale + c.unreadable, err
}

// leave is --uninstall. With --listen it stays, as a DaemonSet's container has to,
// until it is told to end.
func (a *agent) leave() error {
	if a.listen == "" {
		done, err := a.takeOut()
		if err == nil {
			say(a.Command, "%s", done)
		}
		return err
	}
	stop, err := a.serve()
	if err != nil {
		return err
	}
	defer stop()
	var sweeps sync.WaitGroup
	if a.interval > 0 {
		sweeps.Go(a.sweepOnInterval)
	}
	defer sweeps.Wait()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		done, err := a.takeOut()
		a.metrics.setReady(err == nil)
		a.sayOnce("uninstall", cmp.Or(err, errors.New(done)))
		select {
		case <-a.Context().Done():
			return nil
		case <-ticker.C:
		}
	}
}

// takeOut takes the stanzas out of every conflist, then the plugin off the node if
// nothing needs it, and says how far that is done.
func (a *agent) takeOut() (done string, err error) {
	files, err := libcni.ConfFiles(a.node.confDir, []string{".conflist"})
	if err != nil {
		return "", fmt.Errorf("reading --conf-dir: %w", needsRoot(err))
	}
	var errs []error
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && !bytes.Contains(text, []byte(pluginType)) {
			continue // whatever it is, it is not ours to judge
		}
		changed, told, err := a.edit(file, false, conflistEdit.remove)
		if changed {
			fmt.Fprint(a.ErrOrStderr(), told)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return "", fmt.Errorf("%w; the plugin stays until all stanzas are out", err)
	}
	c, err := a.node.count()
	switch {
	case err != nil:
		return "", fmt.Errorf("the plugin stays, since nobody knows what is journaled: %w", err)
	case c.all() > 0:
		done = fmt.Sprintf("the stanzas are out; %d attachments are journaled, so the plugin stays: runtimes call it when these are deleted", c.all())
		if a.listen == "" {
			done += ". See durable-argsctl list, and run this again when it is empty"
		}
		return done, nil
	}
	if err := os.Remove(a.target()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("removing the plugin: %w", needsRoot(err))
	}
	return "the stanzas are out, nothing is journaled, and the plugin is removed", nil
}
