package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
)

// script is every plugin. It writes down each call, and then does what has been
// put into a file for its type or for the container.
const script = `#!/bin/sh
here=${0%/*} me=${0##*/}
printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$me" "$CNI_COMMAND" "$CNI_CONTAINERID" "$CNI_ARGS" "$CNI_NETNS" "$CNI_PATH" "$(cat)" >>"$here/calls"
for name in "$me" "$CNI_CONTAINERID"; do
	[ ! -e "$here/on-$name" ] || . "$here/on-$name"
done
`

// node is a node of the test's own: a store, plugins, and what an operator is
// told.
type node struct {
	testing.TB
	store    *journal.Store
	dir, bin string
	stderr   bytes.Buffer
}

func newNode(t testing.TB, plugins ...string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{TB: t, dir: filepath.Join(dir, "data"), bin: filepath.Join(dir, "bin")}
	var err error
	if n.store, err = journal.Create(n.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.store.Close() })
	if err := os.Mkdir(n.bin, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, plugin := range plugins {
		n.install(n.bin, plugin)
	}
	return n
}

func (n *node) install(dir, plugin string) {
	n.Helper()
	// A process forked just now would hold the file open for writing, and
	// nobody can run it then.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(filepath.Join(dir, plugin), []byte(script), 0o700); err != nil {
		n.Fatal(err)
	}
}

// on lets the plugin or container of this name do something, from now on.
func (n *node) on(name, do string) {
	n.Helper()
	if err := os.WriteFile(filepath.Join(n.bin, "on-"+name), []byte(do+"\n"), 0o600); err != nil {
		n.Fatal(err)
	}
}

// fail is how a plugin fails.
func fail(words string) string {
	return fmt.Sprintf(`echo '{"cniVersion":"1.0.0","code":999,"msg":"%s","details":"d"}'; exit 1`, words)
}

func (n *node) fails(name, words string) { n.Helper(); n.on(name, fail(words)) }

func (n *node) succeeds(name string) { n.Helper(); n.on(name, "") }

// made is one call of a plugin.
type made struct {
	plugin, command, container, args, netns, path string
	request                                       string
}

