package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The main thread is kept for the main goroutine, so that no test takes it for
// the thread of its own that it breaks.
func init() { runtime.LockOSThread() }

// fault is a system call that the kernel refuses.
type fault struct {
	call  uintptr
	errno unix.Errno
	// Only calls whose argument number arg has all bits of mask are refused.
	arg, mask uint32
}

// noTmpfile is what a file system without O_TMPFILE answers. There is none
// here that could be mounted without a server or tools of its own.
var noTmpfile = fault{call: unix.SYS_OPENAT, errno: unix.EOPNOTSUPP, arg: 2, mask: unix.O_TMPFILE}

// breakThread gives the test's goroutine a thread of its own, which ends with
// the goroutine, and on which the kernel refuses the given system calls. Tests
// that it runs with t.Run are on other threads.
func breakThread(t testing.TB, faults ...fault) {
	t.Helper()
	runtime.LockOSThread()
	const number, args = 0, 16 // offsets in struct seccomp_data
	var filter []unix.SockFilter
	for _, f := range faults {
		arg := args + 8*f.arg // its lower half, in little endian
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: number},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(f.call), Jf: 4},
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: arg},
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: f.mask},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: f.mask, Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(f.errno)},
		)
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	}
	if err != nil {
		t.Fatalf("installing a seccomp filter: %v", err)
	}
}

// unshareMounts gives the test's goroutine a thread of its own, which ends with
// the goroutine, and what the thread mounts with it.
func unshareMounts(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_NEWNS)
	if err == nil {
		err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err != nil {
		t.Fatalf("making a mount namespace: %v", err)
	}
}

