package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/test/sandbox"
)

const agentAddress = "127.0.0.1:9469"

const unprotected = `{"cniVersion": "1.0.0", "name": "web", "plugins": [
  {"type": "bridge", "bridge": "web0", "isGateway": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "iptables"}
]}
`

// agentNode is a node on which nothing of ours is installed.
type agentNode struct {
	*testing.T
	bin, cnibin, conf string
	conflist          string
	stderr            bytes.Buffer
}

func newAgentNode(t *testing.T) *agentNode {
	n := &agentNode{T: t, bin: sandbox.Bin(t), conf: filepath.Join(t.TempDir(), "net.d")}
	var err error
	if n.cnibin, err = install(t.TempDir(), n.bin, "v1.10.0"); err != nil {
		t.Fatal(err)
	}
	n.conflist = filepath.Join(n.conf, "10-web.conflist")
	n.check(os.Remove(n.plugin()))
	n.check(os.Mkdir(n.conf, 0o755))
	n.check(os.Setenv("NETCONFPATH", n.conf))
	n.rewrite()
	return n
}

func (n *agentNode) plugin() string { return filepath.Join(n.cnibin, "durable-args") }

func (n *agentNode) check(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// rewrite puts the conflist as an installer does: without our stanzas.
func (n *agentNode) rewrite() {
	n.Helper()
	n.check(os.WriteFile(n.conflist+".tmp", []byte(unprotected), 0o644))
	n.check(os.Rename(n.conflist+".tmp", n.conflist))
}

func (n *agentNode) protected() bool {
	text, _ := os.ReadFile(n.conflist)
	return bytes.Count(text, []byte(`"durable-args"`)) == 2
}

func (n *agentNode) args(more ...string) []string {
	return append([]string{"agent", "--conf-dir", n.conf, "--bin-dir", n.cnibin}, more...)
}

// start runs the agent; stop ends it with SIGTERM.
func (n *agentNode) start(cmd *exec.Cmd) (stop func()) {
	n.Helper()
	cmd.Stderr = &n.stderr
	n.check(cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			select {
			case err := <-ended:
				if err != nil {
					n.Errorf("the agent ended with %v\n%s", err, n.stderr.String())
				}
			case <-time.After(10 * time.Second):
				_ = cmd.Process.Kill()
				<-ended
				n.Errorf("the agent did not end\n%s", n.stderr.String())
			}
		})
	}
	n.Cleanup(stop)
	return stop
}

func (n *agentNode) agent(more ...string) (stop func()) {
	n.Helper()
	return n.start(exec.Command(filepath.Join(n.bin, "durable-argsctl"), n.args(more...)...))
}

func (n *agentNode) eventually(what string, within time.Duration, is func() bool) {
	n.Helper()
	for deadline := time.Now().Add(within); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.Fatalf("not within %s: %s; left: %q", within, what, sandbox.Leftovers())
		}
	}
}

func (n *agentNode) cni() (*libcni.CNIConfig, *libcni.NetworkConfigList) {
	n.Helper()
	list, err := libcni.LoadNetworkConf(n.conf, "web")
	n.check(err)
	return libcni.NewCNIConfig([]string{n.cnibin}, nil), list
}

// add makes a pod with a host port.
func (n *agentNode) add(name string, port int) *libcni.RuntimeConf {
	n.Helper()
	n.check(exec.Command("ip", "netns", "add", name).Run())
	rt := &libcni.RuntimeConf{ContainerID: name, NetNS: "/run/netns/" + name, IfName: "eth0",
		CapabilityArgs: map[string]any{"portMappings": []any{map[string]any{"hostPort": port, "containerPort": 80, "protocol": "tcp"}}}}
	cni, list := n.cni()
	_, err := cni.AddNetworkList(n.Context(), list, rt)
	n.check(err)
	return rt
}

