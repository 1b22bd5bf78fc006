package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/utils"
	"golang.org/x/sys/unix"
)

const (
	corruptDir = ".corrupt"
	newFile    = ".new"

	// The modes while a name may not be durable yet; see the package comment.
	dirUnsynced  = 0o500
	fileUnsynced = 0o700

	dirMode  = 0o700
	fileMode = 0o600
)

// Store is an open journal directory.
type Store struct {
	dir *os.File
}

// Open opens the store at dir. The error wraps [fs.ErrNotExist] if there is
// none, and [ErrUntrusted] if it is not ours alone.
func Open(dir string) (*Store, error) {
	dir = filepath.Clean(dir) // with a slash behind, the kernel would follow a symbolic link
	d, err := openDir(unix.AT_FDCWD, dir, dir)
	if err != nil {
		return nil, err
	}
	return &Store{d}, nil
}

// Create opens the store at dir and makes it first if there is none; its name,
// and those of the parents that had to be made, are then durable.
func Create(dir string) (*Store, error) {
	dir = filepath.Clean(dir)
	d, err := createDir(unix.AT_FDCWD, dir, dir, func() error { return syncPath(filepath.Dir(dir)) })
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeParents(filepath.Dir(dir)); err != nil {
			return nil, err
		}
		d, err = createDir(unix.AT_FDCWD, dir, dir, func() error { return syncPath(filepath.Dir(dir)) })
	}
	if err != nil {
		return nil, err
	}
	return &Store{d}, nil
}

// Close releases the store. Files that it has given out stay usable.
func (s *Store) Close() error { return s.dir.Close() }

