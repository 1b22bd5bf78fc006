package runtimes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Where the runtimes and plugins keep what they know, by default.
const (
	cache   = "/var/lib/cni/results"
	ipam    = "/var/lib/cni/networks"
	journal = "/var/lib/durable-args"
	netns   = "/run/netns"
)

// runtime is a container runtime, and the one node's.
type runtime interface {
	// start starts what runs all the time, if anything does.
	start()
	// kill kills the runtime with SIGKILL, with the plugins that it has called,
	// and starts it again. waiting is the command that it was given, if any.
	kill(waiting *call)
	// run and remove give a command to the runtime, and do not wait for its end.
	run(p *pod) *call
	remove(p *pod) *call
	// forget removes what the runtime has on the disk; it does not run.
	forget()
	// knows reports whether the runtime still knows the pod.
	knows(p *pod) bool
	// cniVersion is the newest that it speaks.
	cniVersion() string
	// plugins is a directory of the plugins that belong to it.
	plugins() string
}

// node is a machine with one runtime and one conflist, in a sandbox.
type node struct {
	*testing.T
	runtime runtime
	bin     string // our own binaries
	dir     string // everything that is not at its default place
	layout  string
	cgroup  string
	mounts  map[string]bool // those of the empty machine
	before  map[string]bool // what was there before the pod, see state
	pods    int
	help    string // of durable-argsctl
	// rebooted says that this cell's machine has been.
	rebooted bool
}

// pod is one container, or pod with a container, whose port 80 is reached over
// port.
type pod struct {
	name string
	port int
	id   string // as the runtime says
}

func newNode(t *testing.T, bin, layout string) *node {
	n := &node{T: t, bin: bin, layout: layout, dir: t.TempDir()}
	n.cgroup = "/" + filepath.Base(os.Getenv(session)) + "/" + strings.NewReplacer(" ", "-", "/", "-").Replace(t.Name())
	n.must(os.MkdirAll(n.confDir(), 0o755))
	n.furnish()
	n.mounts = mountPoints()
	return n
}

func (n *node) confDir() string   { return filepath.Join(n.dir, "net.d") }
func (n *node) pluginDir() string { return filepath.Join(n.dir, "cnibin") }

// logFile is the log of a runtime that runs all the time.
func (n *node) logFile() string { return filepath.Join(n.dir, "log") }

// asleep is a file: while it exists, one plugin of the chain waits.
func (n *node) asleep() string { return filepath.Join(n.dir, "asleep") }

// calls is the recorder's record.
func (n *node) calls() string { return filepath.Join(n.dir, "calls") }

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// boot gives the machine its plugins and starts the runtime.
func (n *node) boot() {
	n.must(os.MkdirAll(n.pluginDir(), 0o755))
	names, _ := filepath.Glob(filepath.Join(n.runtime.plugins(), "*"))
	for _, name := range append(names, filepath.Join(n.bin, "cni", "recorder"), filepath.Join(n.bin, "durable-args")) {
		if err := os.Symlink(name, filepath.Join(n.pluginDir(), filepath.Base(name))); err != nil && !os.IsExist(err) {
			n.Fatal(err)
		}
	}
	n.writeConflist(n.layout, chain)
	n.runtime.start()
}

func (n *node) newPod() *pod {
	n.pods++
	return &pod{name: fmt.Sprintf("web-%d", n.pods), port: 20000 + n.pods}
}

// runPod runs a pod and asks it for its page.
func (n *node) runPod() *pod {
	n.Helper()
	p := n.newPod()
	n.must(n.runtime.run(p).wait())
	n.reach(p)
	return p
}

// reach asks the pod for its page over the host port, and makes sure that its
// bandwidth is limited in both directions.
func (n *node) reach(p *pod) {
	n.Helper()
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	var err error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		var answer *http.Response
		if answer, err = client.Get(fmt.Sprintf("http://127.0.0.1:%d/", p.port)); err == nil {
			page, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if string(page) != page80 {
				n.Fatalf("the pod's page is %q", page)
			}
			break
		}
	}
	if err != nil {
		n.Fatalf("the pod cannot be reached over its host port: %v", err)
	}
	// Earlier pods may have left theirs.
	if limits := strings.Count(n.output("tc", "qdisc"), "qdisc tbf"); limits < 2 {
		n.Errorf("bandwidth: %d token buckets, not one for each direction", limits)
	}
}

