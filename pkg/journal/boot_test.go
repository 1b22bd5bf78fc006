package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOncePerBoot(t *testing.T) {
	t.Parallel()
	store, dir := newStore(t)
	failure := errors.New("the disk is full")
	for _, step := range []struct {
		what, boot string
		fails      error
		runs       bool
	}{
		{"the first call", "a", nil, true},
		{"the second call", "a", nil, false},
		{"the first call after a boot, which fails", "b", failure, true},
		{"the next one, which does not", "b", nil, true},
		{"the one after that", "b", nil, false},
	} {
		ran := false
		err := store.OncePerBoot(step.boot, func() error {
			ran = true
			return step.fails
		})
		if ran != step.runs || !errors.Is(err, step.fails) {
			t.Errorf("%s: ran %v, error %v", step.what, ran, err)
		}
	}
	// What has been written is as private as the rest, and nobody's attachment.
	if m := mode(t, filepath.Join(dir, bootFile)); m != fileMode {
		t.Errorf("%s has mode %v", bootFile, m)
	}
	if networks, err := store.Networks(); err != nil || len(networks) > 0 {
		t.Errorf("Networks = %v, %v", networks, err)
	}
}

func TestOncePerBootDoesNotWait(t *testing.T) {
	t.Parallel()
	store, dir := newStore(t)
	other, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	never := func() error {
		t.Error("two run at once")
		return nil
	}
	err = store.OncePerBoot("a", func() error { return other.OncePerBoot("a", never) })
	if err != nil {
		t.Error(err)
	}
	if err := other.OncePerBoot("a", never); err != nil {
		t.Error(err)
	}
}

func TestANoteThatCannotBeTaken(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(path string) error{
		"torn":            func(path string) error { return os.WriteFile(path, []byte("0b7a"), 0o600) },
		"empty":           func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"others can read": func(path string) error { return os.WriteFile(path, []byte("a\n"), 0o644) },
		"a symbolic link": func(path string) error { return os.Symlink("elsewhere", path) },
		"a FIFO":          func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		store, dir := newStore(t)
		path := filepath.Join(dir, bootFile)
		if err := spoil(path); err != nil {
			t.Fatal(err)
		}
		ran := false
		err := store.OncePerBoot("a", func() error {
			ran = true
			return nil
		})
		if !ran {
			t.Errorf("%s: it does not run", name)
		}
		if readable := name == "torn" || name == "empty"; readable != (err == nil) {
			t.Errorf("%s: %v", name, err)
		} else if err != nil && !strings.Contains(err.Error(), "noting the boot: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	store, dir := newStore(t)
	mustAppend(t, store, testKey, Add{})
	for _, name := range []string{corruptDir, "not a network"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a-file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // reading it twice gives the same
		networks, err := store.Networks()
		if err != nil || len(networks) != 1 || networks[0] != testKey.Network {
			t.Errorf("Networks = %q, %v", networks, err)
		}
	}
}

func TestTryLock(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t)
	mustAppend(t, store, testKey, Add{})
	held := mustLock(t, store, testKey)
	if f, err := store.TryLock(testKey); !errors.Is(err, ErrLocked) {
		t.Errorf("TryLock of what is held: %v, %v", f, err)
	}
	held.Close()
	f, err := store.TryLock(testKey)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
