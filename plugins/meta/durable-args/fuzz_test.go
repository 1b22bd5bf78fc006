package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

// rig is a node of the fuzzer's own: whatever a request says, everything is
// below root, and the only plugins are cat, which succeeds with what it was
// given, and false.
type rig struct {
	root   string
	pinned []byte // the end of every request
}

// The network namespace is our own, as the override allows: it is alive.
const (
	ownNetNS = "/proc/self/ns/net"
	web      = "web"
)

func newRig(f testing.TB) *rig {
	f.Helper()
	if os.Geteuid() != 0 {
		f.Skip("the identity of a network namespace needs root")
	}
	// In memory if possible: all the time would go into flushes.
	root, err := os.MkdirTemp("/dev/shm", "durable-args-fuzz")
	if err != nil {
		root = f.TempDir()
	}
	f.Cleanup(func() { os.RemoveAll(root) })
	r := &rig{root: root}
	for _, dir := range []string{"bin", "conf"} {
		if err := os.Mkdir(r.path(dir), 0o700); err != nil {
			f.Fatal(err)
		}
	}
	for _, name := range []string{"cat", "false"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, r.path("bin", name))
		}
		if err != nil {
			f.Fatal(err)
		}
	}
	r.pinned = fmt.Appendf(nil, `"dataDir":%q,"confDir":%q,"cacheDir":%q}`, r.path("data"), r.path("conf"), r.path("cache"))
	return r
}

func (r *rig) path(names ...string) string {
	return filepath.Join(append([]string{r.root}, names...)...)
}

// seed adds every stanza with every conflist.
func seed(f *testing.F, more ...any) {
	const injected = `"type":"durable-args","name":"web","cniVersion":"1.1.0","allowVolatile":true`
	const ours = `{"type":"durable-args","capabilities":{"mac":true}}`
	list := func(plugins ...string) string {
		return `{"cniVersion":"1.1.0","name":"web","plugins":[` + strings.Join(plugins, ",") + `]}`
	}
	result := `"prevResult":{"cniVersion":"1.1.0", "ips":[{"address":"10.0.0.2/24"}]}`
	for _, config := range []string{
		`{` + injected + `}`,
		`{` + injected + `,"runtimeConfig":{"mac":"02:00:00:00:00:01","n":1e400},` + result + `}`,
		`{` + injected + `,"runtimeConfig":[1]}`,
		`{` + injected + `,"position":"last",` + result + `}`,
		`{` + injected + `,"position":"last","prevResult":[]}`,
		`{` + injected + `,"capabilities":{"mac":true},"plugins":[{"type":"cat","capabilities":{"mac":true}}],"runtimeConfig":{"mac":"x"}}`,
		`{` + injected + `,"plugins":[{"type":"cat"},{"type":"false"}]}`,
		`{` + injected + `,"plugins":[{"type":"cat","ips":[{"address":"nowhere"}]}]}`,
		`{` + injected + `,"plugins":[{"type":"absent"}],"replayAttempts":0}`,
		`{` + injected + `,"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"}],"cni.dev/attachments":null}`,
		`{` + injected + `,"cni.dev/attachments":[{"containerID":"c1","ifname":"eth0"}]}`,
		`{` + injected + `,"cni.dev/attachments":{}}`,
		`{"type":"durable-args","name":"../../x","cniVersion":"9.9.9"}`, `{"name":"web"}`, `{}`, `null`, ``,
	} {
		for _, conflist := range []string{
			list(ours, `{"type":"cat","capabilities":{"mac":true}}`, `{"type":"durable-args","position":"last","capabilities":{"mac":true}}`),
			list(ours, `{"type":"cat"}`, `{"type":"false","n":12345678901234567890}`),
			list(ours, `{"type":"absent"}`), list(`{"type":"cat"}`), `{"name":"web"}`, ``,
		} {
			f.Add(append([]any{[]byte(config), []byte(conflist), "IgnoreUnknown=1;K8S_POD_NAME=p\xff"}, more...)...)
		}
	}
}

