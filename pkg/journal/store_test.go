package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newStore makes a store in a directory of the test's own.
func newStore(t testing.TB) (store *Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	store, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store, dir
}

func mustAppend(t testing.TB, store *Store, key Key, entries ...Entry) {
	t.Helper()
	for _, e := range entries {
		if err := store.Append(key, e); err != nil {
			t.Fatal(err)
		}
	}
}

func mustLock(t testing.TB, store *Store, key Key) *File {
	t.Helper()
	f, err := store.Lock(key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestAnAttachmentFromAddToDel(t *testing.T) {
	t.Parallel()
	store, dir := newStore(t)
	if _, err := store.Lock(testKey); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("locking what is not journaled: %v, want it not to exist", err)
	}
	before := time.Now()
	mustAppend(t, store, testKey, testAdd(), Result(`{"a":1}`))

	again, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := mustLock(t, again, testKey)
	again.Close() // files that a store has given out stay usable
	if f.Path() != filepath.Join(dir, "web", "c1@eth0") {
		t.Errorf("the file is %s", f.Path())
	}
	add := f.Record().Newest()
	if add == nil || !bytes.Equal(add.Args, testAdd().Args) || string(add.Result) != `{"a":1}` {
		t.Fatalf("the record is %+v", f.Record())
	}
	if add.Time.Before(before.Add(-time.Second)) || add.Time.After(time.Now().Add(time.Second)) {
		t.Errorf("the entry was written %s", add.Time)
	}
	if err := f.Append(Attempt{Plugin: "bridge", Error: "busy"}); err != nil {
		t.Fatal(err)
	}
	if got := f.Record().Attempts; len(got) != 1 || got[0].Error != "busy" || got[0].Time.IsZero() {
		t.Errorf("after one failed replay the attempts are %+v", got)
	}
	if err := f.Append(Replayed{}); err != nil {
		t.Fatal(err)
	}
	if rec := f.Record(); rec.Newest() != nil || rec.Attempts != nil || rec.Corrupt() {
		t.Errorf("after the replay the record is %+v", rec)
	}
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := store.Lock(testKey); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("locking what has been removed: %v, want it not to exist", err)
	}
	if files := files(t, dir); files != nil {
		t.Errorf("left behind: %q", files)
	}
}

func TestOpenMakesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if _, err := Open(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open: %v, want it not to exist", err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is there: %v", err)
	}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, path string }{
		{"beside other directories", "data"},
		{"with its parents", "a/b/data"},
		{"with a slash behind", "data/"},
		{"with its parents and a slash behind", "a/b/data//"},
		{"by a path that is not clean", "a/../b/./data"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			path := top + "/" + row.path
			for range 2 {
				store, err := Create(path)
				if err != nil {
					t.Fatal(err)
				}
				mustAppend(t, store, testKey, Attempt{})
				store.Close()
			}
			path = filepath.Clean(path)
			for dir, want := range map[string]fs.FileMode{
				path:                                  0o700,
				filepath.Join(path, "web"):            0o700,
				filepath.Join(path, testKey.String()): 0o600,
				filepath.Dir(path):                    0o755,
			} {
				if got := mode(t, dir); got != want {
					t.Errorf("%s has mode %v, want %v", dir, got, want)
				}
			}
		})
	}
}

// mode returns the permissions of what stands at path.
func mode(t testing.TB, path string) fs.FileMode {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Mode().Perm()
}

func TestCreateFailsBelowAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(filepath.Join(file, "a", "data")); !errors.Is(err, unix.ENOTDIR) || errors.Is(err, ErrUntrusted) {
		t.Errorf("Create: %v, want ENOTDIR", err)
	}
}

