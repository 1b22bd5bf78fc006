package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
	"github.com/durable-args/durable-args/test/sandbox"
)

// Where every ADD comes from, and where it goes.
const (
	containerID = "c1"
	ifName      = "eth0"
	network     = "web"
	args        = "IgnoreUnknown=1;K8S_POD_NAME=web-0"
	otherArgs   = "IgnoreUnknown=1;K8S_POD_NAME=web-1"
	liveNetns   = "/run/netns/c1"
	capability  = `{"portMappings":[{"hostPort":8080}]}`
	result      = `{"cniVersion":"1.1.0","ips":[{"address":"10.88.0.2/24"}]}`
)

var key = journal.Key{Network: network, ContainerID: containerID, IfName: ifName}

// node is a machine as far as the plugin can see it: a store, a conflist and
// libcni's cache in a directory of its own, and a chain of one recorder.
type node struct {
	t       *testing.T
	dir     string
	list    *libcni.NetworkConfigList
	cni     *libcni.CNIConfig
	netns   string
	args    string // the CNI_ARGS of the next call; without, it has no capability args either
	stderr  bytes.Buffer
	stdout  bytes.Buffer // of durable-argsctl
	records string

	// owed are the CNI_ARGS of the ADDs that have been acknowledged.
	owed []string
	// edited is other as the last insert has left it.
	edited string
	// corrupt is how many files have to be kept aside.
	corrupt int

	// The next call of the stanza in this position goes by way of run.
	position string
	run      func(*exec.Cmd) error
}