// begin empties the node and gives it a conflist.
func (r *rig) begin(t *testing.T, conflist []byte) {
	t.Helper()
	err := errors.Join(os.RemoveAll(r.path("data")), os.RemoveAll(r.path("cache")), os.WriteFile(r.path("conf", "x.conflist"), conflist, 0o600))
	if err != nil {
		t.Fatal(err)
	}
}

// request makes a call of the fuzzer's bytes. The last of several keys counts,
// so the directories are ours; a request of which that is not so is skipped. The
// stanza is nil if it cannot be read.
func (r *rig) request(t *testing.T, stdin []byte, args string) (*stanza.Stanza, *skel.CmdArgs) {
	t.Helper()
	if body, ok := bytes.CutSuffix(bytes.TrimSpace(stdin), []byte("}")); ok {
		body = slices.Clone(bytes.TrimSpace(body))
		if !bytes.HasSuffix(body, []byte("{")) {
			body = append(body, ',')
		}
		stdin = append(body, r.pinned...)
	}
	s, err := stanza.Parse(stdin)
	if err == nil && (s.DataDir != r.path("data") || s.ConfDir != r.path("conf") || s.CacheDir != r.path("cache")) {
		t.Skip("it would leave the node")
	}
	if strings.Contains(args, "\x00") {
		t.Skip("the environment cannot hold it")
	}
	return s, &skel.CmdArgs{
		ContainerID: "c1", IfName: "eth0", Netns: ownNetNS, NetnsOverride: "1", Args: args, Path: r.path("bin"), StdinData: stdin,
	}
}

// call calls a verb as skel would. Its error must be one that skel need not
// call internal; what a plugin of a wrapped chain has printed is not ours.
func (r *rig) call(t *testing.T, verb func(plugin, *skel.CmdArgs) error, s *stanza.Stanza, args *skel.CmdArgs) (printed []byte, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err = verb(plugin{&stdout, &stderr}, args)
	var typed *types.Error
	if err != nil && (s == nil || s.Layout() != stanza.Wrapped) && (!errors.As(err, &typed) || typed.Code == types.ErrInternal) {
		t.Errorf("%s: the error has no code: %v", args.StdinData, err)
	}
	if err != nil && stdout.Len() > 0 {
		t.Errorf("%s: it has printed %s, and failed: %v", args.StdinData, stdout.Bytes(), err)
	}
	if s == nil && err == nil {
		t.Errorf("%s is no stanza, but nothing fails", args.StdinData)
	}
	r.tidy(t)
	return stdout.Bytes(), err
}

// tidy complains of anything that does not belong where it is.
func (r *rig) tidy(t *testing.T) {
	t.Helper()
	for _, dir := range []struct {
		path    string
		allowed []string
	}{
		{r.root, []string{"bin", "conf", "data", "cache"}},
		{r.path("bin"), []string{"cat", "false"}},
		{r.path("conf"), []string{"x.conflist"}},
		{r.path("cache"), []string{"results"}},
	} {
		entries, err := os.ReadDir(dir.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		for _, entry := range entries {
			if !slices.Contains(dir.allowed, entry.Name()) {
				t.Errorf("%s is left in %s", entry.Name(), dir.path)
			}
		}
	}
	for path := range r.files(t) {
		network, name := filepath.Split(path)
		known := r.keyed(t, strings.Trim(network, "/"), name)
		if !known && path != ".boot" && !strings.HasPrefix(path, ".corrupt/") {
			t.Errorf("%s is left in the journal", path)
		}
	}
}

// files returns every file of the journal, by its path there.
func (r *rig) files(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(r.path("data"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, r.path("data")+"/")] = string(content)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	return files
}

// entries is files without the note of the boot.
func (r *rig) entries(t *testing.T) map[string]string {
	t.Helper()
	files := r.files(t)
	delete(files, ".boot")
	return files
}

// keyed reports whether name is that of an attachment that can be read.
func (r *rig) keyed(t *testing.T, network, name string) bool {
	t.Helper()
	id, ifName, _ := strings.Cut(name, "@")
	rec := r.record(t, journal.Key{Network: network, ContainerID: id, IfName: ifName})
	return (len(rec.Adds) > 0 || rec.Attempts == nil) && len(rec.Damaged) == 0 && rec.Unknown == 0
}

// record reads what is journaled, nothing if there is none.
func (r *rig) record(t *testing.T, key journal.Key) journal.Record {
	t.Helper()
	store, err := journal.Open(r.path("data"))
	if err != nil {
		return journal.Record{}
	}
	defer store.Close()
	rec, err := store.Read(key)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, journal.ErrInvalidKey) {
		t.Errorf("%s: %v", key, err)
	}
	return rec
}