func TestASystemCallThatFails(t *testing.T) {
	t.Parallel()
	known, fresh, freshNetwork := testKey, Key{"web", "c2", "eth0"}, Key{"new", "c1", "eth0"}
	full := func(call uintptr) fault { return fault{call: call, errno: unix.ENOSPC} }
	broken := func(call uintptr) fault { return fault{call: call, errno: unix.EIO} }
	for _, row := range []struct {
		name   string
		faults []fault
		key    Key
		entry  Entry
		want   error
		stays  bool // the entry is there nevertheless, and the error says so
	}{
		{"the disk is full when an entry is appended", []fault{full(unix.SYS_WRITE)}, known, Add{}, unix.ENOSPC, false},
		{"the disk is full when a failed replay is appended", []fault{full(unix.SYS_WRITE)}, known, Attempt{}, unix.ENOSPC, false},
		{"an appended entry does not reach the disk", []fault{broken(unix.SYS_FDATASYNC)}, known, Result(`{}`), unix.EIO, false},
		{"it does not, and cannot be cut off again", []fault{broken(unix.SYS_FDATASYNC), broken(unix.SYS_FTRUNCATE)}, known, Add{}, unix.EIO, true},
		{"nobody waits for a failed replay to reach the disk", []fault{broken(unix.SYS_FDATASYNC)}, known, Attempt{}, nil, false},
		{"nobody waits for a replay to reach the disk", []fault{broken(unix.SYS_FDATASYNC)}, known, Replayed{}, nil, false},
		{"the name of a known file is not synced again", []fault{broken(unix.SYS_FSYNC)}, known, Add{}, nil, false},

		{"the disk is full when a file is made", []fault{full(unix.SYS_WRITE)}, fresh, Add{}, unix.ENOSPC, false},
		{"there is no inode left", []fault{{unix.SYS_OPENAT, unix.ENOSPC, 2, unix.O_TMPFILE}}, fresh, Add{}, unix.ENOSPC, false},
		{"a new file cannot be given its name", []fault{full(unix.SYS_LINKAT)}, fresh, Add{}, unix.ENOSPC, false},
		{"a new file does not reach the disk", []fault{broken(unix.SYS_FDATASYNC)}, fresh, Add{}, unix.EIO, false},
		{"the name of a new file does not reach the disk", []fault{broken(unix.SYS_FSYNC)}, fresh, Add{}, unix.EIO, false},
		{"it does not, and cannot be removed again", []fault{broken(unix.SYS_FSYNC), broken(unix.SYS_UNLINKAT)}, fresh, Add{}, unix.EIO, true},
		{"the name of a new network does not reach the disk", []fault{broken(unix.SYS_FSYNC)}, freshNetwork, Add{}, unix.EIO, false},

		{"without O_TMPFILE all is well", []fault{noTmpfile}, fresh, Add{}, nil, false},
		{"without O_TMPFILE, the old kernels' answer", []fault{{unix.SYS_OPENAT, unix.EISDIR, 2, unix.O_TMPFILE}}, fresh, Add{}, nil, false},
		{"without O_TMPFILE, in a new network", []fault{noTmpfile}, freshNetwork, Add{}, nil, false},
		{"without O_TMPFILE the disk is full", []fault{noTmpfile, full(unix.SYS_WRITE)}, fresh, Add{}, unix.ENOSPC, false},
		{"without O_TMPFILE a new file does not reach the disk", []fault{noTmpfile, broken(unix.SYS_FDATASYNC)}, fresh, Add{}, unix.EIO, false},
		{"without O_TMPFILE the name does not reach the disk", []fault{noTmpfile, broken(unix.SYS_FSYNC)}, fresh, Add{}, unix.EIO, false},
		{"without O_TMPFILE the name can neither be synced nor removed", []fault{noTmpfile, broken(unix.SYS_FSYNC), broken(unix.SYS_UNLINKAT)}, fresh, Add{}, unix.EIO, true},
		{"without O_TMPFILE the file cannot be renamed", []fault{noTmpfile, broken(unix.SYS_RENAMEAT), broken(unix.SYS_RENAMEAT2)}, fresh, Add{}, unix.EIO, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			store, dir := newStore(t)
			mustAppend(t, store, known, Add{Path: "/before"})
			before := content(t, dir)

			var err error
			t.Run("meanwhile", func(t *testing.T) {
				breakThread(t, row.faults...)
				err = store.Append(row.key, row.entry)
			})
			if !errors.Is(err, row.want) {
				t.Fatalf("Append: %v, want %v", err, row.want)
			}
			if said := err != nil && strings.Contains(err.Error(), "could not be taken back"); said != row.stays {
				t.Errorf("the error says that the entry stays: %v, want %v: %v", said, row.stays, err)
			}
			after := content(t, dir)
			if row.want != nil && !row.stays {
				if fmt.Sprint(before) != fmt.Sprint(after) {
					t.Errorf("after an error there is\n%q\nthere was\n%q", after, before)
				}
			} else if after[row.key.String()] == before[row.key.String()] {
				t.Errorf("the entry is not there, only %q", after)
			}

			// Once the fault has gone, everything is as if it had never been.
			mustAppend(t, store, row.key, Add{Path: "/after"})
			rec := mustLock(t, store, row.key).Record()
			if rec.Damaged != nil || rec.Newest().Path != "/after" || mode(t, filepath.Join(dir, row.key.Network)) != 0o700 {
				t.Errorf("afterwards the record is %+v", rec)
			}
			if slices.ContainsFunc(files(t, dir), func(f string) bool { return filepath.Base(f) == newFile }) {
				t.Errorf(".new is left behind: %q", files(t, dir))
			}
		})
	}
}

// content returns what the files below dir hold, by name.
func content(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for _, file := range files(t, dir) {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		all[file] = string(data)
	}
	return all
}

