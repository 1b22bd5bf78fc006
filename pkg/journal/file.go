package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// LockTimeout is how long to wait for another process that holds an attachment.
const LockTimeout = 30 * time.Second

// File is an attachment's file, held against every other process.
type File struct {
	key    Key
	dir, f *os.File
	record Record
	// readOnly is set on a read-only file system, where f is, too.
	readOnly bool
}

// Record returns what the file says, with what has been appended by way of f.
func (f *File) Record() Record { return f.record }

// Path returns the file's name.
func (f *File) Path() string { return f.f.Name() }

// Append adds e. What holds of [Store.Append] holds here.
func (f *File) Append(e Entry) error {
	if f.readOnly {
		return &fs.PathError{Op: "write", Path: f.Path(), Err: unix.EROFS}
	}
	b, err := encode(e, time.Now().UTC())
	if err != nil {
		return err
	}
	if durable(e) {
		if err := syncName(f.dir, f.f); err != nil {
			return err
		}
	}
	if err := appendLine(f.f, b, durable(e)); err != nil {
		return err
	}
	return f.read()
}

// Remove removes the file. It is not made durable; see the package comment.
func (f *File) Remove() error {
	if err := unix.Unlinkat(int(f.dir.Fd()), f.key.name(), 0); err != nil {
		return &fs.PathError{Op: "remove", Path: f.Path(), Err: err}
	}
	return nil
}

// SetAside moves the file to .corrupt in the store and returns its new name.
func (f *File) SetAside() (string, error) {
	corrupt := filepath.Join("..", corruptDir)
	event := filepath.Join(corrupt, time.Now().UTC().Format("20060102T150405.000000000Z")+"@"+f.key.Network)
	path := filepath.Join(f.dir.Name(), event, f.key.name())
	dir := int(f.dir.Fd())
	for _, d := range []string{corrupt, event} {
		if err := unix.Mkdirat(dir, d, dirMode); err != nil && err != unix.EEXIST {
			return "", &fs.PathError{Op: "mkdir", Path: filepath.Join(f.dir.Name(), d), Err: err}
		}
	}
	if err := unix.Renameat(dir, f.key.name(), dir, filepath.Join(event, f.key.name())); err != nil {
		return "", &fs.PathError{Op: "rename", Path: path, Err: err}
	}
	return path, nil
}

// Close gives the attachment free.
func (f *File) Close() error { return errors.Join(f.f.Close(), f.dir.Close()) }

func (f *File) read() (err error) {
	f.record, err = readRecord(f.key, f.f)
	return err
}

func readRecord(key Key, f *os.File) (Record, error) {
	st, err := f.Stat()
	if err != nil {
		return Record{}, err
	}
	var data bytes.Buffer
	data.Grow(int(st.Size()) + bytes.MinRead)
	_, err = data.ReadFrom(io.NewSectionReader(f, 0, 1<<62))
	return decode(key, data.Bytes()), err
}

// lock opens the file name in dir, waits for its lock, and makes sure that the
// name still means the file that was locked.
func lock(dir *os.File, name string, flags int, deadline time.Time) (*os.File, error) {
	for {
		f, st, err := openFile(dir, name, flags)
		if err != nil {
			return nil, err
		}
		if err := flock(f, deadline); err != nil {
			f.Close()
			return nil, err
		}
		var now unix.Stat_t
		err = unix.Fstatat(int(dir.Fd()), name, &now, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && now.Dev == st.Dev && now.Ino == st.Ino {
			return f, nil
		}
		f.Close()
		if err != nil && err != unix.ENOENT {
			return nil, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
		}
	}
}

// openFile opens the file name in dir, and refuses it unless it is ours alone.
func openFile(dir *os.File, name string, flags int) (*os.File, unix.Stat_t, error) {
	path := filepath.Join(dir.Name(), name)
	fd, err := openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK, fileMode)
	if err == unix.ELOOP {
		return nil, unix.Stat_t{}, fmt.Errorf("%w: %s is a symbolic link: look where it leads, then remove it", ErrUntrusted, path)
	}
	if err != nil {
		return nil, unix.Stat_t{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	st, err := trusted(f, "0600")
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("%w: %s is no regular file: remove it", ErrUntrusted, path)
	}
	if err != nil {
		f.Close()
		return nil, st, err
	}
	return f, st, nil
}

// flock takes an exclusive lock. A dead process holds none: the kernel gives
// it back with the last descriptor.
func flock(f *os.File, deadline time.Time) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case err == unix.EINTR:
		case err != unix.EWOULDBLOCK:
			return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		case time.Now().After(deadline):
			return fmt.Errorf("%w: %s: waited %s", ErrLocked, f.Name(), LockTimeout)
		default:
			time.Sleep(wait)
		}
	}
}

