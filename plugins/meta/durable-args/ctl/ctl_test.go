package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
)

// testNode is a node with directories of its own.
type testNode struct {
	*testing.T
	dataDir, confDir, cacheDir, binDir string
	stdin                              io.Reader
	ctx                                context.Context
	look                               func(hostRoot bool) (*sight, error)
}

func newTestNode(t *testing.T) *testNode {
	dir := t.TempDir()
	return &testNode{
		T:        t,
		dataDir:  filepath.Join(dir, "journal"),
		confDir:  filepath.Join(dir, "net.d"),
		cacheDir: filepath.Join(dir, "cache"),
		binDir:   filepath.Join(dir, "bin"),
		stdin:    strings.NewReader(""),
		ctx:      t.Context(),
		look:     clearSight,
	}
}

// clearSight is that of a process of the node itself, which the test may not be.
func clearSight(hostRoot bool) (*sight, error) {
	s, err := look(hostRoot)
	if err == nil {
		s.initial, s.node = true, true
	}
	return s, err
}

// ctl runs durable-argsctl.
func (n *testNode) ctl(args ...string) (stdout, stderr string, err error) {
	n.Helper()
	var out bytes.Buffer
	var errOut sharedBuffer
	root := newRoot(n.look)
	root.SetIn(n.stdin)
	root.SetOut(&out)
	root.SetErr(&errOut)
	root.SetArgs(append(args, "--data-dir", n.dataDir, "--conf-dir", n.confDir, "--cache-dir", n.cacheDir))
	err = root.ExecuteContext(n.ctx)
	return out.String(), errOut.String(), err
}

// sharedBuffer may be written to by plugins, too, as the standard error may.
type sharedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *sharedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *sharedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// journal appends entries to an attachment's file.
func (n *testNode) journal(key journal.Key, entries ...journal.Entry) {
	n.Helper()
	store, err := journal.Create(n.dataDir)
	if err != nil {
		n.Fatal(err)
	}
	defer store.Close()
	for _, e := range entries {
		if err := store.Append(key, e); err != nil {
			n.Fatal(err)
		}
	}
}

func (n *testNode) file(key journal.Key) string { return filepath.Join(n.dataDir, key.String()) }

func (n *testNode) read(key journal.Key) journal.Record {
	n.Helper()
	store, err := journal.Open(n.dataDir)
	if err != nil {
		n.Fatal(err)
	}
	defer store.Close()
	rec, err := store.Read(key)
	if err != nil {
		n.Fatal(err)
	}
	return rec
}

// left are the container IDs in the journal, sorted.
func (n *testNode) left() string {
	files, _ := filepath.Glob(n.dataDir + "/[^.]*/*")
	for i, file := range files {
		files[i], _, _ = strings.Cut(filepath.Base(file), "@")
	}
	slices.Sort(files)
	return strings.Join(files, " ")
}

func (n *testNode) write(path, text string) {
	n.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
}

// plugin installs a CNI plugin that writes its calls to the file calls beside
// it, and its requests to requests; more are shell commands that come first.
func (n *testNode) plugin(name, more string) {
	n.Helper()
	path := filepath.Join(n.binDir, name)
	n.write(path, fmt.Sprintf("#!/bin/sh\n%s\necho %s $CNI_CONTAINERID netns=$CNI_NETNS args=$CNI_ARGS >>%[3]s/calls\n{ cat; echo; } >>%[3]s/requests\n", more, name, n.binDir))
	if err := os.Chmod(path, 0o755); err != nil {
		n.Fatal(err)
	}
}

func (n *testNode) calls() []string { return n.lines("calls") }

