package cnicache

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
)

var web = Attachment{
	ID: ID{"web", "c1", "eth0"}, NetNS: "/run/netns/c1", Config: []byte(conflist), Result: json.RawMessage(result100),
}

// put makes the file of web with any content.
func put(t *testing.T, cacheDir string, content []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(cacheDir, "results"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := web.Path(cacheDir)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func encoded(t *testing.T, a Attachment) []byte {
	t.Helper()
	data, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRead(t *testing.T) {
	whole := encoded(t, web)
	for name, test := range map[string]struct {
		content string
		want    State
		// libcni's own word: whether it fails to read the result, or makes
		// something of the file
		fails bool
	}{
		"whole":                  {string(whole), Readable, false},
		"a bare result":          {result100, Readable, false},
		"a bare result of 0.2.0": {`{"ip4": {"ip": "10.88.0.2/16"}}`, Readable, false},
		"of another kind":        {`{"kind": "cniCacheV2", "result": {}}`, Readable, false},
		"zero-length":            {"", Damaged, true},
		"filled with NULs":       {strings.Repeat("\x00", len(whole)), Damaged, true},
		"NULs behind the start":  {string(whole[:20]) + strings.Repeat("\x00", len(whole)-20), Damaged, true},
		"cut to 200 bytes":       {string(whole[:200]), Damaged, true},
		"cut by one byte":        {string(whole[:len(whole)-1]), Damaged, true},
		"something behind":       {string(whole) + "x", Damaged, true},
		"an array":               {"[]", Damaged, true},
		"a result of the future": {`{"kind": "cniCacheV1", "result": {"cniVersion": "9.0.0"}}`, Damaged, true},
		// libcni takes these for an empty result, which it has not written.
		"{}":   {"{}", Damaged, false},
		"null": {"null", Damaged, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, []byte(test.content))
			file, err := Read(dir, web.ID)
			if err != nil || file.State != test.want || (file.Why != nil) != (test.want == Damaged) || (file.Attachment != nil) != (test.want == Readable) {
				t.Errorf("Read = %+v, %v, want %s", file, err, test.want)
			}
			list, err := libcni.NetworkConfFromBytes([]byte(strings.Replace(conflist, "VERSION", "1.0.0", 1)))
			if err != nil {
				t.Fatal(err)
			}
			_, err = libcni.NewCNIConfigWithCacheDir(nil, dir, nil).GetNetworkListCachedResult(list, &libcni.RuntimeConf{ContainerID: "c1", IfName: "eth0"})
			if (err != nil) != test.fails {
				t.Errorf("libcni: %v, which is not what this test takes for granted", err)
			}
		})
	}
}

func TestReadWithoutAFile(t *testing.T) {
	dir := t.TempDir()
	for _, where := range []string{filepath.Join(dir, "no", "cache"), dir} {
		if file, err := Read(where, web.ID); err != nil || file.State != Missing {
			t.Errorf("Read = %+v, %v", file, err)
		}
	}
	put(t, dir, nil)
	if file, err := Read(dir, ID{"web", "c2", "eth0"}); err != nil || file.State != Missing {
		t.Errorf("Read = %+v, %v", file, err)
	}
}

func TestAnotherAttachmentsFile(t *testing.T) {
	dir := t.TempDir()
	ours, theirs := web, web
	ours.ID, theirs.ID = ID{"a-b", "c", "eth0"}, ID{"a", "b-c", "eth0"}
	if ours.Name() != theirs.Name() {
		t.Fatal("the names are not the same")
	}
	if err := Write(dir, theirs); err != nil {
		t.Fatal(err)
	}
	file, err := Read(dir, ours.ID)
	if err != nil || !file.Foreign(ours.ID) || file.Foreign(theirs.ID) {
		t.Errorf("Read = %+v, %v", file, err)
	}
	if err := Remove(dir, ours.ID); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(theirs.Path(dir)); err != nil {
		t.Errorf("it is removed: %v", err)
	}
	if err := Remove(dir, theirs.ID); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(theirs.Path(dir)); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

func TestWriteOverWhatIsDamaged(t *testing.T) {
	for _, content := range []string{"", "{}", strings.Repeat("\x00", 10000)} {
		dir := t.TempDir()
		path := put(t, dir, []byte(content))
		if err := Write(dir, web); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, encoded(t, web)) {
			t.Errorf("the file holds %q, %v", got, err)
		}
		only(t, dir, "results")
	}
}

func TestWriteMakesItsDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lib", "cni")
	if err := Write(dir, web); err != nil {
		t.Fatal(err)
	}
	for _, made := range []string{filepath.Dir(dir), dir, filepath.Join(dir, "results")} {
		if st, err := os.Stat(made); err != nil || st.Mode() != fs.ModeDir|0o700 {
			t.Errorf("%s: %v, %v", made, st.Mode(), err)
		}
	}
}