// create makes the file name in dir with the line b, durable. The error wraps
// [fs.ErrExist] if there is one already.
func create(dir *os.File, name string, b []byte, deadline time.Time) error {
	path := filepath.Join(dir.Name(), name)
	fd, err := openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_WRONLY, fileUnsynced)
	if err == unix.EOPNOTSUPP || err == unix.EISDIR {
		return createByRename(dir, name, b, deadline)
	}
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	// Locked before it has a name: nobody acts on it until it is durable.
	if err := flock(f, deadline); err != nil {
		return err
	}
	if err := writeAll(f, b); err != nil {
		return err
	}
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), int(dir.Fd()), name, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return &fs.PathError{Op: "link", Path: path, Err: err}
	}
	if err = datasync(f); err == nil {
		err = syncName(dir, f)
	}
	if err != nil {
		return takeBack(err, unix.Unlinkat(int(dir.Fd()), name, 0))
	}
	return nil
}

// createByRename is create for file systems without O_TMPFILE. Whoever holds
// the lock of .new is the only one who can make a name in dir.
func createByRename(dir *os.File, name string, b []byte, deadline time.Time) error {
	f, err := lock(dir, newFile, unix.O_RDWR|unix.O_CREAT, deadline)
	if err != nil {
		return err
	}
	defer f.Close()
	path := filepath.Join(dir.Name(), name)
	var st unix.Stat_t
	switch err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err {
	case unix.ENOENT:
	case nil:
		return &fs.PathError{Op: "create", Path: path, Err: unix.EEXIST}
	default:
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if err := errors.Join(f.Truncate(0), f.Chmod(fileUnsynced)); err != nil {
		return err
	}
	if err = writeAll(f, b); err == nil {
		err = datasync(f)
	}
	if err == nil {
		if err = unix.Renameat(int(dir.Fd()), newFile, int(dir.Fd()), name); err != nil {
			err = &fs.PathError{Op: "rename", Path: path, Err: err}
		}
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(int(dir.Fd()), newFile, 0))
	}
	if err := syncName(dir, f); err != nil {
		return takeBack(err, unix.Unlinkat(int(dir.Fd()), name, 0))
	}
	return nil
}

// syncName makes the name of f in dir durable, unless its mode says that it is.
func syncName(dir, f *os.File) error {
	st, err := f.Stat()
	if err != nil || st.Mode().Perm() != fileUnsynced {
		return err
	}
	if err := dir.Sync(); err != nil {
		return err
	}
	return f.Chmod(fileMode)
}

// appendLine adds the line b to f, on a line of its own even if what stands
// before it was torn. If it fails, the line is cut off again.
func appendLine(f *os.File, b []byte, durable bool) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	size := st.Size()
	if size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			b = append([]byte("\n"), b...)
		}
	}
	if _, err := f.Seek(size, io.SeekStart); err != nil {
		return err
	}
	if err = writeAll(f, b); err == nil && durable {
		err = datasync(f)
	}
	if err != nil {
		return takeBack(err, f.Truncate(size))
	}
	return nil
}

// writeAll writes b with one write call; a short one is an error.
func writeAll(f *os.File, b []byte) error {
	for {
		n, err := unix.Write(int(f.Fd()), b)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return &fs.PathError{Op: "write", Path: f.Name(), Err: err}
		case n < len(b):
			return &fs.PathError{Op: "write", Path: f.Name(), Err: unix.ENOSPC}
		}
		return nil
	}
}

func datasync(f *os.File) error {
	if err := unix.Fdatasync(int(f.Fd())); err != nil {
		return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}

// takeBack adds to err that what failed is still in the journal, if it is.
func takeBack(err, undo error) error {
	if undo != nil {
		return fmt.Errorf("%w; the entry could not be taken back either, and may be found by a later DEL: %w", err, undo)
	}
	return err
}
