package repair

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/durable-args/durable-args/pkg/cnicache"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
)

var result = journal.Result(`{"cniVersion": "1.0.0", "ips": [{"address": "10.88.0.2/16"}]}`)

func add() journal.Add {
	return journal.Add{
		Layout: "first", Args: []byte("IgnoreUnknown=1;K8S_POD_NAME=web-0"), CNIVersion: "1.0.0", Path: "/opt/cni/bin",
		RuntimeConfig: json.RawMessage(`{"mac": "02:00:00:00:00:01"}`),
		NetNS:         journal.NetNS{Path: "/run/netns/c1", BootID: "before"},
		Conflist:      []byte(`{"cniVersion": "1.0.0", "name": "web", "plugins": [{"type": "durable-args"}, {"type": "bridge"}]}`),
		Chain:         []json.RawMessage{json.RawMessage(`{"type": "bridge"}`)},
	}
}

var c1 = journal.Key{Network: "web", ContainerID: "c1", IfName: "eth0"}

// node is a journal and a cache.
type node struct {
	t              *testing.T
	store          *journal.Store
	dataDir, cache string
	said           []string
	saying         sync.Mutex
}

func newNode(t *testing.T) *node {
	n := &node{t: t, dataDir: filepath.Join(t.TempDir(), "data"), cache: filepath.Join(t.TempDir(), "cni")}
	store, err := journal.Create(n.dataDir)
	n.check(err)
	n.store = store
	t.Cleanup(func() { store.Close() })
	n.check(os.MkdirAll(filepath.Join(n.cache, "results"), 0o700))
	return n
}

func (n *node) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) say(format string, args ...any) {
	n.saying.Lock()
	defer n.saying.Unlock()
	n.said = append(n.said, fmt.Sprintf(format, args...))
}

func (n *node) journal(key journal.Key, entries ...journal.Entry) {
	n.t.Helper()
	for _, e := range entries {
		n.check(n.store.Append(key, e))
	}
}

// cached makes the cache file of key, of a time long gone.
func (n *node) cached(key journal.Key, content string) {
	n.t.Helper()
	path := id(key).Path(n.cache)
	n.check(os.WriteFile(path, []byte(content), 0o600))
	long := time.Unix(1e9, 0)
	n.check(os.Chtimes(path, long, long))
}

// snapshot is each file below the node with its content and time.
func (n *node) snapshot() []string {
	n.t.Helper()
	var files []string
	for _, dir := range []string{n.dataDir, n.cache} {
		n.check(filepath.Walk(dir, func(path string, st os.FileInfo, err error) error {
			if err == nil && st.Mode().IsRegular() {
				data, _ := os.ReadFile(path)
				files = append(files, fmt.Sprint(path, st.Mode(), st.ModTime(), string(data)))
			}
			return err
		}))
	}
	return files
}

func (n *node) repair(dryRun bool) []Outcome {
	n.t.Helper()
	outcomes, err := Repair(n.t.Context(), n.store, n.cache, dryRun)
	if err != nil {
		n.t.Error(err)
	}
	return outcomes
}

const whole = `{"kind": "cniCacheV1", "containerId": "c1", "config": "e30=", "ifName": "eth0", "networkName": "web",
  "result": {"cniVersion": "1.0.0"}}`