// warmUp runs a pod and removes it, and takes what is left for what plugins
// share among all pods: a bridge, empty chains. Something that a pod leaves of
// its own has another name every time, so the next pod shows it.
func (n *node) warmUp() {
	p := n.runPod()
	n.must(n.runtime.remove(p).wait())
	n.settle(afterwards, func() bool { return len(processes()) == len(n.daemons()) })
	n.before = state()
}

// daemons are the processes that run without a pod.
func (n *node) daemons() []process {
	var found []process
	for _, p := range processes() {
		if p.name == "containerd" || p.name == "kubelet" {
			found = append(found, p)
		}
	}
	return found
}

// afterwards is how long a runtime may still be at work after it has answered.
const afterwards = 3 * time.Second

// pause is between two looks at the machine.
const pause = 100 * time.Millisecond

// settle waits for what may take a while, and reports whether it has come.
func (n *node) settle(atMost time.Duration, done func() bool) bool {
	for end := time.Now().Add(atMost); ; time.Sleep(pause) {
		if done() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// reloaded waits until a runtime that watches the conflist must have read it.
// containerd says so only in its log, if at all.
func (n *node) reloaded() {
	if len(n.daemons()) > 0 {
		time.Sleep(500 * time.Millisecond)
	}
}

// until waits for something that must happen.
func (n *node) until(what string, done func() bool) {
	n.Helper()
	if !n.settle(callTimeout, done) {
		log, _ := os.ReadFile(n.logFile())
		n.Fatalf("in vain waited until %s; the end of the runtime's log:\n%s", what, log[max(0, len(log)-4000):])
	}
}

// called reports whether the recorder has been called with verb.
func (n *node) called(verb string) bool {
	record, _ := os.ReadFile(n.calls())
	return bytes.HasPrefix(record, []byte(verb+" ")) || bytes.Contains(record, []byte("\n"+verb+" "))
}

// env is what runtimes find in their environment.
func (n *node) env(more ...string) []string {
	return append(append(os.Environ(), "RECORDER="+n.calls()), more...)
}

// call is a command that runs.
type call struct {
	cmd  *exec.Cmd
	text string
	done chan struct{}
	out  bytes.Buffer
	err  error
}

// callTimeout is longer than any of the runtimes takes for anything.
const callTimeout = time.Minute

func (n *node) call(env []string, name string, args ...string) *call {
	return n.then(env, nil, name, args...)
}

// then starts a command; after it has succeeded next gets its output and may do
// the rest of the call.
func (n *node) then(env []string, next func(out string) error, name string, args ...string) *call {
	n.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	c := &call{cmd: exec.CommandContext(ctx, name, args...), done: make(chan struct{})}
	c.text = strings.Join(append([]string{filepath.Base(name)}, args...), " ")
	var stdout bytes.Buffer
	c.cmd.Env = env
	c.cmd.Stdout = &stdout
	c.cmd.Stderr = &c.out
	c.cmd.WaitDelay = time.Second // conmon has our stderr, too
	if err := c.cmd.Start(); err != nil {
		n.Fatal(err)
	}
	go func() {
		defer close(c.done)
		defer cancel()
		err := c.cmd.Wait()
		if errors.Is(err, exec.ErrWaitDelay) {
			err = nil
		}
		if err == nil && next != nil {
			err = next(strings.TrimSpace(stdout.String()))
		}
		if err != nil {
			c.err = fmt.Errorf("%s: %w\n%s%s", c.text, err, c.out.String(), stdout.String())
		}
	}()
	return c
}

func (c *call) wait() error {
	<-c.done
	return c.err
}

// output is what a command prints; it must succeed.
func (n *node) output(name string, args ...string) string {
	n.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		n.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}