func (n *testNode) lines(name string) []string {
	text, err := os.ReadFile(filepath.Join(n.binDir, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.Fatal(err)
	}
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func web(container string) journal.Key {
	return journal.Key{Network: "web", ContainerID: container, IfName: "eth0"}
}

// goneAdd is an ADD whose network namespace was of this boot, and is gone.
func (n *testNode) goneAdd() journal.Add {
	n.Helper()
	boot, err := netnsid.BootID()
	if err != nil {
		n.Fatal(err)
	}
	return journal.Add{
		Layout:        "first",
		Args:          []byte("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"),
		RuntimeConfig: json.RawMessage(`{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`),
		CNIVersion:    "1.0.0",
		Path:          n.binDir,
		NetNS:         journal.NetNS{Path: "/run/netns/there-is-none", Device: 4, Inode: 5, BootID: boot, Cookie: 6},
		Conflist:      []byte(`{"name":"web"}`),
		Chain:         []json.RawMessage{json.RawMessage(`{"type":"bridge"}`), json.RawMessage(`{"type":"portmap","capabilities":{"portMappings":true}}`)},
	}
}

// aliveAdd is an ADD whose network namespace is this test's own.
func (n *testNode) aliveAdd() journal.Add {
	n.Helper()
	id, err := netnsid.Of("/proc/self/ns/net")
	if err != nil {
		n.Fatal(err)
	}
	add := n.goneAdd()
	add.NetNS = journal.NetNS(id)
	return add
}

func address(ip string) journal.Result {
	return journal.Result(fmt.Sprintf(`{"cniVersion":"1.0.0","ips":[{"address":"%s/24"}]}`, ip))
}

func TestEveryCommandKnowsHowItIsUsed(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"no-such-command"},
		{"list", "--no-such-flag"},
		{"list", "c1"},
		{"list", "-o", "yaml"},
		{"show"},
		{"show", "c1", "c2"},
		{"replay"},
		{"replay", "c1", "c2"},
		{"replay", "c1", "--stale"},
		{"replay", "--stale", "--force"},
		{"replay", "--stale", "--network", "web"},
		{"replay", "c1", "-o", "json"},
		{"forget"},
		{"import", "c1"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			stdout, _, err := newTestNode(t).ctl(args...)
			if !errors.As(err, new(*usageError)) || stdout != "" {
				t.Errorf("error %v, want one of usage; stdout %q", err, stdout)
			}
		})
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	t.Parallel()
	for _, cmd := range newRoot(clearSight).Commands() {
		if cmd.Short == "" || cmd.Long == "" || !strings.Contains(cmd.Example, "durable-argsctl "+cmd.Name()) {
			t.Errorf("%s lacks words or an example", cmd.Name())
		}
	}
}

func TestThereNeedNotBeAJournal(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		args   []string
		stdout string
	}{
		{[]string{"list"}, ""},
		{[]string{"list", "-o", "json"}, "[]\n"},
		{[]string{"show", "c1"}, ""},
		{[]string{"show", "c1", "-o", "json"}, "[]\n"},
		{[]string{"replay", "c1"}, ""},
		{[]string{"replay", "--stale"}, ""},
		{[]string{"replay", "--stale", "--dry-run", "-o", "json"}, "[]\n"},
		{[]string{"forget", "c1", "--yes"}, ""},
	} {
		t.Run(strings.Join(row.args, " "), func(t *testing.T) {
			t.Parallel()
			n := newTestNode(t)
			stdout, stderr, err := n.ctl(row.args...)
			if err != nil || stdout != row.stdout || !strings.Contains(stderr, "there is no journal in "+n.dataDir) {
				t.Errorf("stdout %q, stderr %q, error %v", stdout, stderr, err)
			}
		})
	}
}

func TestTheJournalMayBeEmpty(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		args          []string
		stdout, fails string
	}{
		{[]string{"list"}, "", ""},
		{[]string{"list", "-o", "json"}, "[]\n", ""},
		{[]string{"show", "c1"}, "", "nothing is journaled for container"},
		{[]string{"replay", "c1"}, "", "nothing is journaled for container"},
		{[]string{"replay", "--stale"}, "", ""},
		{[]string{"replay", "--stale", "--dry-run", "-o", "json"}, "[]\n", ""},
		{[]string{"forget", "c1", "--yes"}, "", "nothing is journaled for container"},
	} {
		t.Run(strings.Join(row.args, " "), func(t *testing.T) {
			t.Parallel()
			n := newTestNode(t)
			if err := os.Mkdir(n.dataDir, 0o700); err != nil {
				t.Fatal(err)
			}
			stdout, stderr, err := n.ctl(row.args...)
			if stdout != row.stdout || (err != nil) != (row.fails != "") || err != nil && !strings.Contains(err.Error(), row.fails) {
				t.Errorf("stdout %q, stderr %q, error %v", stdout, stderr, err)
			}
		})
	}
}

