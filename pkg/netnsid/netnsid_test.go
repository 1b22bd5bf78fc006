package netnsid

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The main thread is kept for the main goroutine, so that no test leaves it in
// another namespace.
func init() { runtime.LockOSThread() }

// namespace is a network namespace that lives as long as the test. It has no
// name: paths are made for it with at.
type namespace struct{ fd int }

func newNamespace(t testing.TB) namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
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
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return namespace{int(ns)}
}

// at gives the namespace a path, without a mount that could be left behind.
// What stood there is gone.
func (ns namespace) at(t testing.TB, path string) {
	t.Helper()
	place(t, path, func() error { return os.Symlink(fmt.Sprintf("/proc/self/fd/%d", ns.fd), path) })
}

func place(t testing.TB, path string, make func() error) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if err := make(); err != nil {
		t.Fatal(err)
	}
}

func mustOf(t testing.TB, path string) ID {
	t.Helper()
	id, err := Of(path)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAnIdentityHoldsWhileItsNamespaceIsThere(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		change func(t *testing.T, id *ID) // after the identity was taken
		alive  bool
	}{
		{"nothing happens", func(*testing.T, *ID) {}, true},
		{"the path is gone", func(t *testing.T, id *ID) { place(t, id.Path, func() error { return nil }) }, false},
		{"its directory is gone", func(t *testing.T, id *ID) {
			place(t, filepath.Dir(id.Path), func() error { return nil })
		}, false},
		{"its directory is a file", func(t *testing.T, id *ID) {
			dir := filepath.Dir(id.Path)
			place(t, dir, func() error { return os.WriteFile(dir, nil, 0o600) })
		}, false},
		{"an unmounted name is left, an empty file", func(t *testing.T, id *ID) {
			place(t, id.Path, func() error { return os.WriteFile(id.Path, nil, 0o444) })
		}, false},
		{"a directory stands there", func(t *testing.T, id *ID) {
			place(t, id.Path, func() error { return os.Mkdir(id.Path, 0o700) })
		}, false},
		{"the path is given to another namespace", func(t *testing.T, id *ID) { newNamespace(t).at(t, id.Path) }, false},
		{"the machine has booted", func(_ *testing.T, id *ID) { id.BootID = "00000000-0000-0000-0000-000000000000" }, false},
		{"the boot was not noted", func(_ *testing.T, id *ID) { id.BootID = "" }, false},
		{"the inode is another", func(_ *testing.T, id *ID) { id.Inode++ }, false},
		{"the device is another", func(_ *testing.T, id *ID) { id.Device++ }, false},
		{"the inode was given again, the cookie tells", func(_ *testing.T, id *ID) { id.Cookie++ }, false},
		{"nothing was noted but the path", func(_ *testing.T, id *ID) { *id = ID{Path: id.Path} }, false},
		{"nothing was noted at all", func(_ *testing.T, id *ID) { *id = ID{} }, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "netns")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "c1")
			newNamespace(t).at(t, path)
			id := mustOf(t, path)
			row.change(t, &id)
			if alive, err := id.Alive(); err != nil || alive != row.alive {
				t.Errorf("Alive() = %v, %v; want %v", alive, err, row.alive)
			}
			if usable := usable(id); usable != row.alive {
				t.Errorf("usable = %v, want %v", usable, row.alive)
			}
		})
	}
}

// A namespace whose last holder is gone has no path; one that a zombie had is
// gone as well.
func TestTheNamespaceOfAProcessThatEnds(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("making network namespaces needs root")
	}
	runtime.LockOSThread() // see Pdeathsig
	defer runtime.UnlockOSThread()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waited := false
	defer func() {
		if !waited {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}()
	id := mustOf(t, fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	if !usable(id) {
		t.Error("the namespace of a running process is not usable")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Until it is waited for, it is a zombie.
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if alive, err := id.Alive(); err != nil || alive {
		t.Errorf("of a zombie: Alive() = %v, %v; want false", alive, err)
	}
	cmd.Wait()
	waited = true
	if alive, err := id.Alive(); err != nil || alive {
		t.Errorf("of a process that is gone: Alive() = %v, %v; want false", alive, err)
	}
}

func TestWhatIsNoNetworkNamespaceHasNoIdentity(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", file, file + "/net", "/", "/nonexistent", "/proc/self/ns/mnt", "/dev/null"} {
		id, err := Of(path)
		if err == nil || id != (ID{}) {
			t.Errorf("Of(%q) = %+v, %v; want an error", path, id, err)
		} else if !strings.Contains(err.Error(), "network namespace "+path) {
			t.Errorf("Of(%q): the message does not say of what: %v", path, err)
		}
	}
}

// If it cannot be told whether a namespace is there, that is an error, and it
// is not used.
func TestWhatCannotBeToldIsAnError(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "c1")
	newNamespace(t).at(t, path)
	id := mustOf(t, path)
	place(t, path, func() error { return os.Symlink(path, path) })
	if alive, err := id.Alive(); !errors.Is(err, unix.ELOOP) || alive {
		t.Errorf("Alive() = %v, %v; want ELOOP", alive, err)
	}
	if usable(id) {
		t.Error("it is usable")
	}
}

func TestEveryNamespaceHasACookieOfItsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := make(map[uint64]string)
	paths := []string{"/proc/self/ns/net"}
	for i := range 3 {
		path := filepath.Join(dir, fmt.Sprint(i))
		newNamespace(t).at(t, path)
		paths = append(paths, path)
	}
	for _, path := range paths {
		id := mustOf(t, path)
		if id.Cookie == 0 {
			var name unix.Utsname
			if err := unix.Uname(&name); err == nil {
				t.Skipf("Linux %s has no SO_NETNS_COOKIE", unix.ByteSliceToString(name.Release[:]))
			}
		}
		if other, ok := seen[id.Cookie]; ok {
			t.Errorf("%s and %s have the same cookie %d", path, other, id.Cookie)
		}
		seen[id.Cookie] = path
		if again := mustOf(t, path); again != id {
			t.Errorf("taken twice, the identity of %s is %+v and %+v", path, id, again)
		}
	}
}

// Neither our own namespace nor that of the host's init is usable, by whatever
// path. So that the two differ, and so that /proc/1 can be read wherever the
// test runs, there is a process 1 of the test's own.
func TestOurOwnNamespaceAndTheHostsAreNotUsable(t *testing.T) {
	const variable = "NETNSID_TEST_STAGE"
	again := func(stage string, flags uintptr) {
		runtime.LockOSThread() // see Pdeathsig
		defer runtime.UnlockOSThread()
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"="+stage)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("%s: %v\n%s", stage, err, out)
		}
	}
	switch os.Getenv(variable) {
	case "":
		t.Parallel()
		if os.Geteuid() != 0 {
			t.Skip("making namespaces needs root")
		}
		again("init", syscall.CLONE_NEWPID|syscall.CLONE_NEWNS)
		return
	case "init":
		err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, ""))
		if err != nil {
			t.Fatal(err)
		}
		again("process", syscall.CLONE_NEWNET)
		return
	}
	link := filepath.Join(t.TempDir(), "link")
	for _, row := range []struct {
		name, target string
		own          bool
	}{
		{"our own", "/proc/self/ns/net", true},
		{"that of one of our threads", fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), true},
		{"the host's", "/proc/1/ns/net", false},
	} {
		place(t, link, func() error { return os.Symlink(row.target, link) })
		id := mustOf(t, link)
		if alive, err := id.Alive(); err != nil || !alive {
			t.Errorf("%s: Alive() = %v, %v; want true", row.name, alive, err)
		}
		if usable(id) {
			t.Errorf("%s is usable", row.name)
		}
		if own := Own(link); own != row.own {
			t.Errorf("%s: Own() = %v, want %v", row.name, own, row.own)
		}
	}
	newNamespace(t).at(t, link)
	if id := mustOf(t, link); !usable(id) || Own(link) {
		t.Errorf("another: usable = %v, Own() = %v; want true, false", usable(id), Own(link))
	}
	if Own("/nonexistent") {
		t.Error("a path that is not there is our own")
	}
}

// usable reports whether a plugin may be sent to where id was taken.
func usable(id ID) bool { return id.Find(id.Path) != "" }

// Find looks for the same namespace under another name, too: a runtime may have
// pinned it elsewhere since.
func TestANamespaceIsFoundUnderItsOtherName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ns := newNamespace(t)
	old, now, other := filepath.Join(dir, "old"), filepath.Join(dir, "now"), filepath.Join(dir, "other")
	ns.at(t, old)
	id := mustOf(t, old)
	ns.at(t, now)
	newNamespace(t).at(t, other)
	if found := id.Find(other, now); found != now {
		t.Errorf("Find() = %q, want %q", found, now)
	}
	if found := id.Find(other, filepath.Join(dir, "none"), ""); found != "" {
		t.Errorf("Find() = %q, want none", found)
	}
}

// Taking an identity goes through the namespace; nobody must notice.
func TestNobodyIsLeftInAForeignNamespace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var ids []ID
	for i := range 4 {
		path := filepath.Join(dir, fmt.Sprint(i))
		newNamespace(t).at(t, path)
		ids = append(ids, mustOf(t, path))
	}
	own := mustOf(t, "/proc/self/ns/net")
	here := func() (ID, error) {
		path := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		return ID{Inode: st.Ino, Device: uint64(st.Dev)}, err
	}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if i%4 == 0 {
				runtime.LockOSThread() // a caller that is locked stays so
				defer runtime.UnlockOSThread()
			}
			for n := range 10 {
				want := ids[(i+n)%len(ids)]
				if got, err := Of(want.Path); err != nil || got != want {
					t.Errorf("Of(%s) = %+v, %v; want %+v", want.Path, got, err, want)
				}
				if i%4 == 0 || n%3 == 0 {
					runtime.LockOSThread()
					if got, err := here(); err != nil || got.Inode != own.Inode || got.Device != own.Device {
						t.Errorf("the thread is in namespace %d, %v; want %d", got.Inode, err, own.Inode)
					}
					runtime.UnlockOSThread()
				}
			}
		})
	}
	wg.Wait()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		for _, id := range ids {
			if same(task, id.Path) {
				t.Errorf("the thread %s is still in %s", task, id.Path)
			}
		}
	}
}

func TestTheBootIDIsTheKernels(t *testing.T) {
	t.Parallel()
	id, err := BootID()
	if err != nil || len(id) != 36 || strings.TrimSpace(id) != id {
		t.Errorf("BootID() = %q, %v", id, err)
	}
}
