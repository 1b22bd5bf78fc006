// Package load keeps a node busy while things go wrong, and then looks whether
// anything is left.
//
// Two hundred containers are started and stopped by a runtime that makes sixteen
// calls at a time, on two networks of bridge, portmap and firewall: one with
// a first and a last stanza, one that is wrapped. Beside it run, again and again, GC
// with an empty list and durable-argsctl replay --stale.
// One call in a few meets a fault: a plugin or durable-args itself is killed in
// the middle of it, libcni's cache file is emptied, filled with zeros or gone,
// the args are lost, the container's network namespace is gone, an ADD comes
// twice, or no DEL comes at all. The runtime tries a failed DEL again.
//
// While a container lives, its rules must stand, whatever happens to others. In
// the end, when all are dead and the runtime has called GC once more, nothing is
// left: no file in the journal, no rule, no address, no link.
//
// It goes on for ten seconds, or as long as LOAD says in the environment: LOAD=1m,
// or make load.
package load

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/test/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

const (
	containers = 200
	atOnce     = 16
	tries      = 20 // of one DEL
)

func TestLoad(t *testing.T) {
	if !sandbox.Enter(t) {
		return
	}
	duration, err := time.ParseDuration(cmp.Or(os.Getenv("LOAD"), "10s"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRuntime(t)
	// The plugins' own race (containernetworking/plugins#335): whoever is second
	// to make the bridge, or a chain that all containers share, fails. So one
	// has been here before.
	for i := range r.lists {
		c := &container{number: containers + i, list: r.lists[i]}
		if err := errors.Join(r.newNetns(c), r.add(c, nil), r.del(c, nil, false), r.die(c)); err != nil {
			t.Fatal(err)
		}
	}
	r.figures = newFigures()

	var all []*container
	for i := range containers {
		all = append(all, &container{number: i, list: r.lists[i%len(r.lists)]})
	}
	end := time.Now().Add(duration)
	var workers sync.WaitGroup
	for w := range atOnce {
		workers.Go(func() {
			mine := all[w*containers/atOnce : (w+1)*containers/atOnce]
			for time.Now().Before(end) {
				c := mine[rand.IntN(len(mine))]
				if err := r.step(c); err != nil {
					t.Errorf("container %s in %s: %v", c.id(), c.list.Name, err)
					return
				}
			}
		})
	}
	stop := make(chan struct{})
	var collector sync.WaitGroup
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Millisecond):
				// What these must not do, and what they leave to do, is seen by others.
				for _, list := range r.lists {
					_ = r.gc(list)
				}
				_ = r.replay()
			}
		}
	})
	workers.Wait()
	close(stop)
	collector.Wait()
	if t.Failed() {
		return
	}

	// The end of the day: the runtime stops every other one that lives, and
	// forgets the rest, for which GC is there.
	for w := range atOnce {
		workers.Go(func() {
			for _, c := range all[w*containers/atOnce : (w+1)*containers/atOnce] {
				end := r.die
				if c.alive && oneIn(2) {
					end = r.stop
				}
				if err := end(c); err != nil {
					t.Errorf("container %s: %v", c.id(), err)
				}
			}
		})
	}
	workers.Wait()
	for _, list := range r.lists {
		if err := r.gc(list); err != nil {
			t.Errorf("the last GC of %s: %v", list.Name, err)
		}
	}
	// The kernel takes its time with the links of a namespace that is gone.
	left := sandbox.Leftovers()
	for deadline := time.Now().Add(20 * time.Second); len(left) > 0 && time.Now().Before(deadline); left = sandbox.Leftovers() {
		time.Sleep(100 * time.Millisecond)
	}
	if len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	sandbox.Report(t, r.figures.String())
}

// container is one that the runtime has. One goroutine has it.
type container struct {
	number int
	list   *libcni.NetworkConfigList
	alive  bool   // it has been added, and not been stopped
	ip     string // of the last ADD that succeeded
}

func (c *container) id() string    { return fmt.Sprintf("c%d", c.number) }
func (c *container) netns() string { return "/run/netns/" + c.id() }

// node is the machine and its runtime.
type node struct {
	t       *testing.T
	lists   []*libcni.NetworkConfigList
	cni     *libcni.CNIConfig
	confDir string
	figures *figures
}