func TestTheJournalIsNotTrustedBlindly(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"list"}, {"show", "c1"}, {"replay", "c1"}, {"replay", "--stale"}, {"forget", "c1", "--yes"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			n := newTestNode(t)
			n.journal(web("c1"), n.goneAdd())
			if err := os.Chmod(n.dataDir, 0o755); err != nil {
				t.Fatal(err)
			}
			stdout, _, err := n.ctl(args...)
			if !errors.Is(err, journal.ErrUntrusted) || stdout != "" || n.left() != "c1" {
				t.Errorf("stdout %q, error %v", stdout, err)
			}
		})
	}
}

func TestContainersAreFoundByWhatTheirIDsBeginWith(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	for _, key := range []journal.Key{
		{Network: "web", ContainerID: "abc1", IfName: "eth0"},
		{Network: "web", ContainerID: "abc1", IfName: "net1"},
		{Network: "db", ContainerID: "abc1", IfName: "net2"},
		{Network: "web", ContainerID: "abc2", IfName: "eth0"},
		{Network: "web", ContainerID: "abc", IfName: "eth0"},
	} {
		n.journal(key, n.goneAdd())
	}
	for _, row := range []struct{ args, found, fails string }{
		{"abc1", "db/abc1@net2 web/abc1@eth0 web/abc1@net1", ""},
		{"abc1 --network web", "web/abc1@eth0 web/abc1@net1", ""},
		{"abc1 --network web --ifname net1", "web/abc1@net1", ""},
		{"abc2", "web/abc2@eth0", ""},
		{"abc", "web/abc@eth0", ""}, // a whole ID is no prefix
		{"ab", "", "abc, abc1, abc2"},
		{"ab --ifname net2", "db/abc1@net2", ""},
		{"x", "", `nothing is journaled for container "x"`},
	} {
		t.Run(row.args, func(t *testing.T) {
			stdout, _, err := n.ctl(append([]string{"show", "-o", "json"}, strings.Fields(row.args)...)...)
			if row.fails != "" {
				if err == nil || !strings.Contains(err.Error(), row.fails) {
					t.Errorf("error %v", err)
				}
				return
			}
			var all []shown
			if err := json.Unmarshal([]byte(stdout), &all); err != nil {
				t.Fatal(err)
			}
			var found []string
			for _, s := range all {
				found = append(found, s.Network+"/"+s.ContainerID+"@"+s.IfName)
			}
			if strings.Join(found, " ") != row.found || err != nil {
				t.Errorf("found %v, error %v", found, err)
			}
		})
	}
}

func TestContainersComplete(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	n.journal(web("c1"), n.goneAdd())
	n.journal(web("c2"), n.goneAdd())
	n.journal(journal.Key{Network: "db", ContainerID: "c2", IfName: "net1"}, n.goneAdd())
	for _, command := range []string{"show", "replay", "forget"} {
		var out bytes.Buffer
		root := newRoot(clearSight)
		root.SetOut(&out)
		root.SetErr(io.Discard)
		root.SetArgs([]string{"__complete", command, "--data-dir", n.dataDir, "c"})
		if err := root.Execute(); err != nil || !strings.HasPrefix(out.String(), "c1\nc2\n:") {
			t.Errorf("%s completes to %q, error %v", command, out.String(), err)
		}
	}
}

func TestATableFitsIntoItsColumns(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a long pod's name", 8) + "-0"
	tab := table{columns: []column{{name: "ID", least: 12, keepPrefix: true}, {name: "STATE"}, {name: "POD", least: 6, keepEnd: true}, {name: "NOTE", least: 7}}}
	tab.add(cell{strings.Repeat("0123456789", 6), plain}, cell{"before boot", red}, cell{long, plain}, cell{long, plain})
	tab.add(cell{"c", plain}, cell{"ü", plain}, cell{"", plain}, cell{"-", plain})
	var out bytes.Buffer
	if err := tab.print(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 3 || strings.Contains(out.String(), "\x1b") {
		t.Fatalf("printed\n%s", out.String())
	}
	if n := len([]rune(lines[1])); n != 80 {
		t.Errorf("the widest line has %d columns:\n%s", n, out.String())
	}
	if fields := strings.Fields(lines[1]); !strings.HasPrefix("0123456789012345678901234567890123456789", fields[0]) || !strings.Contains(lines[1], "-0  a long") {
		t.Errorf("printed\n%s", out.String())
	}
}

func TestAnAgeHasOneUnit(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m", 47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := age(now.Add(-d), now); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
}