// attached are the attachments that the fuzzed request finds.
func attached(containerID string) journal.Key {
	return journal.Key{Network: web, ContainerID: containerID, IfName: "eth0"}
}

// journal makes an entry with a result. A dead one was made before this boot.
func (r *rig) journal(t *testing.T, key journal.Key, address string, dead bool, plugins ...string) {
	t.Helper()
	id, err := netnsid.Of(ownNetNS)
	if err != nil {
		t.Fatal(err)
	}
	if dead {
		id.BootID = "before"
	}
	add := journal.Add{Layout: stanza.First, Args: []byte("A=1;B=2"), CNIVersion: "1.1.0", Path: r.path("bin"), NetNS: journal.NetNS(id)}
	for _, p := range plugins {
		add.Chain = append(add.Chain, fmt.Appendf(nil, `{"type":%q}`, p))
	}
	store, err := journal.Create(r.path("data"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	result := fmt.Appendf(nil, `{"cniVersion":"1.1.0","ips":[{"address":%q}]}`, address)
	if err := errors.Join(store.Append(key, add), store.Append(key, journal.Result(result))); err != nil {
		t.Fatal(err)
	}
}

func sameValue(a, b []byte) bool {
	decoded := func(data []byte) (v any, err error) {
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		err = dec.Decode(&v)
		return v, err
	}
	x, errX := decoded(a)
	y, errY := decoded(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

// An ADD that succeeds has journaled one entry and passes prevResult on as it
// came; one that fails has journaled nothing, except that a wrapped chain of
// which a plugin has run is owed a DEL. A DEL of the same request takes it away.
func FuzzAdd(f *testing.F) {
	r := newRig(f)
	seed(f, false)
	seed(f, true)
	f.Fuzz(func(t *testing.T, stdin, conflist []byte, args string, again bool) {
		r.begin(t, conflist)
		s, req := r.request(t, stdin, args)
		if again {
			r.journal(t, attached("c1"), "10.0.0.2/24", false, "cat")
		}
		files := r.entries(t)
		k := attached("c1")
		if s != nil {
			k = key(s, req)
		}
		before := r.record(t, k)
		printed, err := r.call(t, plugin.add, s, req)
		after := r.record(t, k)
		var layout string
		if s != nil {
			layout = s.Layout()
		}
		added := len(after.Adds) - len(before.Adds)
		switch {
		case err != nil && layout == stanza.Wrapped:
			if added < 0 || added > 1 || added == 1 && after.Newest().Result != nil {
				t.Errorf("a chain that has failed leaves %+v", after)
			}
		case err != nil:
			if got := r.entries(t); !reflect.DeepEqual(got, files) {
				t.Errorf("%s fails with %v, but the journal holds %v, before %v", stdin, err, got, files)
			}
		default:
			want := []byte(s.PrevResult)
			if want == nil {
				want, _ = json.Marshal(map[string]string{"cniVersion": s.CNIVersion})
			}
			if layout != stanza.Wrapped && !bytes.Equal(printed, want) {
				t.Errorf("prevResult %s is passed on as %s", want, printed)
			}
			newest := after.Newest()
			if layout == stanza.Last {
				if added != 0 || s.PrevResult != nil && !sameValue(newest.Result, s.PrevResult) {
					t.Errorf("%s is journaled as %+v", stdin, after)
				}
			} else if added != 1 || string(newest.Args) != args || newest.CNIVersion != s.CNIVersion || newest.Layout != layout ||
				(s.RuntimeConfig != nil || newest.RuntimeConfig != nil) && !sameValue(newest.RuntimeConfig, s.RuntimeConfig) ||
				(newest.Result != nil) != (layout == stanza.Wrapped) {
				t.Errorf("%s with %q is journaled as %+v", stdin, args, after)
			}
		}
		if s == nil {
			return
		}
		failed := err
		_, err = r.call(t, plugin.del, s, req)
		left := r.record(t, k)
		switch {
		case layout == stanza.Wrapped && failed != nil: // so may DEL
		case layout == stanza.Last, again:
			// What is owed to the earlier ADD may not be done.
			if err != nil && len(left.Adds) == 0 {
				t.Errorf("DEL of %s fails with %v and nothing is owed", stdin, err)
			}
		case err != nil || len(r.entries(t)) > 0:
			t.Errorf("DEL of %s: %v, and the journal holds %v", stdin, err, r.entries(t))
		}
	})
}

// A DEL that succeeds has settled what is owed or keeps it as a debt; one that
// fails has lost nothing. Either way an honest DEL can still follow.
func FuzzDel(f *testing.F) {
	r := newRig(f)
	seed(f, false)
	seed(f, true)
	f.Fuzz(func(t *testing.T, stdin, conflist []byte, args string, broken bool) {
		r.begin(t, conflist)
		chain := []string{"cat", "cat"}
		if broken {
			chain[0] = "false"
		}
		k := attached("c1")
		r.journal(t, k, "10.0.0.2/24", false, chain...)
		before, files := r.record(t, k), r.entries(t)
		s, req := r.request(t, stdin, args)
		printed, err := r.call(t, plugin.del, s, req)
		if len(printed) > 0 {
			t.Errorf("DEL of %s prints %s", stdin, printed)
		}
		after, now := r.record(t, k), r.entries(t)
		kept := reflect.DeepEqual(after.Adds, before.Adds)
		switch {
		case s == nil || s.Name != web:
			if !reflect.DeepEqual(now, files) {
				t.Errorf("DEL of %s has changed another attachment: %v, before %v", stdin, now, files)
			}
		case err != nil:
			if !kept {
				t.Errorf("DEL of %s fails with %v and leaves %+v", stdin, err, after)
			}
		case s.Layout() == stanza.Last:
			if !kept && len(after.Adds) > 0 || len(now) != 1 {
				t.Errorf("DEL of %s leaves %+v", stdin, after)
			}
		case len(now) > 0 && (!kept || len(after.Attempts) == 0 || s.Layout() == stanza.Wrapped):
			t.Errorf("DEL of %s succeeds and leaves %+v", stdin, after)
		}

		if broken {
			return
		}
		s, req = r.request(t, []byte(`{"type":"durable-args","name":"web","cniVersion":"1.1.0"}`), "B=2;A=1")
		if _, err := r.call(t, plugin.del, s, req); err != nil && len(now) > 0 && len(after.Attempts) == 0 {
			t.Errorf("an honest DEL after %s fails: %v", stdin, err)
		}
		if left := r.entries(t); len(left) > 0 && len(after.Attempts) == 0 {
			t.Errorf("an honest DEL after %s leaves %v", stdin, left)
		}
	})
}

// A CHECK never fails on account of the journal, takes nothing from it, and
// adds only what it lacks; a DEL can undo that.
func FuzzCheck(f *testing.F) {
	r := newRig(f)
	seed(f, false)
	seed(f, true)
	f.Fuzz(func(t *testing.T, stdin, conflist []byte, args string, known bool) {
		r.begin(t, conflist)
		s, req := r.request(t, stdin, args)
		if known {
			r.journal(t, attached("c1"), "10.0.0.2/24", false, "cat")
		}
		files := r.entries(t)
		printed, err := r.call(t, plugin.check, s, req)
		if len(printed) > 0 {
			t.Errorf("CHECK of %s prints %s", stdin, printed)
		}
		now := r.entries(t)
		if s == nil || known && s.Name == web {
			if !reflect.DeepEqual(now, files) {
				t.Errorf("CHECK of %s leaves %v, before %v", stdin, now, files)
			}
			return
		}
		if err != nil && s.Layout() != stanza.Wrapped {
			t.Errorf("CHECK of %s fails: %v", stdin, err)
		}
		k := key(s, req)
		rec := r.record(t, k)
		if s.Layout() == stanza.Last {
			if len(rec.Adds) > 0 {
				t.Errorf("CHECK of %s in the last position adopts %+v", stdin, rec)
			}
			return
		}
		_, unfound := s.Network()
		_, unread := call(s, req)
		adoptable := unfound == nil && unread == nil && k.Validate() == nil
		if adoptable != (len(rec.Adds) == 1) || adoptable && string(rec.Newest().Args) != args {
			t.Errorf("CHECK of %s adopts %+v (%v, %v)", stdin, rec, unfound, unread)
		}
		if s.Layout() == stanza.First {
			if _, err := r.call(t, plugin.del, s, req); err != nil || len(r.record(t, k).Adds) > 0 {
				t.Errorf("DEL after a CHECK of %s: %v", stdin, err)
			}
		}
	})
}

// A GC collects what is dead and not named, and touches nothing that is alive.
func FuzzGC(f *testing.F) {
	r := newRig(f)
	seed(f)
	f.Fuzz(func(t *testing.T, stdin, conflist []byte, args string) {
		r.begin(t, conflist)
		r.journal(t, attached("c1"), "10.0.0.2/24", false, "cat")
		r.journal(t, attached("c2"), "10.0.0.3/24", true, "cat")
		files := r.entries(t)
		s, req := r.request(t, stdin, args)
		req.ContainerID, req.IfName, req.Netns = "", "", ""
		printed, err := r.call(t, plugin.gc, s, req)
		if len(printed) > 0 {
			t.Errorf("GC of %s prints %s", stdin, printed)
		}
		now := r.entries(t)
		gone := len(now) < len(files)
		for path, content := range now {
			if files[path] != content {
				t.Errorf("GC of %s has changed %s to %s", stdin, path, content)
			}
		}
		live := attached("c1").String()
		if now[live] != files[live] {
			t.Errorf("GC of %s has touched what is alive", stdin)
		}
		mine := s != nil && s.Name == web && s.Layout() != stanza.Last
		named := false
		if s != nil {
			for _, list := range []json.RawMessage{s.ValidAttachments, s.Attachments} {
				var all []types.GCAttachment
				_ = json.Unmarshal(list, &all)
				named = named || slices.Contains(all, types.GCAttachment{ContainerID: "c2", IfName: "eth0"})
			}
		}
		if gone && (!mine || named) || !gone && mine && !named && err == nil {
			t.Errorf("GC of %s: %v; what is dead is gone: %v", stdin, err, gone)
		}
	})
}

// STATUS changes nothing, and what it calls ready an ADD can journal.
func FuzzStatus(f *testing.F) {
	r := newRig(f)
	seed(f, false)
	seed(f, true)
	f.Fuzz(func(t *testing.T, stdin, conflist []byte, args string, used bool) {
		r.begin(t, conflist)
		if used {
			r.journal(t, attached("c1"), "10.0.0.2/24", false, "cat")
		}
		files := r.entries(t)
		s, req := r.request(t, stdin, args)
		printed, err := r.call(t, plugin.status, s, req)
		if len(printed) > 0 || !reflect.DeepEqual(r.entries(t), files) {
			t.Errorf("STATUS of %s prints %s, or has changed the journal", stdin, printed)
		}
		// skel has looked at the name, and libcni sends no capability args.
		if err != nil || s.Layout() != stanza.First || s.RuntimeConfig != nil || utils.ValidateNetworkName(s.Name) != nil {
			return
		}
		if _, err := r.call(t, plugin.add, s, req); err != nil {
			t.Errorf("%s is ready, but its ADD fails: %v", stdin, err)
		}
	})
}
