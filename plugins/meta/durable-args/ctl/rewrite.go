package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rewrite edits a file. A process that dies at any moment leaves the old file or
// the new one, with its owner and mode; one that fails leaves no other file
// behind, and one that was killed a file that the next run removes.
//
// edited is given the file's text and returns the new one, nil if there is
// nothing to write.
func rewrite(path string, edited func(text []byte) ([]byte, error)) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	// What is written is derived from what is read, so one at a time.
	if err := lockDir(dir); err != nil {
		return err
	}
	// No runtime takes a file for a configuration whose name ends like this.
	temporary := filepath.Join(dir.Name(), "."+filepath.Base(path)+".durable-argsctl")
	// What a killed run has left. If it cannot be removed, making it again fails.
	_ = os.Remove(temporary)

	old, info, err := readRegular(path)
	if err != nil {
		return err
	}
	text, err := edited(old)
	if err != nil || text == nil {
		return err
	}

	err = writeAs(info, temporary, text)
	if err == nil {
		if now, _, readErr := readRegular(path); readErr != nil || !bytes.Equal(old, now) {
			err = errors.Join(errors.New("something else has changed it in this moment; try again"), readErr)
		}
	}
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary)
		return err
	}
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("it is written, but after a crash it may be the old one again: %w", err)
	}
	return nil
}

// writeAs makes a file with another's owner and mode, and its text durable: else
// a name that it is given may become so first.
func writeAs(other fs.FileInfo, path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	stat := other.Sys().(*syscall.Stat_t)
	if err := f.Chown(int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	if err := f.Chmod(other.Mode()); err != nil {
		return err
	}
	return f.Sync()
}

// lockPatience is how long to wait for others, who need a moment only.
const lockPatience = 5 * time.Second

// lockDir keeps others from rewriting a file in dir until it is closed.
func lockDir(dir *os.File) error {
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			return fmt.Errorf("locking %s: %w", dir.Name(), err)
		case time.Now().After(deadline):
			return fmt.Errorf("another durable-argsctl is at work in %s; try again", dir.Name())
		}
	}
}

// readRegular reads a file that is neither a directory nor a device.
func readRegular(path string) ([]byte, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is no regular file", path)
	}
	text, err := os.ReadFile(path)
	return text, info, err
}