// delForgetful is DEL by a runtime whose cache has been emptied by a power cut.
func (n *agentNode) delForgetful(rt *libcni.RuntimeConf) error {
	files, _ := filepath.Glob("/var/lib/cni/results/*")
	for _, file := range files {
		n.check(os.Truncate(file, 0))
	}
	bare := *rt
	bare.CapabilityArgs = nil
	cni, list := n.cni()
	return cni.DelNetworkList(n.Context(), list, &bare)
}

func (n *agentNode) journaled(name string) bool {
	_, err := os.Stat("/var/lib/durable-args/web/" + name + "@eth0")
	return err == nil
}

func get(path string) (int, string) {
	resp, err := http.Get("http://" + agentAddress + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func hasLine(text, line string) bool { return strings.Contains("\n"+text, "\n"+line+"\n") }

func TestAnAgentProtectsThePodsThatRunAlready(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	older := n.add("older", 8080)
	stop := n.agent("--listen", agentAddress)
	n.eventually("the pod is journaled", 10*time.Second, func() bool { return n.protected() && n.journaled("older") })
	n.eventually("the agent is healthy", 5*time.Second, func() bool { code, _ := get("/healthz"); return code == 200 })
	if _, metrics := get("/metrics"); !hasLine(metrics, `durable_args_attachments{network="web"} 1`) || !hasLine(metrics, "durable_args_stanza_insertions_total 1") {
		t.Errorf("metrics:\n%s", metrics)
	}
	stop()
	if !n.protected() || !n.journaled("older") {
		t.Error("the agent has not left everything as it was")
	}
	n.check(n.delForgetful(older))
	if left := sandbox.Leftovers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestAnAgentReplaysWhatIsStale(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	n.agent("--interval", "1s", "--listen", agentAddress)
	n.eventually("the stanzas are in", 10*time.Second, n.protected)
	alive := n.add("alive", 8081)
	n.add("dead", 8080)
	n.check(exec.Command("ip", "netns", "del", "dead").Run())
	n.eventually("the dead pod is released", 20*time.Second, func() bool {
		return !n.journaled("dead") && !strings.Contains(strings.Join(sandbox.Leftovers(), "\n"), "8080")
	})
	if !n.journaled("alive") || !strings.Contains(strings.Join(sandbox.Leftovers(), "\n"), "8081") {
		t.Errorf("a live pod was harmed; left: %q", sandbox.Leftovers())
	}
	n.eventually("the replay is counted", 5*time.Second, func() bool {
		_, metrics := get("/metrics")
		return hasLine(metrics, `durable_args_replays_total{outcome="replayed"} 1`)
	})
	n.check(n.delForgetful(alive))
	n.check(exec.Command("ip", "netns", "del", "alive").Run())
	if left := sandbox.Leftovers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestAnAgentPutsTheStanzasBack(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	n.check(os.Remove(n.conflist))
	n.agent()
	n.eventually("the plugin is installed", 10*time.Second, func() bool { _, err := os.Stat(n.plugin()); return err == nil })
	// Written in two halves, as by cp.
	half := len(unprotected) / 2
	n.check(os.WriteFile(n.conflist, []byte(unprotected[:half]), 0o644))
	time.Sleep(1500 * time.Millisecond)
	if text, _ := os.ReadFile(n.conflist); string(text) != unprotected[:half] {
		t.Errorf("a file that is half written has been touched:\n%s", text)
	}
	n.check(os.WriteFile(n.conflist, []byte(unprotected), 0o644))
	n.eventually("the stanzas are in", 10*time.Second, n.protected)
	n.rewrite()
	n.eventually("the stanzas are back", 10*time.Second, n.protected)
}

func TestAnAgentDoesNotFightForEver(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	n.agent("--listen", agentAddress)
	insertions := 0
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if n.protected() {
			insertions++
			n.rewrite()
		}
	}
	if insertions < 2 || insertions > 7 {
		t.Errorf("the stanzas were put back %d times in 20 seconds", insertions)
	}
	if _, metrics := get("/metrics"); !strings.Contains(metrics, `durable_args_stanza_backoff_seconds{conflist="10-web.conflist"} 8`) &&
		!strings.Contains(metrics, `durable_args_stanza_backoff_seconds{conflist="10-web.conflist"} 16`) {
		t.Errorf("metrics:\n%s", metrics)
	}
	n.eventually("the stanzas are back once there is peace", 25*time.Second, n.protected)
}

// release writes the plugin as another release has it: with more bytes at its end.
func (n *agentNode) release(more int) string {
	n.Helper()
	text, err := os.ReadFile(filepath.Join(n.bin, "durable-args"))
	n.check(err)
	file := filepath.Join(n.TempDir(), "durable-args")
	n.check(os.WriteFile(file, append(text, make([]byte, more)...), 0o755))
	return file
}

// upgrade lets the agent install a release.
func (n *agentNode) upgrade(release string) {
	n.Helper()
	want, err := os.Stat(release)
	n.check(err)
	stop := n.agent("--plugin", release)
	n.eventually("the release is installed", 10*time.Second, func() bool {
		info, err := os.Stat(n.plugin())
		return err == nil && info.Size() == want.Size() && n.protected()
	})
	stop()
}

func TestPodsOutliveUpgradesAndDowngrades(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	older, newer := n.release(0), n.release(1)
	n.upgrade(older)
	first := n.add("first", 8080)
	n.upgrade(newer)
	second := n.add("second", 8081)
	n.check(n.delForgetful(first))
	n.upgrade(older)
	n.check(n.delForgetful(second))
	if left := sandbox.Leftovers(); len(left) > 0 || n.journaled("first") || n.journaled("second") {
		t.Errorf("left: %q", left)
	}
}

func TestUpgradesAreNeverSeenHalfDone(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	releases := []string{n.release(0), n.release(1)}
	// What a killed agent has left.
	n.check(os.WriteFile(filepath.Join(n.cnibin, ".durable-args.durable-argsctl"), []byte("half"), 0o700))
	n.upgrade(releases[0])
	done := make(chan struct{})
	var callers sync.WaitGroup
	errs := make([]error, 2)
	for i := range errs {
		callers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				cmd := exec.Command(n.plugin())
				cmd.Env = []string{"CNI_COMMAND=VERSION"}
				cmd.Stdin = strings.NewReader(`{"cniVersion": "1.0.0"}`)
				if out, err := cmd.CombinedOutput(); err != nil {
					errs[i] = errors.Join(errs[i], fmt.Errorf("%w: %s", err, out))
				}
			}
		})
	}
	for i := range 20 {
		n.upgrade(releases[(i+1)%2])
	}
	close(done)
	callers.Wait()
	n.check(errors.Join(errs...))
	if left, _ := filepath.Glob(filepath.Join(n.cnibin, ".durable-args*")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestUninstallKeepsThePluginForThePodsThatRun(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	stop := n.agent()
	n.eventually("the stanzas are in", 10*time.Second, n.protected)
	pod := n.add("pod", 8080)
	cni, list := n.cni()
	stop()
	uninstall := func() string {
		out, err := exec.Command(filepath.Join(n.bin, "durable-argsctl"), n.args("--uninstall")...).CombinedOutput()
		n.check(err)
		return string(out)
	}
	out := uninstall()
	if text, _ := os.ReadFile(n.conflist); string(text) != unprotected {
		t.Errorf("the conflist is not as it was:\n%s", text)
	}
	if !strings.Contains(out, "1 attachments are journaled") {
		t.Errorf("it says %q", out)
	}
	n.check(cni.DelNetworkList(t.Context(), list, pod)) // on the conflist that the runtime has cached
	uninstall()
	if _, err := os.Stat(n.plugin()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the plugin is still there: %v", err)
	}
	if left := sandbox.Leftovers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// As a DaemonSet, whose containers must not end.
func TestAnUninstallingAgentRemovesThePluginAfterTheLastPod(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	stop := n.agent("--interval", "1s", "--listen", agentAddress)
	n.eventually("the stanzas are in", 10*time.Second, n.protected)
	pod := n.add("pod", 8080)
	n.add("dead", 8081)
	cni, list := n.cni()
	stop()
	n.check(exec.Command("ip", "netns", "del", "dead").Run())
	stop = n.agent("--interval", "1s", "--listen", agentAddress, "--uninstall")
	n.eventually("the stanzas are out", 10*time.Second, func() bool {
		text, _ := os.ReadFile(n.conflist)
		return string(text) == unprotected
	})
	n.eventually("the agent is healthy", 5*time.Second, func() bool { code, _ := get("/healthz"); return code == 200 })
	n.eventually("the dead pod is released", 10*time.Second, func() bool { return !n.journaled("dead") })
	if _, err := os.Stat(n.plugin()); err != nil {
		t.Errorf("the plugin is gone while a pod needs it: %v", err)
	}
	if _, metrics := get("/metrics"); !hasLine(metrics, `durable_args_attachments{network="web"} 1`) {
		t.Errorf("metrics:\n%s", metrics)
	}
	n.check(cni.DelNetworkList(t.Context(), list, pod)) // on the conflist that the runtime has cached
	n.eventually("the plugin is gone", 20*time.Second, func() bool {
		_, err := os.Stat(n.plugin())
		return errors.Is(err, os.ErrNotExist)
	})
	// An installer that comes by now is no business of ours.
	n.rewrite()
	stop()
	if text, _ := os.ReadFile(n.conflist); string(text) != unprotected {
		t.Errorf("the conflist is not as it was:\n%s", text)
	}
	if left := sandbox.Leftovers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestAnAgentDoesNotTakeAnotherJournalForTheStanzas(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	moved := t.TempDir()
	stop := n.agent("--data-dir", filepath.Join(moved, "journal"))
	n.eventually("the stanzas say where the journal is", 10*time.Second, func() bool {
		text, _ := os.ReadFile(n.conflist)
		return bytes.Count(text, []byte(`"dataDir": "`+moved+`/journal"`)) == 2
	})
	stop()
	before, err := os.ReadFile(n.conflist)
	n.check(err)
	n.agent("--data-dir", "/var/lib/durable-args", "--listen", agentAddress)
	n.eventually("the agent is up", 10*time.Second, func() bool { code, _ := get("/healthz"); return code == 503 })
	time.Sleep(1500 * time.Millisecond) // it has looked by now
	if after, err := os.ReadFile(n.conflist); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the conflist is now, error %v:\n%s", err, after)
	}
}

func TestAnAgentNeedsNothingButTheTwoBinaries(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	n.add("older", 8080)
	root := t.TempDir()
	for _, name := range []string{"durable-args", "durable-argsctl"} {
		text, err := os.ReadFile(filepath.Join(n.bin, name))
		n.check(err)
		n.check(os.WriteFile(filepath.Join(root, name), text, 0o755))
	}
	for _, dir := range []string{n.conf, n.cnibin, "/var/lib", "/run", "/proc"} {
		n.check(os.MkdirAll(root+dir, 0o755))
		n.check(unix.Mount(dir, root+dir, "", unix.MS_BIND|unix.MS_REC, ""))
		n.Cleanup(func() { _ = unix.Unmount(root+dir, unix.MNT_DETACH) })
	}
	cmd := exec.Command("/durable-argsctl", n.args()...)
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	stop := n.start(cmd)
	n.eventually("the pod is journaled", 10*time.Second, func() bool { return n.protected() && n.journaled("older") })
	stop()
	want, err := os.ReadFile(filepath.Join(n.bin, "durable-args"))
	n.check(err)
	if have, err := os.ReadFile(n.plugin()); err != nil || !bytes.Equal(have, want) {
		t.Errorf("the plugin is not installed: %v", err)
	}
}

func TestAnAgentKeepsWhatANewerReleaseHasJournaled(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	const newer = `9b476f18 {"version":2,"kind":"add","time":"2031-01-01T00:00:00Z","add":{"layout":"woven"}}` + "\n"
	n.check(os.MkdirAll("/var/lib/durable-args/web", 0o700))
	n.check(os.Chmod("/var/lib/durable-args", 0o700))
	file := "/var/lib/durable-args/web/c1@eth0"
	n.check(os.WriteFile(file, []byte(newer), 0o600))
	stop := n.agent("--interval", "1s", "--listen", agentAddress)
	n.eventually("the entry is counted", 10*time.Second, func() bool {
		_, metrics := get("/metrics")
		return hasLine(metrics, "durable_args_newer_entries 1")
	})
	time.Sleep(2500 * time.Millisecond)
	stop()
	if text, err := os.ReadFile(file); err != nil || string(text) != newer {
		t.Errorf("it is %q, error %v", text, err)
	}
}

// inHostRoot runs the agent with the node's root at /host of an image, which gets
// the mounts of the node if slave is set.
func (n *agentNode) inHostRoot(slave bool, more ...string) {
	n.Helper()
	image := n.TempDir()
	for _, name := range []string{"durable-args", "durable-argsctl"} {
		text, err := os.ReadFile(filepath.Join(n.bin, name))
		n.check(err)
		n.check(os.WriteFile(filepath.Join(image, name), text, 0o755))
	}
	host := filepath.Join(image, "host")
	n.check(os.Mkdir(host, 0o755))
	n.check(unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""))
	n.check(unix.Mount("/", host, "", unix.MS_BIND|unix.MS_REC, ""))
	n.Cleanup(func() { _ = unix.Unmount(host, unix.MNT_DETACH) })
	propagation := uintptr(unix.MS_PRIVATE)
	if slave {
		propagation = unix.MS_SLAVE
	}
	n.check(unix.Mount("", host, "", propagation|unix.MS_REC, ""))
	cmd := exec.Command("/durable-argsctl", n.args(append(more, "--host-root", "/host", "--plugin", "/durable-args", "--interval", "1s")...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: image}
	n.start(cmd)
}

// The mounts are those of the DaemonSet: the node's root with HostToContainer.
func TestAnAgentInTheNodesRootReplaysWithTheNodesPrograms(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	n.inHostRoot(true)
	n.eventually("the stanzas are in", 10*time.Second, n.protected)
	alive := n.add("alive", 8081)
	n.add("dead", 8080)
	n.check(exec.Command("ip", "netns", "del", "dead").Run())
	n.eventually("the dead pod is released", 20*time.Second, func() bool {
		return !n.journaled("dead") && !strings.Contains(strings.Join(sandbox.Leftovers(), "\n"), "8080")
	})
	if !n.journaled("alive") || !strings.Contains(strings.Join(sandbox.Leftovers(), "\n"), "8081") {
		t.Errorf("a live pod was harmed; left: %q", sandbox.Leftovers())
	}
	n.check(n.delForgetful(alive))
}

func TestAnAgentLeavesAloneWhatItMayNotSee(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	n := newAgentNode(t)
	n.inHostRoot(false, "--listen", agentAddress)
	n.eventually("the stanzas are in", 10*time.Second, n.protected)
	alive := n.add("alive", 8081)
	n.eventually("the pod is refused", 20*time.Second, func() bool {
		_, metrics := get("/metrics")
		return strings.Contains(metrics, `durable_args_replays_total{outcome="refused"}`) &&
			!hasLine(metrics, `durable_args_replays_total{outcome="refused"} 0`)
	})
	if _, metrics := get("/metrics"); !hasLine(metrics, `durable_args_replays_total{outcome="replayed"} 0`) {
		t.Errorf("metrics:\n%s", metrics)
	}
	if !n.journaled("alive") || !strings.Contains(strings.Join(sandbox.Leftovers(), "\n"), "8081") {
		t.Errorf("a live pod was harmed; left: %q", sandbox.Leftovers())
	}
	n.check(n.delForgetful(alive))
	if left := sandbox.Leftovers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
