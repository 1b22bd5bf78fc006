package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// rewrite edits a file. A process that dies at any moment leaves the old file or
// the new one, with its owner and mode; one that fails leaves no other file
// behind, and one that was killed a file that the next run removes.
//
// edited is given the file's text and returns the new one, nil if there is
// nothing to write.
func rewrite(path string, edited func(text []byte) ([]byte, error)) (err error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	// What is written is derived from what is read, so one at a time.
	switch err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("another durable-argsctl is at work in %s; try again", dir.Name())
	case err != nil:
		return fmt.Errorf("locking %s: %w", dir.Name(), err)
	}
	// No runtime takes a file for a configuration whose name ends like this.
	temporary := filepath.Join(dir.Name(), "."+filepath.Base(path)+".durable-argsctl")
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing what a killed run has left behind: %w", err)
	}

	old, info, err := readRegular(path)
	if err != nil {
		return err
	}
	text, err := edited(old)
	if err != nil || text == nil {
		return err
	}

	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if f != nil {
			f.Close()
			os.Remove(temporary)
		}
	}()
	if _, err := f.Write(text); err != nil {
		return err
	}
	stat := info.Sys().(*syscall.Stat_t)
	if err := f.Chown(int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	if err := f.Chmod(info.Mode()); err != nil {
		return err
	}
	// Else the new name may be durable before the text is.
	if err := f.Sync(); err != nil {
		return err
	}
	if now, _, err := readRegular(path); err != nil || !bytes.Equal(old, now) {
		return errors.Join(errors.New("something else has changed it in this moment; try again"), err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	f.Close()
	f = nil
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("it is written, but after a crash it may be the old one again: %w", err)
	}
	return nil
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