func TestKeysOfANetwork(t *testing.T) {
	t.Parallel()
	store, dir := newStore(t)
	if keys, err := store.Keys("web"); keys != nil || err != nil {
		t.Errorf("the keys of no network are %q, %v", keys, err)
	}
	want := []Key{{"web", "c1", "a@b"}, {"web", "c1", "eth0"}, {"web", "c2", "eth0"}}
	for _, key := range append([]Key{{"other", "c3", "eth0"}}, want...) {
		mustAppend(t, store, key, Attempt{})
	}
	for _, stray := range []string{".new", "c1", "README", ".c9@eth0"} {
		if err := os.WriteFile(filepath.Join(dir, "web", stray), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := mustLock(t, store, Key{"other", "c3", "eth0"})
	if _, err := f.SetAside(); err != nil {
		t.Fatal(err)
	}
	keys, err := store.Keys("web")
	slices.SortFunc(keys, func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	if err != nil || !slices.Equal(keys, want) {
		t.Errorf("the keys are %q, %v; want %q", keys, err, want)
	}
	for _, network := range []string{"other", ".corrupt", "..", "."} {
		if keys, _ := store.Keys(network); keys != nil {
			t.Errorf("network %q has the keys %q", network, keys)
		}
	}
}

// Whoever finds a directory 0500 has to make its name durable; whoever finds
// it 0700 may rely on it.
func TestANewDirectoryIsMarkedUntilItsNameIsDurable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "web")
	broken := errors.New("the disk is broken")
	for _, row := range []struct {
		name  string
		sync  error
		syncs int
		mode  fs.FileMode
	}{
		{"it is made, but cannot be made durable", broken, 1, 0o500},
		{"it is found, and still cannot be made durable", broken, 1, 0o500},
		{"it is found, and made durable", nil, 1, 0o700},
		{"it is durable, and not synced again", nil, 0, 0o700},
	} {
		syncs := 0
		d, err := createDir(unix.AT_FDCWD, path, path, func() error {
			if syncs++; mode(t, path) != 0o500 {
				t.Errorf("%s: its mode is %v before the sync has returned", row.name, mode(t, path))
			}
			return row.sync
		})
		if err == nil {
			d.Close()
		}
		if !errors.Is(err, row.sync) || syncs != row.syncs || mode(t, path) != row.mode {
			t.Errorf("%s: %v after %d syncs, mode %v; want %v after %d, %v", row.name, err, syncs, mode(t, path), row.sync, row.syncs, row.mode)
		}
	}
}

func TestADirectoryThatADeadProcessLeftMarkedIsUsed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	for _, d := range []string{dir, filepath.Join(dir, "web")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{filepath.Join(dir, "web"), dir} {
		if err := os.Chmod(d, 0o500); err != nil {
			t.Fatal(err)
		}
	}
	// Readers do not mind.
	store, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Lock(testKey); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lock: %v", err)
	}
	store.Close()
	store, err = Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	mustAppend(t, store, testKey, Add{})
	for _, d := range []string{dir, filepath.Join(dir, "web")} {
		if got := mode(t, d); got != 0o700 {
			t.Errorf("%s has mode %v", d, got)
		}
	}
}

func TestWhatIsNotOursAloneIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("chown and mknod need root")
	}
	const store, network, file = "data", "data/web", "data/web/c1@eth0"
	chmod := func(mode fs.FileMode) func(string) error {
		return func(path string) error { return os.Chmod(path, mode) }
	}
	chown := func(uid, gid int) func(string) error {
		return func(path string) error { return os.Chown(path, uid, gid) }
	}
	link := func(path string) error {
		return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
	}
	// instead puts something else at path.
	instead := func(make func(path string) error) func(string) error {
		return func(path string) error { return errors.Join(os.RemoveAll(path), make(path)) }
	}
	regular := instead(func(path string) error { return os.WriteFile(path, nil, 0o600) })
	for _, row := range []struct {
		name   string
		path   string
		change func(path string) error
		remedy string // "" if it is no reason to refuse
	}{
		{"the store as it was made", store, chmod(0o700), ""},
		{"a directory of another group", network, chown(0, 65534), ""},
		{"a dataDir that we cannot write", store, chmod(0o500), ""},

		{"a dataDir that is a symbolic link", store, link, "put a directory"},
		{"a dataDir that is a file", store, regular, "put a directory"},
		{"a dataDir of another user", store, chown(65534, 0), "chown it"},
		{"a dataDir that the group can write", store, chmod(0o770), "chmod 0700 "},
		{"a dataDir that everyone can search", store, chmod(0o701), "chmod 0700 "},
		{"a dataDir that everyone can write, though sticky", store, chmod(0o777 | fs.ModeSticky), "chmod 0700 "},

		{"a network that is a symbolic link", network, link, "put a directory"},
		{"a network that is a file", network, regular, "put a directory"},
		{"a network of another user", network, chown(65534, 0), "chown it"},
		{"a network that the group can read", network, chmod(0o740), "chmod 0700 "},
		{"a network that everyone can write", network, chmod(0o702), "chmod 0700 "},

		{"a file that is a symbolic link", file, link, "remove it"},
		{"a file that is a symbolic link to nothing", file, instead(func(p string) error { return os.Symlink(p+".none", p) }), "remove it"},
		{"a file of another user", file, chown(65534, 0), "chown it"},
		{"a file that the group can read", file, chmod(0o640), "chmod 0600 "},
		{"a file that everyone can write", file, chmod(0o602), "chmod 0600 "},
		{"a FIFO in place of the file", file, instead(func(p string) error { return unix.Mkfifo(p, 0o600) }), "remove it"},
		{"a device in place of the file", file, instead(func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }), "remove it"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			s, err := Create(filepath.Join(top, store))
			if err != nil {
				t.Fatal(err)
			}
			mustAppend(t, s, testKey, Add{})
			s.Close()
			if err := row.change(filepath.Join(top, row.path)); err != nil {
				t.Fatal(err)
			}
			before := files(t, top)

			// use tries what a verb does, as far as it gets.
			use := func(open func(string) (*Store, error), then func(*Store) error) error {
				s, err := open(filepath.Join(top, store))
				if err != nil {
					return err
				}
				defer s.Close()
				return then(s)
			}
			lock := func(s *Store) error {
				f, err := s.Lock(testKey)
				if err == nil {
					f.Close()
				}
				return err
			}
			keys := func(s *Store) error {
				_, err := s.Keys(testKey.Network)
				return err
			}
			for _, verb := range []struct {
				name string
				run  func() error
				sees []string
			}{
				{"Append", func() error { return use(Create, func(s *Store) error { return s.Append(testKey, Attempt{}) }) }, []string{store, network, file}},
				{"Lock", func() error { return use(Open, lock) }, []string{store, network, file}},
				{"Keys", func() error { return use(Open, keys) }, []string{store, network}},
			} {
				done := make(chan error, 1)
				go func() { done <- verb.run() }()
				var err error
				select {
				case err = <-done:
				case <-time.After(10 * time.Second):
					t.Fatalf("%s hangs", verb.name)
				}
				refused := row.remedy != "" && slices.Contains(verb.sees, row.path)
				switch {
				case !refused && err != nil:
					t.Errorf("%s: %v, want no error", verb.name, err)
				case refused && !errors.Is(err, ErrUntrusted):
					t.Errorf("%s: %v, want it to be untrusted", verb.name, err)
				case refused && (!strings.Contains(err.Error(), row.remedy) || !strings.Contains(err.Error(), filepath.Join(top, row.path))):
					t.Errorf("%s: the message does not say where it is, or %q: %v", verb.name, row.remedy, err)
				}
			}
			if after := files(t, top); !slices.Equal(before, after) {
				t.Errorf("there were %q, and now %q", before, after)
			}
		})
	}
}

// A slash behind a symbolic link makes the kernel follow it.
func TestADataDirLinkWithASlashBehindIsRefused(t *testing.T) {
	t.Parallel()
	_, dir := newStore(t)
	link := dir + ".link"
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func(string) (*Store, error){"Open": Open, "Create": Create} {
		if s, err := open(link + "/"); !errors.Is(err, ErrUntrusted) {
			t.Errorf("%s: %v, want it to be untrusted", name, err)
			if err == nil {
				s.Close()
			}
		}
	}
}

func TestSetAside(t *testing.T) {
	t.Parallel()
	store, dir := newStore(t)
	var moved []string
	for i := range 3 {
		mustAppend(t, store, testKey, Attempt{})
		f := mustLock(t, store, testKey)
		content := fmt.Sprintf("broken %d", i)
		if err := os.WriteFile(f.Path(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		path, err := f.SetAside()
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%s holds %q, %v; want %q", path, got, err, content)
		}
		if !strings.HasPrefix(path, filepath.Join(dir, ".corrupt")+"/") || !strings.Contains(path, "@web/") || filepath.Base(path) != testKey.name() {
			t.Errorf("%s does not tell what it is", path)
		}
		moved = append(moved, path)
	}
	if slices.Sort(moved); len(slices.Compact(moved)) != 3 || len(files(t, dir)) != 3 {
		t.Errorf("3 files were set aside, there are %q", files(t, dir))
	}
	if got := mode(t, filepath.Join(dir, ".corrupt")); got != 0o700 {
		t.Errorf(".corrupt has mode %v", got)
	}
}