func TestAFullDisk(t *testing.T) {
	t.Parallel()
	// More than there is room for: the write falls short.
	big := Result(`"` + strings.Repeat("x", 1<<20) + `"`)
	for _, row := range []struct {
		name   string
		faults []fault
	}{{"with O_TMPFILE", nil}, {"without O_TMPFILE", []fault{noTmpfile}}} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			disk := t.TempDir()
			t.Run("mounted", func(t *testing.T) {
				unshareMounts(t)
				breakThread(t, row.faults...)
				if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256k"); err != nil {
					t.Fatal(err)
				}
				store, err := Create(filepath.Join(disk, "data"))
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
				mustAppend(t, store, testKey, Add{Path: "/before"})
				before := content(t, disk)
				for _, key := range []Key{testKey, {"web", "c2", "eth0"}} {
					if err := store.Append(key, big); !errors.Is(err, unix.ENOSPC) {
						t.Errorf("Append to %s: %v, want ENOSPC", key, err)
					}
				}
				f := mustLock(t, store, testKey)
				if err := f.Append(big); !errors.Is(err, unix.ENOSPC) {
					t.Errorf("Append to the locked file: %v, want ENOSPC", err)
				}
				if after := content(t, disk); fmt.Sprint(before) != fmt.Sprint(after) {
					t.Errorf("a full disk has left %q", files(t, disk))
				}
				if err := f.Append(Attempt{Error: "it still fits"}); err != nil || len(f.Record().Attempts) != 1 {
					t.Errorf("a small entry: %v, %+v", err, f.Record())
				}
				f.Close()
			})
		})
	}
}

func TestAReadOnlyFileSystemCanBeRead(t *testing.T) {
	t.Parallel()
	_, dir := newStore(t)
	t.Run("mounted", func(t *testing.T) {
		unshareMounts(t)
		store, err := Create(dir)
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, store, testKey, Add{Path: "/before"})
		store.Close()
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		store, err = Create(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		f, err := store.Lock(testKey)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if add := f.Record().Newest(); add == nil || add.Path != "/before" {
			t.Errorf("the record is %+v", f.Record())
		}
		if err := f.Remove(); !errors.Is(err, unix.EROFS) {
			t.Errorf("Remove: %v, want EROFS", err)
		}
		if err := f.Append(Attempt{}); err == nil {
			t.Error("Append to a file that is read-only succeeds")
		}
		if _, err := f.SetAside(); !errors.Is(err, unix.EROFS) {
			t.Errorf("SetAside: %v, want EROFS", err)
		}
		for _, key := range []Key{testKey, {"web", "c2", "eth0"}, {"new", "c1", "eth0"}} {
			if err := store.Append(key, Add{}); !errors.Is(err, unix.EROFS) {
				t.Errorf("Append to %s: %v, want EROFS", key, err)
			}
		}
	})
}

// A process that died between writing .new and renaming it leaves it behind.
func TestALeftoverOfAFileSystemWithoutTmpfiles(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		prepare func(path string) error
		want    error
	}{
		{"longer than what comes now", func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("x"), 1<<16), 0o600) }, nil},
		{"empty", func(p string) error { return os.WriteFile(p, nil, 0o600) }, nil},
		{"a symbolic link", func(p string) error { return os.Symlink("c9@eth0", p) }, ErrUntrusted},
		{"readable by everyone", func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chmod(p, 0o644)) }, ErrUntrusted},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			store, dir := newStore(t)
			mustAppend(t, store, Key{"web", "c9", "eth0"}, Add{})
			if err := row.prepare(filepath.Join(dir, "web", newFile)); err != nil {
				t.Fatal(err)
			}
			t.Run("meanwhile", func(t *testing.T) {
				breakThread(t, noTmpfile)
				if err := store.Append(testKey, Add{Path: "/new"}); !errors.Is(err, row.want) {
					t.Errorf("Append: %v, want %v", err, row.want)
				}
			})
			f, err := store.Lock(testKey)
			if row.want != nil {
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("Lock: %v, want it not to exist", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if rec := f.Record(); rec.Damaged != nil || len(rec.Adds) != 1 || rec.Newest().Path != "/new" {
				t.Errorf("the record is %+v", rec)
			}
			if files := files(t, dir); len(files) != 2 {
				t.Errorf("there are %q", files)
			}
		})
	}
}