func TestRepair(t *testing.T) {
	later := strings.Replace(whole, `"c1"`, `"c9"`, 1)
	missing := "\x01"
	for name, test := range map[string]struct {
		journaled []journal.Entry
		content   string
		found     cnicache.State
		action    Action
		reason    string
	}{
		"a file that libcni can read":       {[]journal.Entry{add(), result}, whole, cnicache.Readable, Kept, ""},
		"one from before cniCacheV1":        {[]journal.Entry{add(), result}, `{"cniVersion": "0.4.0"}`, cnicache.Readable, Kept, ""},
		"a readable one, nothing journaled": {[]journal.Entry{add()}, whole, cnicache.Readable, Kept, ""},
		"another attachment's":              {[]journal.Entry{add(), result}, later, cnicache.Readable, Skipped, "another's file"},
		"zero-length":                       {[]journal.Entry{add(), result}, "", cnicache.Damaged, Repaired, ""},
		"filled with NULs":                  {[]journal.Entry{add(), result}, strings.Repeat("\x00", 4096), cnicache.Damaged, Repaired, ""},
		"truncated":                         {[]journal.Entry{add(), result}, whole[:80], cnicache.Damaged, Repaired, ""},
		"{}":                                {[]journal.Entry{add(), result}, "{}", cnicache.Damaged, Repaired, ""},
		"null":                              {[]journal.Entry{add(), result}, "null", cnicache.Damaged, Repaired, ""},
		"missing":                           {[]journal.Entry{add(), result}, missing, cnicache.Missing, Repaired, ""},
		"no result, damaged":                {[]journal.Entry{add()}, "", cnicache.Damaged, Skipped, "no result journaled"},
		"no result, missing":                {[]journal.Entry{add()}, missing, cnicache.Missing, Skipped, "no result journaled"},
		"added again, without a result yet": {[]journal.Entry{add(), result, add()}, "", cnicache.Damaged, Skipped, "no result journaled"},
		"no conflist":                       {[]journal.Entry{journal.Add{}, result}, "", cnicache.Damaged, Skipped, "no conflist journaled"},
		"nothing owed":                      {[]journal.Entry{add(), result, journal.Replayed{}}, "", cnicache.Damaged, Skipped, "nothing is owed"},
		"a debt, whose file DEL has removed": {[]journal.Entry{add(), result, journal.Attempt{Plugin: "portmap"}}, missing,
			cnicache.Missing, Skipped, "DEL has been tried"},
		"a DEL that will come again": {[]journal.Entry{add(), result, journal.Attempt{Plugin: "portmap"}}, "",
			cnicache.Damaged, Repaired, ""},
		"a result of the future": {[]journal.Entry{add(), journal.Result(`{"cniVersion": "9.0.0"}`)}, "",
			cnicache.Damaged, Skipped, "reading the result of web-c1-eth0 as libcni does: unsupported CNI result version"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.journal(c1, test.journaled...)
			if test.content != missing {
				n.cached(c1, test.content)
			}
			before := n.snapshot()
			for _, dryRun := range []bool{true, false} {
				outcomes := n.repair(dryRun)
				if len(outcomes) != 1 {
					t.Fatalf("outcomes: %+v", outcomes)
				}
				o := outcomes[0]
				if o.Key != c1 || o.Path != filepath.Join(n.cache, "results", "web-c1-eth0") || o.Found != test.found ||
					o.Action != test.action || !strings.HasPrefix(o.Reason, test.reason) || (o.Reason == "") != (test.reason == "") {
					t.Errorf("dry run %v: %+v", dryRun, o)
				}
				if changed := !slices.Equal(before, n.snapshot()); changed != (!dryRun && test.action == Repaired) {
					t.Errorf("dry run %v: changed %v", dryRun, changed)
				}
			}
			if test.action != Repaired {
				return
			}
			file, err := cnicache.Read(n.cache, id(c1))
			want := cnicache.Attachment{
				ID: id(c1), NetNS: "/run/netns/c1", Config: add().Conflist,
				Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "web-0"}},
				CapabilityArgs: add().RuntimeConfig, Result: json.RawMessage(result),
			}
			if err != nil || file.State != cnicache.Readable || file.Foreign(want.ID) {
				t.Fatalf("%+v, %v", file, err)
			}
			if fields := want.Differences(*file.Attachment); fields != nil {
				t.Errorf("written otherwise: %v", fields)
			}
		})
	}
}