// calls returns what has been called, oldest first.
func (n *node) calls() []made {
	n.Helper()
	data, err := os.ReadFile(filepath.Join(n.bin, "calls"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.Fatal(err)
	}
	var calls []made
	for line := range strings.Lines(string(data)) {
		field := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(field) != 7 || field[1] != "DEL" {
			n.Fatalf("a plugin was called like this: %q", line)
		}
		calls = append(calls, made{field[0], field[1], field[2], field[3], field[4], field[5], field[6]})
	}
	return calls
}

// called returns the plugins that have been called since it was last asked.
func (n *node) called() string {
	n.Helper()
	var plugins []string
	for _, c := range n.calls() {
		plugins = append(plugins, c.plugin)
	}
	if err := os.Remove(filepath.Join(n.bin, "calls")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.Fatal(err)
	}
	return strings.Join(plugins, " ")
}

// prevResult is what the call was told, empty if nothing.
func (c made) prevResult(t testing.TB) string {
	t.Helper()
	var request struct{ PrevResult json.RawMessage }
	if err := json.Unmarshal([]byte(c.request), &request); err != nil {
		t.Fatalf("plugin %s was given %q: %v", c.plugin, c.request, err)
	}
	return string(request.PrevResult)
}

func (n *node) replayer(attempts int) Replayer {
	return Replayer{Store: n.store, Runner: chain.Runner{Stderr: &n.stderr}, Attempts: attempts, Stderr: &n.stderr}
}

// add is an ADD on a chain of plugins, in a network namespace that is gone.
func (n *node) add(plugins ...string) journal.Add {
	n.Helper()
	add := journal.Add{Layout: "first", Args: []byte("A=1"), CNIVersion: "1.0.0", Path: n.bin, NetNS: n.gone()}
	for _, plugin := range plugins {
		add.Chain = append(add.Chain, json.RawMessage(fmt.Sprintf(`{"type":%q}`, plugin)))
	}
	return add
}

func attachment(container string) journal.Key {
	return journal.Key{Network: "web", ContainerID: container, IfName: "eth0"}
}

func (n *node) journal(container string, entries ...journal.Entry) {
	n.Helper()
	for _, e := range entries {
		if err := n.store.Append(attachment(container), e); err != nil {
			n.Fatal(err)
		}
	}
}

// with runs del on an attachment's file.
func (n *node) with(container string, del func(*journal.File) error) error {
	n.Helper()
	f, err := n.store.Lock(attachment(container))
	if err != nil {
		n.Fatal(err)
	}
	defer f.Close()
	return del(f)
}

func (n *node) file(container string) string { return filepath.Join(n.dir, "web", container+"@eth0") }

// left returns the attachments that have a file.
func (n *node) left() string {
	n.Helper()
	keys, err := n.store.Keys("web")
	if err != nil {
		n.Fatal(err)
	}
	var containers []string
	for _, key := range keys {
		containers = append(containers, key.ContainerID)
	}
	slices.Sort(containers)
	return strings.Join(containers, " ")
}

// record is what the file of container says.
func (n *node) record(container string) journal.Record {
	n.Helper()
	rec, err := n.store.Read(attachment(container))
	if err != nil {
		n.Fatal(err)
	}
	return rec
}

// write adds raw text to an attachment's file.
func (n *node) write(container, text string) {
	n.Helper()
	if err := os.MkdirAll(filepath.Dir(n.file(container)), 0o700); err != nil {
		n.Fatal(err)
	}
	f, err := os.OpenFile(n.file(container), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		n.Fatal(err)
	}
}

// later is an entry of a later version than ours.
func later() string {
	const body = `{"version":2,"kind":"new"}`
	return fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(body), crc32.MakeTable(crc32.Castagnoli)), body)
}

// result is a result with an address.
func result(address string) journal.Result {
	return journal.Result(fmt.Sprintf(`{"cniVersion":"1.0.0","ips":[{"address":%q}]}`, address))
}

func bootID(t testing.TB) string {
	t.Helper()
	id, err := netnsid.BootID()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// gone is a network namespace of this boot that is no longer there.
func (n *node) gone() journal.NetNS {
	n.Helper()
	return journal.NetNS{Path: filepath.Join(n.dir, "no", "netns"), BootID: bootID(n)}
}

// alive is a network namespace that is there: our own. No plugin is ever sent
// to it.
func (n *node) alive() journal.NetNS { n.Helper(); return n.identity("/proc/self/ns/net") }

// untold is a network namespace of which nobody can tell whether it is there.
func (n *node) untold() journal.NetNS {
	n.Helper()
	loop := filepath.Join(n.TempDir(), "loop")
	if err := os.Symlink(loop, loop); err != nil {
		n.Fatal(err)
	}
	return journal.NetNS{Path: loop, BootID: bootID(n)}
}

func (n *node) identity(path string) journal.NetNS {
	n.Helper()
	id, err := netnsid.Of(path)
	if err != nil {
		n.Fatal(err)
	}
	return journal.NetNS(id)
}

// namespace makes a network namespace that lives as long as the test, and
// returns paths of it.
func (n *node) namespace(names ...string) []string {
	n.Helper()
	if os.Geteuid() != 0 {
		n.Skip("making network namespaces needs root")
	}
	made := make(chan error, 1)
	var ns netns.NsHandle
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			ns, err = netns.Get()
		}
		made <- err
	}()
	if err := <-made; err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { ns.Close() })
	dir := n.TempDir()
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
		// Without a mount that could be left behind.
		if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", int(ns)), names[i]); err != nil {
			n.Fatal(err)
		}
	}
	return names
}

// The main thread is kept for the main goroutine, so that it is never the one
// that a test takes into another namespace.
func init() { runtime.LockOSThread() }