// newNode returns a node whose chain is laid out as layout says.
func newNode(t *testing.T, dir, layout string) *node {
	n := &node{t: t, dir: dir, records: dir + ".calls"}
	must(t, os.MkdirAll(filepath.Join(dir, "net.d"), 0o755))
	chain := fmt.Sprintf(`{"type": "recorder", "result": %s, "failWhile": %q, "capabilities": {"portMappings": true}}`, result, n.broken())
	own := func(more string) string {
		return fmt.Sprintf(`{"type": "durable-args", "capabilities": {"portMappings": true}, "dataDir": %q, "confDir": %q, "cacheDir": %q%s}`,
			n.dataDir(), n.confDir(), n.cacheDir(), more)
	}
	switch layout {
	case "first":
		chain = own("") + "," + chain
	case "first-last":
		chain = own("") + "," + chain + "," + own(`, "position": "last"`)
	case "wrapped":
		chain = own(`, "plugins": [` + chain + `]`)
	}
	conflist := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "plugins": [%s]}`, network, chain)
	must(t, os.WriteFile(filepath.Join(n.confDir(), "10-web.conflist"), []byte(conflist), 0o644))
	var err error
	n.list, err = libcni.NetworkConfFromFile(filepath.Join(n.confDir(), "10-web.conflist"))
	must(t, err)
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{sandbox.Bin(t), filepath.Join(sandbox.Bin(t), "cni")}, n.cacheDir(), n)
	return n
}

func (n *node) dataDir() string  { return filepath.Join(n.dir, "data") }
func (n *node) confDir() string  { return filepath.Join(n.dir, "net.d") }
func (n *node) cacheDir() string { return filepath.Join(n.dir, "cache") }

// broken is the file that makes the recorder fail while it exists.
func (n *node) broken() string { return n.dir + ".broken" }

// reset makes the node new again.
func (n *node) reset() {
	for _, path := range []string{n.dataDir(), n.cacheDir(), n.other(), n.records, n.records + ".stdin", n.broken()} {
		must(n.t, os.RemoveAll(path))
	}
	n.netns, n.args, n.owed, n.corrupt = liveNetns, args, nil, 0
	n.stderr.Reset()
}

// lose takes from the runtime all that it needs for DEL.
func (n *node) lose() {
	n.args = ""
	must(n.t, os.RemoveAll(n.cacheDir()))
}

func (n *node) runtimeConf() *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{ContainerID: containerID, NetNS: n.netns, IfName: ifName}
	if n.args == "" {
		return rt
	}
	for pair := range strings.SplitSeq(n.args, ";") {
		name, value, _ := strings.Cut(pair, "=")
		rt.Args = append(rt.Args, [2]string{name, value})
	}
	must(n.t, json.Unmarshal([]byte(capability), &rt.CapabilityArgs))
	return rt
}

func (n *node) add() error {
	_, err := n.cni.AddNetworkList(context.Background(), n.list, n.runtimeConf())
	return err
}

func (n *node) del() error {
	return n.cni.DelNetworkList(context.Background(), n.list, n.runtimeConf())
}

func (n *node) check() error {
	return n.cni.CheckNetworkList(context.Background(), n.list, n.runtimeConf())
}

func (n *node) gc() error {
	return n.cni.GCNetworkList(context.Background(), n.list, &libcni.GCArgs{})
}

func (n *node) status() error { return n.cni.GetStatusNetworkList(context.Background(), n.list) }

// other is a conflist that durable-argsctl edits.
func (n *node) other() string { return filepath.Join(n.confDir(), "20-db.conflist") }

const otherConflist = `{"cniVersion": "1.0.0", "name": "db", "plugins": [{"type": "recorder", "capabilities": {"portMappings": true}}]}
`

func (n *node) otherText() string {
	text, err := os.ReadFile(n.other())
	must(n.t, err)
	return string(text)
}

func (n *node) cacheFile() string {
	return filepath.Join(n.cacheDir(), "results", strings.Join([]string{network, containerID, ifName}, "-"))
}

func (n *node) repair() error { return n.ctl("repair") }
func (n *node) remove() error { return n.ctl("remove", n.other()) }
func (n *node) insert() error {
	err := n.ctl("insert", n.other(), "--conf-dir", n.confDir())
	if err == nil {
		n.edited = n.otherText()
	}
	return err
}

// ctl calls durable-argsctl. Its error is a *types.Error if it has said what is
// wrong.
func (n *node) ctl(args ...string) error {
	n.stdout.Reset()
	cmd := exec.Command(filepath.Join(sandbox.Bin(n.t), "durable-argsctl"), args...)
	if args[0] == "repair" {
		cmd.Args = append(cmd.Args, "--conf-dir", n.confDir())
	}
	var said bytes.Buffer
	cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	cmd.Stdout, cmd.Stderr = &n.stdout, io.MultiWriter(&n.stderr, &said)
	run := (*exec.Cmd).Run
	if n.run != nil {
		run, n.run = n.run, nil
	}
	err := run(cmd)
	if err != nil && strings.HasPrefix(said.String(), "durable-argsctl: ") {
		return types.NewError(types.ErrInternal, said.String(), "")
	}
	return err
}

// addDead adds an attachment whose network namespace is gone by now.
func (n *node) addDead() {
	n.netns = n.dir + ".netns"
	must(n.t, os.WriteFile(n.netns, nil, 0o600))
	must(n.t, unix.Mount(liveNetns, n.netns, "", unix.MS_BIND, ""))
	must(n.t, n.add())
	must(n.t, unix.Unmount(n.netns, unix.MNT_DETACH))
	must(n.t, os.Remove(n.netns))
}

// told reports whether the recorder has got a DEL with all that is owed.
func (n *node) told() bool {
	return !slices.ContainsFunc(n.owed, func(args string) bool { return !n.recorded("DEL", "args="+args+" caps="+capability+" ") })
}

// recorded reports whether the recorder has had a call with something.
func (n *node) recorded(call, with string) bool {
	b, _ := os.ReadFile(n.records)
	return slices.ContainsFunc(strings.Split(string(b), "\n"), func(line string) bool {
		return strings.HasPrefix(line, call) && strings.Contains(line, with)
	})
}

// journaled returns what the store holds of the attachment, the zero Record if
// it has no file.
func (n *node) journaled() (journal.Record, error) {
	store, err := journal.Open(n.dataDir())
	if errors.Is(err, fs.ErrNotExist) {
		return journal.Record{}, nil
	}
	if err != nil {
		return journal.Record{}, err
	}
	defer store.Close()
	rec, err := store.Read(key)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return rec, err
}

// noteBoot spares the next call the repair of libcni's cache, which is another
// verb's concern; its own faults are in test/e2e.
func (n *node) noteBoot() {
	boot, err := netnsid.BootID()
	must(n.t, err)
	err = os.WriteFile(filepath.Join(n.dataDir(), ".boot"), []byte(boot+"\n"), 0o600)
	if !errors.Is(err, fs.ErrNotExist) {
		must(n.t, err)
	}
}

// files lists what is in the store beside directories, and how many of the
// files have been set aside.
func (n *node) files() (files []string, aside int) {
	must(n.t, filepath.WalkDir(n.dataDir(), func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(n.dataDir(), path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && name == ".":
			return nil
		case err != nil || d.IsDir():
			return err
		case strings.HasPrefix(name, ".corrupt/"):
			aside++
		case name == ".boot":
		default:
			files = append(files, name)
		}
		return nil
	}))
	return files, aside
}

// divert makes the next call of the stanza in position go by way of run.
func (n *node) divert(position string, run func(*exec.Cmd) error) { n.position, n.run = position, run }

var _ invoke.Exec = (*node)(nil)

// ExecPlugin calls a plugin as libcni's own does. An error that it printed is
// a *types.Error, else it is none.
func (n *node) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, plugin)
	// A signal by which the Go runtime preempts a thread can make the kernel begin a
	// call again, which would count twice.
	cmd.Env = append(environ, "RECORDER="+n.records, "GODEBUG=asyncpreemptoff=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &n.stderr
	var stanza struct{ Position string }
	if err := json.Unmarshal(stdin, &stanza); err != nil {
		return nil, err
	}
	run := (*exec.Cmd).Run
	if n.run != nil && filepath.Base(plugin) == "durable-args" && stanza.Position == n.position {
		run, n.run = n.run, nil
	}
	err := run(cmd)
	if err == nil {
		return stdout.Bytes(), nil
	}
	var printed types.Error
	if jsonErr := json.Unmarshal(stdout.Bytes(), &printed); jsonErr != nil || printed.Code == 0 {
		return nil, fmt.Errorf("%w, with no CNI error on stdout: %s", err, &stdout)
	}
	return nil, &printed
}

func (n *node) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

func (n *node) Decode(b []byte) (version.PluginInfo, error) {
	return (&invoke.DefaultExec{}).Decode(b)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
