package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/durable-args/durable-args/pkg/journal"
)

// writer is a program that keeps what a DEL will need. Several workers of it
// write at once.
type writer struct {
	name       string
	control    bool // must be seen to lose
	dir        string
	workers    int
	operations []operation
	// slots is how many attachments a worker has; with 0, a new one each time.
	slots int
	// prepare, if not nil, runs in every worker's goroutine first.
	prepare func() error
	// call does an operation in dir. nil means that it was acknowledged.
	call func(dir string, e *event) error
	// read returns what dir holds.
	read func(dir string) (attachments, error)
}

// journalDir is the journal on the file system whose power is cut.
const journalDir = "lib/durable-args"

// writers are those that run at once in every cut and every state.
func writers(bin string) []*writer {
	plugin := filepath.Join(bin, "durable-args")
	call := func(dir string, e *event) error { return callPlugin(plugin, dir, e) }
	argsctl := argsctl{binary: filepath.Join(bin, "durable-argsctl"), plugin: plugin}
	return []*writer{
		{name: "durable-args", dir: journalDir, workers: 6, slots: 3,
			operations: operations, call: call, read: readJournal},
		{name: "durable-argsctl insert, remove", dir: "net.d", workers: 2, slots: 2,
			operations: editing, call: argsctl.edit, read: argsctl.readConflists},
		{name: "durable-argsctl repair", dir: "lib/cache", workers: 1, slots: 2,
			operations: repairing, call: argsctl.repair, read: argsctl.readCache},
		{name: "durable-args without flushes", control: true, dir: "lib/unflushed", workers: 1, slots: 8,
			operations: operations[:adding], prepare: ignoreFlushes, call: call, read: readJournal},
		{name: "libcni's cache", control: true, dir: "lib/cni", workers: 1,
			operations: operations[:1], call: addWithLibcni, read: readLibcniCache},
	}
}

// run lets the writers write below root until h ends, or each worker has done
// limit operations, if limit is not 0. held is what each of them left there.
func run(writers []*writer, root string, h *history, held map[*writer]attachments, limit int) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	stop := make(chan struct{})
	var beside sync.WaitGroup
	beside.Go(func() { bystander(filepath.Join(root, "bystander"), stop) })
	for _, w := range writers {
		for n := range w.workers {
			wg.Go(func() {
				if err := w.work(n, filepath.Join(root, w.dir), h, held[w], limit); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, fmt.Errorf("%s: %w", w.name, err))
				}
			})
		}
	}
	wg.Wait()
	close(stop)
	beside.Wait()
	return errors.Join(errs...)
}

var tokens atomic.Int64

// work is one worker. An operation that fails before the power cut is an error,
// but for a control, which may have lost what it needs in an earlier cut.
func (w *writer) work(n int, dir string, h *history, held attachments, limit int) error {
	if w.prepare != nil {
		if err := w.prepare(); err != nil {
			return err
		}
	}
	mine := make(attachments)
	for i := 0; limit == 0 || i < limit; i++ {
		token := fmt.Sprintf("t%d", tokens.Add(1))
		id := token
		if w.slots > 0 {
			id = fmt.Sprintf("w%ds%d", n, rand.N(w.slots))
		}
		key := journal.Key{Network: networks[rand.N(len(networks))], ContainerID: id, IfName: "eth0"}
		now, ok := mine[key]
		if !ok {
			now = held[key]
		}
		e := &event{w, key, choose(w.operations, now), now, token}
		if !h.begin(e) {
			return nil
		}
		err := w.call(dir, e)
		if err == nil && !h.acknowledge(e) || err != nil && h.ended() {
			return nil
		}
		if err != nil && !w.control {
			return fmt.Errorf("%s %s: %w", e.name, e.key, err)
		}
		mine[key] = e.effect(now, token)
	}
	return nil
}

// callPlugin is what a runtime does for one plugin of a chain.
func callPlugin(plugin, dir string, e *event) error {
	token := e.token // what an ADD gives
	switch {
	case e.lost:
		token = ""
	case e.position != "" || e.command == "DEL":
		token = e.before.newestToken()
	}
	stanza := map[string]any{
		"cniVersion": "1.0.0", "name": e.key.Network, "type": "durable-args",
		"dataDir": dir, "confDir": confDir, "capabilities": map[string]bool{"portMappings": true},
	}
	if token != "" {
		stanza["runtimeConfig"] = portsOf(token)
	}
	want := ""
	if e.command == "ADD" {
		want = `{"cniVersion":"1.0.0"}`
	}
	switch {
	case e.position != "":
		stanza["position"] = e.position
		if e.command == "ADD" {
			stanza["prevResult"] = resultOf(e.token)
			want = string(resultOf(e.token))
		}
	case e.command == "DEL" && e.before.owed():
		if result, ok := strings.CutPrefix(e.before.last(), "result "); ok {
			stanza["prevResult"] = resultOf(result)
		}
	case e.command == "CHECK":
		stanza["prevResult"] = json.RawMessage(`{"cniVersion":"1.0.0"}`)
	}
	stdin, err := json.Marshal(stanza)
	if err != nil {
		return err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(plugin)
	cmd.Env = environment(e.command, e.key, token)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err = cmd.Run()
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s%s", err, &stdout, &stderr)
	case stdout.String() != want:
		return fmt.Errorf("stdout is %q, want %q", &stdout, want)
	case e.command == "CHECK" && strings.Contains(stderr.String(), "cannot adopt"):
		return errors.New(stderr.String()) // it succeeds even if it cannot adopt
	}
	return nil
}

