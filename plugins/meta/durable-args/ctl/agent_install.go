package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// readExecutable reads a program.
func readExecutable(path string) ([]byte, error) {
	text, info, err := readRegular(path)
	if err == nil && (info.Mode()&0o111 == 0 || !bytes.HasPrefix(text, []byte("\x7fELF"))) {
		err = fmt.Errorf("%s is no executable; say with --plugin where durable-args is", path)
	}
	return text, err
}

// installFile writes an executable, and reports whether the one at target was
// another. Whoever runs target meanwhile finds the old one or the new one; what
// a killed run has left beside it is removed.
func installFile(text []byte, target string) (bool, error) {
	dir, err := os.Open(filepath.Dir(target))
	if err != nil {
		return false, fmt.Errorf("%w; say with --bin-dir where runtimes look for plugins, or mount it", err)
	}
	defer dir.Close()
	if err := lockDir(dir); err != nil {
		return false, err
	}
	temporary := filepath.Join(dir.Name(), "."+filepath.Base(target)+".durable-argsctl")
	_ = os.Remove(temporary)

	if old, info, err := readRegular(target); err == nil && bytes.Equal(old, text) && info.Mode().Perm() == 0o755 {
		return false, nil
	}
	err = writeExecutable(temporary, text)
	if err == nil {
		err = os.Rename(temporary, target)
	}
	if err != nil {
		_ = os.Remove(temporary)
		return false, err
	}
	return true, dir.Sync()
}

func writeExecutable(path string, text []byte) error {
	// A child forked now would hold the file open for writing until it has
	// executed its program, and nobody could run the plugin (ETXTBSY).
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(0o755) // whatever the umask
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