// The files of a-b, c and a, b-c have one name.
func TestNamesOfSeveralAttachments(t *testing.T) {
	n := newNode(t)
	one := journal.Key{Network: "a-b", ContainerID: "c", IfName: "eth0"}
	two := journal.Key{Network: "a", ContainerID: "b-c", IfName: "eth0"}
	n.journal(one, add(), result)
	n.journal(two, add()) // it counts whether or not it could be repaired
	n.journal(c1, add(), result)
	n.cached(one, "")
	outcomes := n.repair(false)
	for i, want := range []struct {
		key    journal.Key
		action Action
		reason string
	}{
		{two, Skipped, "name is another's, too"},
		{one, Skipped, "name is another's, too"},
		{c1, Repaired, ""},
	} {
		if len(outcomes) != 3 || outcomes[i].Key != want.key || outcomes[i].Action != want.action || outcomes[i].Reason != want.reason {
			t.Errorf("outcome %d: %+v", i, outcomes)
		}
	}
	if data, err := os.ReadFile(id(one).Path(n.cache)); err != nil || len(data) > 0 {
		t.Errorf("the file has been touched: %q, %v", data, err)
	}

	// Nor is it removed while both are there; then it is nobody else's.
	released := Released(n.store, n.cache, n.say)
	released(one)
	if _, err := os.Stat(id(one).Path(n.cache)); err != nil {
		t.Error(err)
	}
	if len(n.said) != 1 || !strings.Contains(n.said[0], "another attachment's file has the same name") {
		t.Errorf("said: %q", n.said)
	}
	released(two)
	if _, err := os.Stat(id(two).Path(n.cache)); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestReleased(t *testing.T) {
	for name, test := range map[string]struct {
		content string
		stays   bool
	}{
		"readable":             {whole, false},
		"damaged":              {"", false},
		"another attachment's": {strings.Replace(whole, `"c1"`, `"c9"`, 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.journal(c1, add(), result) // what is being released may still be there
			n.cached(c1, test.content)
			Released(n.store, n.cache, n.say)(c1)
			if _, err := os.Stat(id(c1).Path(n.cache)); os.IsNotExist(err) == test.stays {
				t.Error(err)
			}
			if n.said != nil {
				t.Errorf("said: %q", n.said)
			}
		})
	}
}

func TestRepairGoesOn(t *testing.T) {
	n := newNode(t)
	keys := map[string]journal.Key{}
	for _, container := range []string{"a", "b", "c", "d"} {
		keys[container] = journal.Key{Network: "web", ContainerID: container, IfName: "eth0"}
		n.journal(keys[container], add(), result)
	}
	n.check(os.Symlink("/etc/passwd", id(keys["a"]).Path(n.cache)))
	n.check(os.Chmod(filepath.Join(n.dataDir, "web", "b@eth0"), 0o644))
	held, err := n.store.Lock(keys["c"])
	n.check(err)
	defer held.Close()
	// A network that cannot be looked into is an error of the whole.
	n.check(os.Mkdir(filepath.Join(n.dataDir, "closed"), 0o777))
	n.check(os.Chmod(filepath.Join(n.dataDir, "closed"), 0o777))

	outcomes, err := Repair(t.Context(), n.store, n.cache, false)
	if !errors.Is(err, journal.ErrUntrusted) || !strings.Contains(err.Error(), "closed") {
		t.Errorf("error: %v", err)
	}
	if len(outcomes) != 4 {
		t.Fatalf("outcomes: %+v", outcomes)
	}
	if o := outcomes[0]; o.Action != Skipped || o.Err == nil || !strings.Contains(o.Reason, "is a symbolic link") {
		t.Errorf("a link: %+v", o)
	}
	if o := outcomes[1]; o.Action != Skipped || !errors.Is(o.Err, journal.ErrUntrusted) {
		t.Errorf("a journal file of others: %+v", o)
	}
	if o := outcomes[2]; o.Action != Skipped || o.Err != nil || o.Reason != "in use just now" {
		t.Errorf("one that is held: %+v", o)
	}
	if o := outcomes[3]; o.Action != Repaired {
		t.Errorf("the last: %+v", o)
	}
}

func TestRepairStopsWhenToldTo(t *testing.T) {
	n := newNode(t)
	n.journal(c1, add(), result)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if outcomes, err := Repair(ctx, n.store, n.cache, false); !errors.Is(err, context.Canceled) || len(outcomes) > 0 {
		t.Errorf("%+v, %v", outcomes, err)
	}
}

func TestAfterBoot(t *testing.T) {
	boot, err := netnsid.BootID()
	if err != nil {
		t.Fatal(err)
	}
	file := func(n *node) string {
		data, _ := os.ReadFile(id(c1).Path(n.cache))
		return string(data)
	}
	t.Run("no journal: nothing is made", func(t *testing.T) {
		n := newNode(t)
		none := filepath.Join(t.TempDir(), "none")
		AfterBoot(none, n.cache, n.say)
		if _, err := os.Stat(none); !os.IsNotExist(err) || n.said != nil {
			t.Errorf("%v, said %q", err, n.said)
		}
	})
	t.Run("once", func(t *testing.T) {
		n := newNode(t)
		n.journal(c1, add(), result)
		n.cached(c1, "")
		AfterBoot(n.dataDir, n.cache, n.say)
		if !strings.Contains(file(n), "cniCacheV1") || len(n.said) != 1 || !strings.HasPrefix(n.said[0], "1 files in libcni's cache") {
			t.Errorf("%q, said %q", file(n), n.said)
		}
		if noted, err := os.ReadFile(filepath.Join(n.dataDir, ".boot")); err != nil || string(noted) != boot+"\n" {
			t.Errorf(".boot holds %q, %v", noted, err)
		}
		n.cached(c1, "")
		AfterBoot(n.dataDir, n.cache, n.say)
		if file(n) != "" || len(n.said) != 1 {
			t.Errorf("repaired twice: %q, said %q", file(n), n.said)
		}
		n.check(os.WriteFile(filepath.Join(n.dataDir, ".boot"), []byte("another\n"), 0o600))
		AfterBoot(n.dataDir, n.cache, n.say)
		if file(n) == "" {
			t.Error("not repaired after the next boot")
		}
	})
	t.Run("again, if a file could not be written", func(t *testing.T) {
		n := newNode(t)
		n.journal(c1, add(), result)
		n.cached(c1, "")
		obstacle := filepath.Join(n.cache, ".durable-args.new")
		n.check(os.Mkdir(obstacle, 0o700))
		AfterBoot(n.dataDir, n.cache, n.say)
		if file(n) != "" || len(n.said) == 0 || !strings.Contains(strings.Join(n.said, "\n"), "repairing libcni's cache after the boot: web/c1@eth0: ") {
			t.Errorf("%q, said %q", file(n), n.said)
		}
		n.check(os.Remove(obstacle))
		AfterBoot(n.dataDir, n.cache, n.say)
		if file(n) == "" {
			t.Errorf("not repaired by the next call; said %q", n.said)
		}
	})
	t.Run("what stays damaged is said once", func(t *testing.T) {
		n := newNode(t)
		n.journal(c1, add())
		n.cached(c1, "")
		AfterBoot(n.dataDir, n.cache, n.say)
		AfterBoot(n.dataDir, n.cache, n.say)
		if len(n.said) != 1 || !strings.Contains(n.said[0], "durable-argsctl repair --dry-run") {
			t.Errorf("said %q", n.said)
		}
	})
	t.Run("a journal of others", func(t *testing.T) {
		n := newNode(t)
		n.check(os.Chmod(n.dataDir, 0o755))
		AfterBoot(n.dataDir, n.cache, n.say)
		if len(n.said) != 1 || !strings.Contains(n.said[0], "untrusted journal") {
			t.Errorf("said %q", n.said)
		}
	})
	t.Run("many at once", func(t *testing.T) {
		n := newNode(t)
		for i := range 50 {
			key := journal.Key{Network: "web", ContainerID: fmt.Sprintf("c%d", i), IfName: "eth0"}
			n.journal(key, add(), result)
			n.cached(key, "")
		}
		var wait sync.WaitGroup
		for range 20 {
			wait.Go(func() { AfterBoot(n.dataDir, n.cache, n.say) })
		}
		wait.Wait()
		if len(n.said) != 1 || !strings.HasPrefix(n.said[0], "50 files") {
			t.Errorf("said %q", n.said)
		}
		for _, o := range n.repair(true) {
			if o.Action != Kept {
				t.Errorf("%+v", o)
			}
		}
	})
}