func environment(command string, key journal.Key, token string) []string {
	return []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + key.ContainerID, "CNI_IFNAME=" + key.IfName,
		"CNI_NETNS=" + netns, "CNI_PATH=" + cniBin, "CNI_ARGS=" + argsOf(token)}
}

// readJournal reads with the plugin's own reader. What it holds counts only if
// it is what was given, to the byte.
func readJournal(dir string) (attachments, error) {
	found := make(attachments)
	store, err := journal.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	defer store.Close()
	for _, network := range networks {
		keys, err := store.Keys(network)
		if err != nil {
			return nil, err
		}
		names, err := os.ReadDir(filepath.Join(dir, network))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if len(names) != len(keys) {
			return nil, fmt.Errorf("%d attachments in %s have %d files", len(keys), network, len(names))
		}
		for _, key := range keys {
			record, err := store.Read(key)
			if err != nil {
				return nil, err
			}
			c := content{exists: true, damaged: len(record.Damaged)}
			for _, add := range record.Adds {
				c.lines = append(c.lines, "add "+checkedToken(key, add))
				if add.Result != nil {
					c.lines = append(c.lines, "result "+checkedResult(add.Result))
				}
			}
			found[key] = c
		}
	}
	return found, nil
}

func checkedToken(key journal.Key, add journal.Add) string {
	token := tokenOf(string(add.Args))
	if string(add.Args) != argsOf(token) || !bytes.Equal(add.RuntimeConfig, portsOf(token)) ||
		!bytes.Equal(add.Conflist, conflist(key.Network)) || add.NetNS.Path != netns || len(add.Chain) != 1 {
		return token + " (altered)"
	}
	return token
}

func checkedResult(raw json.RawMessage) string {
	var result struct {
		DNS struct {
			Domain string `json:"domain"`
		} `json:"dns"`
	}
	if err := json.Unmarshal(raw, &result); err != nil || !bytes.Equal(raw, resultOf(result.DNS.Domain)) {
		return result.DNS.Domain + " (altered)"
	}
	return result.DNS.Domain
}

// addWithLibcni is libcni's own ADD, with a plugin that costs no time.
func addWithLibcni(dir string, e *event) error {
	time.Sleep(2 * time.Millisecond) // the plugins' share
	list, err := libcni.ConfListFromBytes([]byte(`{"cniVersion": "1.0.0", "name": "` + e.key.Network + `", "plugins": [{"type": "noop"}]}`))
	if err != nil {
		return err
	}
	rt := &libcni.RuntimeConf{ContainerID: e.key.ContainerID, IfName: e.key.IfName, NetNS: netns, Args: [][2]string{{"TOKEN", e.token}}}
	cni := libcni.NewCNIConfigWithCacheDir([]string{cniBin}, dir, &noPlugin{result: resultOf(e.token)})
	_, err = cni.AddNetworkList(context.Background(), list, rt)
	return err
}

// noPlugin answers in a plugin's place.
type noPlugin struct {
	invoke.DefaultExec
	result []byte
}

func (p *noPlugin) ExecPlugin(context.Context, string, []byte, []string) ([]byte, error) {
	return p.result, nil
}

// readLibcniCache reads as much as libcni would.
func readLibcniCache(dir string) (attachments, error) {
	found := make(attachments)
	names, err := filepath.Glob(filepath.Join(dir, "results", "*-eth0"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		network, rest, _ := strings.Cut(filepath.Base(name), "-")
		c := content{exists: true, damaged: 1}
		var cached struct {
			Args [][2]string `json:"cniArgs"`
		}
		if json.Unmarshal(data, &cached) == nil && len(cached.Args) == 1 {
			c = content{}.with("add " + cached.Args[0][1])
		}
		found[journal.Key{Network: network, ContainerID: strings.TrimSuffix(rest, "-eth0"), IfName: "eth0"}] = c
	}
	return found, nil
}

// bystander flushes a file of its own now and then, as etcd, the kubelet or a
// database does.
func bystander(path string, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(15 * time.Millisecond):
		}
		// It fails after the power cut, as it should.
		if f, err := os.Create(path); err == nil {
			_, _ = f.WriteString("something")
			_ = f.Sync()
			f.Close()
		}
	}
}