func TestACrashLeavesNothingForLibcni(t *testing.T) {
	for name, sweep := range map[string]func(dir string) error{
		"Sweep": Sweep,
		"Write": func(dir string) error { return Write(dir, web) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			other := web
			other.ContainerID = "c2"
			if err := Write(dir, other); err != nil {
				t.Fatal(err)
			}
			// Killed between the last byte and the rename.
			if err := os.WriteFile(filepath.Join(dir, temporary), encoded(t, web), 0o600); err != nil {
				t.Fatal(err)
			}
			attachments, err := libcni.NewCNIConfigWithCacheDir(nil, dir, nil).GetCachedAttachments("")
			if err != nil || len(attachments) != 1 {
				t.Errorf("libcni sees %d attachments (%v), want 1", len(attachments), err)
			}
			if err := sweep(dir); err != nil {
				t.Fatal(err)
			}
			only(t, dir, "results")
		})
	}
	if err := Sweep(filepath.Join(t.TempDir(), "none")); err != nil {
		t.Errorf("Sweep without a cache: %v", err)
	}
}

func TestSymbolicLinksAreNotFollowed(t *testing.T) {
	elsewhere := t.TempDir()
	target := filepath.Join(elsewhere, "precious")
	if err := os.WriteFile(target, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	untouched := func(t *testing.T) {
		only(t, elsewhere, "precious")
		if got, err := os.ReadFile(target); err != nil || string(got) != "{}" {
			t.Errorf("what the link leads to holds %q, %v", got, err)
		}
	}
	t.Run("a file", func(t *testing.T) {
		dir := t.TempDir()
		path := put(t, dir, nil)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
		if file, err := Read(dir, web.ID); err == nil || !strings.Contains(err.Error(), "is a symbolic link") {
			t.Errorf("Read = %+v, %v", file, err)
		}
		if err := Remove(dir, web.ID); err == nil {
			t.Error("Remove did not fail")
		}
		if err := Write(dir, web); err != nil { // it replaces the link itself
			t.Error(err)
		}
		untouched(t)
	})
	t.Run("the temporary file", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink(target, filepath.Join(dir, temporary)); err != nil {
			t.Fatal(err)
		}
		if err := Write(dir, web); err != nil {
			t.Error(err)
		}
		untouched(t)
		only(t, dir, "results")
	})
	t.Run("results", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink(elsewhere, filepath.Join(dir, "results")); err != nil {
			t.Fatal(err)
		}
		_, err := Read(dir, web.ID)
		for what, err := range map[string]error{"Read": err, "Write": Write(dir, web), "Remove": Remove(dir, web.ID)} {
			if err == nil || !strings.Contains(err.Error(), "results is a symbolic link or no directory") {
				t.Errorf("%s: %v", what, err)
			}
		}
		untouched(t)
	})
}

func TestWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	path := put(t, dir, nil)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if file, err := Read(dir, web.ID); err == nil {
		t.Errorf("Read of a FIFO = %+v", file)
	}
}

func TestNamesThatLeadElsewhere(t *testing.T) {
	for _, id := range []ID{{"..", "/x", "eth0"}, {"web", "../../x", "eth0"}, {"web", "", "eth0"}, {"web", "c1", "eth0\x00"}} {
		a := web
		a.ID = id
		dir := t.TempDir()
		if err := Write(dir, a); err == nil {
			t.Errorf("%+v is written", id)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%+v leaves %v, %v", id, entries, err)
		}
	}
}

// TestAtOnce has several processes' worth of writers share the one temporary name.
func TestAtOnce(t *testing.T) {
	dir := t.TempDir()
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			a := web
			a.ContainerID = fmt.Sprintf("c%d", i)
			if err := Write(dir, a); err != nil {
				t.Error(err)
			}
			if err := Sweep(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for i := range 20 {
		id := ID{"web", fmt.Sprintf("c%d", i), "eth0"}
		if file, err := Read(dir, id); err != nil || file.State != Readable || file.Foreign(id) {
			t.Errorf("%s: %+v, %v", id.Name(), file, err)
		}
	}
	only(t, dir, "results")
}

// only asserts that dir has one entry.
func only(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("%s holds %v, %v; want %s only", dir, entries, err, name)
	}
}
