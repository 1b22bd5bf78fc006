package cnicache

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	resultsDir = "results"
	// temporary is the name in cacheDir of a file that is being written. The
	// lock of results says whose it is.
	temporary = ".durable-args.new"
)

// State is what libcni would find.
type State string

// The states of a file.
const (
	Missing  State = "missing"
	Damaged  State = "damaged"
	Readable State = "readable"
)

// File is an attachment's file as found.
type File struct {
	State State
	// Why says what is wrong with a file that is Damaged.
	Why error
	// Attachment is what a Readable file says. It may be another one's. If
	// Legacy, the file has nothing but the Result.
	Attachment *Attachment
	Legacy     bool
	// Modified is when the file was written; zero if it is Missing.
	Modified time.Time
}

// Foreign reports whether the file says that it is another attachment's.
func (f File) Foreign(id ID) bool {
	return f.State == Readable && !f.Legacy && f.Attachment.ID != id
}

// Read reads the attachment's file. That there is none, or that libcni could
// not read it, is no error but the File's State. What is no regular file is an
// error.
func Read(cacheDir string, id ID) (File, error) {
	results, err := openResults(cacheDir)
	if errors.Is(err, fs.ErrNotExist) {
		return File{State: Missing}, nil
	}
	if err != nil {
		return File{}, err
	}
	defer results.Close()
	return read(results, id)
}

// All calls visit for every file in the cache, in the order of their names; err
// is why a file could not be read at all. That there is no cache is no error.
func All(cacheDir string, visit func(path string, file File, err error)) error {
	results, err := openResults(cacheDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer results.Close()
	names, err := results.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		file, err := readName(results, name)
		visit(filepath.Join(results.Name(), name), file, err)
	}
	return nil
}

// Write gives the attachment's file the content that libcni would have given
// it, mode 0600, whatever there was before; what is missing of the directories
// above is made with mode 0700, as libcni does. When it returns nil, this is
// durable. After an error the file is as it was or, if the last flush failed,
// as it should be.
func Write(cacheDir string, a Attachment) error {
	if err := a.check(); err != nil {
		return err
	}
	data, err := a.Encode()
	if err != nil {
		return err
	}
	results, err := makeResults(cacheDir)
	if err != nil {
		return err
	}
	defer results.Close()
	if err := flock(results); err != nil {
		return err
	}
	// Ours alone now: what is there was left by a crash.
	tmp := filepath.Join(cacheDir, temporary)
	if err := remove(tmp); err != nil {
		return err
	}
	if err := writeDurably(tmp, data); err != nil {
		return errors.Join(err, remove(tmp))
	}
	if err := unix.Renameat(unix.AT_FDCWD, tmp, int(results.Fd()), a.Name()); err != nil {
		return errors.Join(&fs.PathError{Op: "rename", Path: a.Path(cacheDir), Err: err}, remove(tmp))
	}
	if err := results.Sync(); err != nil {
		return fmt.Errorf("making the name of %s durable: %w", a.Path(cacheDir), err)
	}
	return nil
}

// Remove removes the attachment's file, if there is one and it does not say
// that it is another attachment's.
func Remove(cacheDir string, id ID) error {
	results, err := openResults(cacheDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer results.Close()
	file, err := read(results, id)
	if err != nil || file.State == Missing || file.Foreign(id) {
		return err
	}
	if err := unix.Unlinkat(int(results.Fd()), id.Name(), 0); err != nil && err != unix.ENOENT {
		return &fs.PathError{Op: "remove", Path: id.Path(cacheDir), Err: err}
	}
	return nil
}

// Sweep removes the temporary file that a crash has left, if there is one.
func Sweep(cacheDir string) error {
	tmp := filepath.Join(cacheDir, temporary)
	if _, err := os.Lstat(tmp); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	results, err := openResults(cacheDir)
	if err == nil {
		defer results.Close()
		err = flock(results)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return remove(tmp)
}

// check refuses names that would lead elsewhere.
func (id ID) check() error {
	for _, part := range []string{id.Network, id.ContainerID, id.IfName} {
		if part == "" || strings.ContainsAny(part, "/\x00") {
			return fmt.Errorf("%q cannot be part of the name of a file in libcni's cache", part)
		}
	}
	return nil
}

func openResults(cacheDir string) (*os.File, error) {
	path := filepath.Join(cacheDir, resultsDir)
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link or no directory: look where it leads, then put a directory there: %w", path, err)
	}
	return f, err
}

// makeResults is openResults, but makes the directory if there is none.
func makeResults(cacheDir string) (*os.File, error) {
	results, err := openResults(cacheDir)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDir(filepath.Join(cacheDir, resultsDir)); err != nil {
			return nil, err
		}
		results, err = openResults(cacheDir)
	}
	return results, err
}

// makeDir makes a directory, what is missing above it, and their names durable.
func makeDir(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDir(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	parent, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Sync()
}

func read(results *os.File, id ID) (File, error) {
	if err := id.check(); err != nil {
		return File{}, err
	}
	return readName(results, id.Name())
}

func readName(results *os.File, name string) (File, error) {
	path := filepath.Join(results.Name(), name)
	f, err := openat(results, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return File{State: Missing}, nil
	case errors.Is(err, unix.ELOOP):
		return File{}, fmt.Errorf("%s is a symbolic link: look where it leads, then remove it", path)
	case err != nil:
		return File{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	if !st.Mode().IsRegular() {
		return File{}, fmt.Errorf("%s is no regular file: remove it", path)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return File{}, err
	}
	file := File{State: Readable, Modified: st.ModTime()}
	if file.Attachment, file.Legacy, err = decode(data); err != nil {
		return File{State: Damaged, Why: err, Modified: st.ModTime()}, nil
	}
	return file, nil
}

func openat(dir *os.File, name string) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	for {
		// A FIFO must not hold us.
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		switch err {
		case nil:
			return os.NewFile(uintptr(fd), path), nil
		case unix.EINTR:
		default:
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// writeDurably makes a new file.
func writeDurably(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// remove removes what may be missing, and follows no symbolic link.
func remove(path string) error {
	if err := unix.Unlink(path); err != nil && err != unix.ENOENT {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}

// flock takes an exclusive lock, which Close gives back. It is held for no
// longer than it takes to write one file.
func flock(f *os.File) error {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err {
		case nil:
			return nil
		case unix.EINTR:
		default:
			return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
	}
}