// Append adds e to the attachment's file, which it makes if there is none. An
// [Add] or [Result] is durable when Append returns nil; after an error it is
// either not there or, where the message says so, could not be taken back.
//
// The error wraps [ErrInvalidKey], [ErrUntrusted], [ErrLocked] or the error of
// a system call.
func (s *Store) Append(key Key, e Entry) error {
	if err := key.Validate(); err != nil {
		return err
	}
	dir, err := createDir(int(s.dir.Fd()), key.Network, s.path(key.Network), s.dir.Sync)
	if err != nil {
		return err
	}
	defer dir.Close()
	b, err := encode(e, time.Now().UTC()) // local time would be read from a file
	if err != nil {
		return err
	}
	deadline := time.Now().Add(LockTimeout)
	for {
		f, err := lock(dir, key.name(), unix.O_RDWR, deadline)
		if err == nil {
			defer f.Close()
			if durable(e) {
				if err := syncName(dir, f); err != nil {
					return err
				}
			}
			return appendLine(f, b, durable(e))
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// There is none. If somebody makes it before us, append to theirs.
		if err := create(dir, key.name(), b, deadline); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

// Lock opens the attachment's file, and holds it against every other process
// until Close. It waits [LockTimeout] at most. The error wraps
// [fs.ErrNotExist] if nothing is journaled for the attachment, [ErrUntrusted],
// [ErrLocked], or the error of a system call.
func (s *Store) Lock(key Key) (*File, error) {
	return s.lock(key, time.Now().Add(LockTimeout))
}

// TryLock is Lock, but does not wait for another process.
func (s *Store) TryLock(key Key) (*File, error) { return s.lock(key, time.Time{}) }

func (s *Store) lock(key Key, deadline time.Time) (*File, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	dir, err := openDir(int(s.dir.Fd()), key.Network, s.path(key.Network))
	if err != nil {
		return nil, err
	}
	f, err := lock(dir, key.name(), unix.O_RDWR, deadline)
	readOnly := errors.Is(err, unix.EROFS)
	if readOnly {
		f, err = lock(dir, key.name(), unix.O_RDONLY, deadline)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	file := &File{key: key, dir: dir, f: f, readOnly: readOnly}
	if err := file.read(); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// Read returns what is journaled for the attachment at this moment, without
// waiting for a process that holds it. The errors are those of Lock.
func (s *Store) Read(key Key) (Record, error) {
	if err := key.Validate(); err != nil {
		return Record{}, err
	}
	dir, err := openDir(int(s.dir.Fd()), key.Network, s.path(key.Network))
	if err != nil {
		return Record{}, err
	}
	defer dir.Close()
	f, _, err := openFile(dir, key.name(), unix.O_RDONLY)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	return readRecord(key, f)
}

// check returns nil if the network's directory is absent, or ours alone.
func (s *Store) check(network string) error {
	dir, err := openDir(int(s.dir.Fd()), network, s.path(network))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return dir.Close()
}

// Networks returns the networks that have a directory, sorted. A symbolic
// link is among them, so that Keys refuses it and nobody takes it for absent.
func (s *Store) Networks() ([]string, error) {
	// A descriptor of its own: reading a directory moves its offset.
	dir, err := openDir(int(s.dir.Fd()), ".", s.dir.Name())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var networks []string
	for _, entry := range entries {
		if entry.Type()&(fs.ModeDir|fs.ModeSymlink) != 0 && utils.ValidateNetworkName(entry.Name()) == nil {
			networks = append(networks, entry.Name())
		}
	}
	slices.Sort(networks)
	return networks, nil
}

// Keys returns the attachments of a network that have a file, in no order.
func (s *Store) Keys(network string) ([]Key, error) {
	dir, err := openDir(int(s.dir.Fd()), network, s.path(network))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var keys []Key
	for _, name := range names {
		if key, ok := parseName(network, name); ok {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

func (s *Store) path(network string) string { return filepath.Join(s.dir.Name(), network) }

// openDir opens the directory name in dirfd, and refuses it unless it is ours
// alone. path is its name in errors.
func openDir(dirfd int, name, path string) (*os.File, error) {
	fd, err := openat(dirfd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	// ENOTDIR may also be said of something above it.
	var st unix.Stat_t
	if (err == unix.ENOTDIR || err == unix.ELOOP) && unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return nil, fmt.Errorf("%w: %s is a symbolic link or no directory; put a directory of root's with mode 0700 there", ErrUntrusted, path)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	d := os.NewFile(uintptr(fd), path)
	if _, err := trusted(d, "0700"); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// createDir is openDir for a directory that may have to be made. When it
// returns, the directory's name is durable: sync makes it so.
func createDir(dirfd int, name, path string, sync func() error) (*os.File, error) {
	d, err := openDir(dirfd, name, path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := unix.Mkdirat(dirfd, name, dirUnsynced); err != nil && err != unix.EEXIST {
			return nil, &fs.PathError{Op: "mkdir", Path: path, Err: err}
		}
		d, err = openDir(dirfd, name, path)
	}
	if err != nil {
		return nil, err
	}
	st, err := d.Stat()
	if err == nil && st.Mode().Perm()&0o200 == 0 {
		if err = sync(); err == nil {
			err = d.Chmod(dirMode)
		}
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("making the name of %s durable: %w", path, err)
	}
	return d, nil
}

// makeParents makes path and what is missing above it. Others may use these
// directories, so they get the usual mode.
func makeParents(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeParents(filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncPath(filepath.Dir(path))
}

func syncPath(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// trusted refuses what does not belong to us alone.
func trusted(f *os.File, want string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if uid := os.Geteuid(); int(st.Uid) != uid {
		return st, fmt.Errorf("%w: %s belongs to user %d, not to %d: look at what is in it, then chown it or choose another dataDir",
			ErrUntrusted, f.Name(), st.Uid, uid)
	}
	if st.Mode&0o077 != 0 {
		return st, fmt.Errorf("%w: %s has mode %04o, so others can reach it: look at what is in it, then run: chmod %s %s",
			ErrUntrusted, f.Name(), st.Mode&0o7777, want, f.Name())
	}
	return st, nil
}

// openat is openat(2) with close-on-exec, tried again after EINTR.
func openat(dirfd int, name string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dirfd, name, flags|unix.O_CLOEXEC, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}