func newRuntime(t *testing.T) *node {
	confDir := t.TempDir()
	r := &node{t: t, confDir: confDir, figures: newFigures()}
	bin := sandbox.Bin(t)
	r.cni = libcni.NewCNIConfig([]string{bin, filepath.Join(bin, "cni")}, r)
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		t.Fatal(err)
	}
	own := func(more string) string {
		return fmt.Sprintf(`{"type": "durable-args", "capabilities": {"portMappings": true}, "confDir": %q%s}`, confDir, more)
	}
	for i, layout := range []string{"first-last", "wrapped"} {
		// No address is given twice within a run: a plugin of the chain that is
		// killed after the address was released leaves a DEL to be repeated, and
		// the firewall plugin, which knows its rules by address only, would then
		// take those of its heir. That is so without us, too.
		chain := fmt.Sprintf(`{"type": "bridge", "bridge": "load%d", "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.%d.0.0/16"}]]}},
			{"type": "portmap", "capabilities": {"portMappings": true}, "backend": %q},
			{"type": "firewall", "backend": "iptables"}`, i, 100+i, []string{"iptables", "nftables"}[i])
		if layout == "wrapped" {
			chain = own(`, "plugins": [` + chain + `]`)
		} else {
			chain = own("") + "," + chain + "," + own(`, "position": "last"`)
		}
		file := filepath.Join(confDir, layout+".conflist")
		conflist := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [%s]}`, layout, chain)
		if err := os.WriteFile(file, []byte(conflist), 0o644); err != nil {
			t.Fatal(err)
		}
		list, err := libcni.NetworkConfFromFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r.lists = append(r.lists, list)
	}
	return r
}

// step starts c if it does not run, and stops it if it does.
func (r *node) step(c *container) error {
	if !c.alive {
		return r.start(c)
	}
	if oneIn(8) {
		if err := r.intact(c); err != nil {
			return err
		}
	}
	switch {
	case oneIn(12): // forgotten: until it is added again, or GC comes
		r.figures.count("died without a DEL")
		return r.die(c)
	case oneIn(20): // a reboot without a reboot: ADD comes again without a DEL
		r.figures.count("ADD without a DEL before it")
		if err := r.die(c); err != nil {
			return err
		}
		return r.start(c)
	}
	return r.stop(c)
}

// start adds c and, if that fails, cleans up as a runtime does.
func (r *node) start(c *container) error {
	if err := r.newNetns(c); err != nil {
		return err
	}
	var k *kill
	switch {
	case oneIn(8):
		// Nothing is killed that stands behind firewall: its DEL needs the
		// result, which nobody has before ADD is done, with or without us.
		k = &kill{victim: "portmap"}
	case oneIn(8) && len(c.list.Plugins) > 1:
		k = &kill{victim: "durable-args"} // the first, since it strikes once
	}
	err := r.add(c, k)
	if err == nil {
		return nil
	}
	r.figures.count("ADD failed: " + kind(err))
	return r.stop(c)
}

// stop deletes c, as often as it takes, whatever has been lost.
func (r *node) stop(c *container) error {
	switch files, _ := filepath.Glob("/var/lib/cni/results/*-" + c.id() + "-eth0"); {
	case len(files) == 0 || !oneIn(3):
	case oneIn(3):
		r.figures.count("cache files removed")
		_ = os.Remove(files[0])
	case oneIn(2):
		r.figures.count("cache files emptied")
		_ = os.Truncate(files[0], 0)
	default:
		r.figures.count("cache files zeroed")
		_ = os.WriteFile(files[0], make([]byte, 4096), 0o600)
	}
	if oneIn(5) {
		if err := r.removeNetns(c); err != nil {
			return err
		}
	}
	var k *kill
	if oneIn(4) {
		k = &kill{victim: []string{"durable-args", "bridge", "portmap", "firewall"}[rand.IntN(4)]}
	}
	lost := oneIn(2)
	if lost {
		r.figures.count("DELs without args")
	}
	var err error
	for range tries {
		if err = r.del(c, k, lost); err == nil {
			c.alive = false
			return r.removeNetns(c)
		}
		r.figures.count("DEL failed: " + kind(err))
		k = nil
	}
	return fmt.Errorf("after %d tries, DEL still fails: %w", tries, err)
}

// die takes c's network namespace away, and the runtime forgets it.
func (r *node) die(c *container) error {
	c.alive = false
	return r.removeNetns(c)
}

func (r *node) runtimeConf(c *container, lost bool) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{ContainerID: c.id(), NetNS: c.netns(), IfName: "eth0"}
	if !lost {
		rt.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", c.id()}}
		rt.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": c.port(), "containerPort": 80, "protocol": "tcp"}}}
	}
	if _, err := os.Stat(rt.NetNS); err != nil {
		rt.NetNS = ""
	}
	return rt
}

func (c *container) port() int { return 20000 + c.number }

func (r *node) add(c *container, k *kill) error {
	defer r.figures.time("ADD", time.Now())
	result, err := r.cni.AddNetworkList(k.in(context.Background()), c.list, r.runtimeConf(c, false))
	if err != nil {
		return err
	}
	typed, err := types100.GetResult(result)
	if err != nil {
		return err
	}
	c.alive, c.ip = true, typed.IPs[0].Address.IP.String()
	return nil
}

// replay is what a timer or an operator does.
func (r *node) replay() error {
	defer r.figures.time("replay --stale", time.Now())
	bin := sandbox.Bin(r.t)
	cmd := exec.Command(filepath.Join(bin, "durable-argsctl"), "replay", "--stale", "--conf-dir", r.confDir)
	cmd.Env = append(os.Environ(), "CNI_PATH="+bin+":"+filepath.Join(bin, "cni"))
	return cmd.Run()
}

func (r *node) del(c *container, k *kill, lost bool) error {
	defer r.figures.time("DEL", time.Now())
	return r.cni.DelNetworkList(k.in(context.Background()), c.list, r.runtimeConf(c, lost))
}

// gc calls our stanza as a runtime would that knows of nothing. (libcni would
// first delete by itself all that it has cached.)
func (r *node) gc(list *libcni.NetworkConfigList) error {
	defer r.figures.time("GC", time.Now())
	var request map[string]any
	if err := json.Unmarshal(list.Plugins[0].Bytes, &request); err != nil {
		return err
	}
	request["name"], request["cniVersion"] = list.Name, "1.1.0"
	request["cni.dev/valid-attachments"] = []any{}
	stdin, err := json.Marshal(request)
	if err != nil {
		return err
	}
	bin := sandbox.Bin(r.t)
	_, err = r.ExecPlugin(context.Background(), filepath.Join(bin, "durable-args"), stdin,
		append(os.Environ(), "CNI_COMMAND=GC", "CNI_PATH="+filepath.Join(bin, "cni")))
	if err != nil {
		r.figures.count("GC failed: " + kind(err))
	}
	return err
}

// intact returns an error if a rule of c, which lives, is gone.
func (r *node) intact(c *container) error {
	r.figures.count("looked at while alive")
	rules := strings.Join(append(sandbox.Output("iptables-save"), sandbox.Output("nft", "list", "ruleset")...), "\n")
	for _, want := range []string{fmt.Sprintf("-s %s/32 -j ACCEPT", c.ip), fmt.Sprintf("dport %d", c.port())} {
		if !strings.Contains(rules, want) {
			return fmt.Errorf("it lives, but %q is gone", want)
		}
	}
	return nil
}

// newNetns makes a network namespace for c, in place of the one it may have.
func (r *node) newNetns(c *container) error {
	if err := r.removeNetns(c); err != nil {
		return err
	}
	if err := os.WriteFile(c.netns(), nil, 0o600); err != nil {
		return err
	}
	// The thread goes back: it may be the process's first one, which never
	// ends, and would keep the namespace alive.
	runtime.LockOSThread()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer own.Close()
	err = unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		err = unix.Mount("/proc/thread-self/ns/net", c.netns(), "", unix.MS_BIND, "")
	}
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		return back // locked for ever, so that nothing else runs there
	}
	runtime.UnlockOSThread()
	return err
}

func (r *node) removeNetns(c *container) error {
	if err := unix.Unmount(c.netns(), unix.MNT_DETACH); err != nil && err != unix.ENOENT {
		return fmt.Errorf("unmounting %s: %w", c.netns(), err)
	}
	if err := os.Remove(c.netns()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// kill is what will strike the first plugin of a name in a call, also if it is
// called by another one.
type kill struct {
	victim string
	once   sync.Once
}

type killKey struct{}

func (k *kill) in(ctx context.Context) context.Context { return context.WithValue(ctx, killKey{}, k) }

// wait waits until the victim runs, as the process pid or as a child of it, and
// then a moment more, and kills it.
func (k *kill) wait(ctx context.Context, plugin string, pid int) {
	victim := 0
	for ; victim == 0; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			return
		}
		if plugin == k.victim {
			victim = pid
			break
		}
		children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, file := range children {
			list, _ := os.ReadFile(file)
			for _, child := range strings.Fields(string(list)) {
				if comm, _ := os.ReadFile("/proc/" + child + "/comm"); string(comm) == k.victim+"\n" {
					victim, _ = strconv.Atoi(child)
				}
			}
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(rand.N(40 * time.Millisecond)):
		k.once.Do(func() { _ = unix.Kill(victim, unix.SIGKILL) })
	}
}

var _ invoke.Exec = (*node)(nil)

// ExecPlugin is libcni's, in a process group, so that after a kill we can wait
// for those that the victim leaves behind: what they do after a DEL (portmap's
// iptables, bridge's host-local) no DEL can undo.
func (r *node) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	var stdout bytes.Buffer
	cmd := exec.Command(plugin)
	cmd.Env, cmd.Stdin, cmd.Stdout = environ, bytes.NewReader(stdin), &stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	k, _ := ctx.Value(killKey{}).(*kill)
	ctx, cancel := context.WithCancel(ctx)
	var killer sync.WaitGroup
	if k != nil {
		killer.Go(func() { k.wait(ctx, filepath.Base(plugin), cmd.Process.Pid) })
	}
	err := cmd.Wait()
	cancel()
	killer.Wait()
	if k != nil {
		awaitGroup(cmd.Process.Pid)
	}
	if err == nil {
		return stdout.Bytes(), nil
	}
	var printed types.Error
	if json.Unmarshal(stdout.Bytes(), &printed) != nil || printed.Msg == "" {
		return nil, fmt.Errorf("%s: %w", filepath.Base(plugin), err)
	}
	return nil, &pluginError{filepath.Base(plugin), &printed}
}

// awaitGroup waits for the last process of a group. We are the first process of
// the sandbox, so orphans are ours to reap.
func awaitGroup(pgid int) {
	for unix.Kill(-pgid, 0) == nil {
		_, _ = unix.Wait4(-pgid, nil, unix.WNOHANG, nil)
		time.Sleep(time.Millisecond)
	}
}

func (r *node) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

func (r *node) Decode(b []byte) (version.PluginInfo, error) {
	return (&invoke.DefaultExec{}).Decode(b)
}

type pluginError struct {
	plugin string
	err    *types.Error
}

func (e *pluginError) Error() string { return e.plugin + ": " + e.err.Error() }
func (e *pluginError) Unwrap() error { return e.err }

// kind names an error without what differs from one container to the next.
func kind(err error) string {
	var printed *pluginError
	switch {
	case !errors.As(err, &printed):
		return lastOf(err.Error())
	case strings.Contains(printed.err.Msg, "killed"):
		return printed.plugin + " said that another was killed"
	default:
		return fmt.Sprintf("%s, code %d", printed.plugin, printed.err.Code)
	}
}

// lastOf returns the last two parts of an error, who and what.
func lastOf(s string) string {
	parts := strings.Split(s, ": ")
	return strings.Join(parts[max(0, len(parts)-3):], ": ")
}

// figures are what a run adds up to.
type figures struct {
	mu     sync.Mutex
	counts map[string]int
	times  map[string][]time.Duration
}

func newFigures() *figures {
	return &figures{counts: make(map[string]int), times: make(map[string][]time.Duration)}
}

func (f *figures) count(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[what]++
}

func (f *figures) time(verb string, start time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.times[verb] = append(f.times[verb], time.Since(start))
}

func (f *figures) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, verb := range slices.Sorted(maps.Keys(f.times)) {
		times := slices.Sorted(slices.Values(f.times[verb]))
		fmt.Fprintf(&b, "%6d %s (median %d ms, longest %d ms)\n", len(times), verb, times[len(times)/2].Milliseconds(), times[len(times)-1].Milliseconds())
	}
	for _, what := range slices.Sorted(maps.Keys(f.counts)) {
		fmt.Fprintf(&b, "%6d %s\n", f.counts[what], what)
	}
	return b.String()
}

func oneIn(n int) bool { return rand.IntN(n) == 0 }
