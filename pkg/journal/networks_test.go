package journal

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestNetworksAreTheDirectoriesThatCanBeOne(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "journal")
	store, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, network := range []string{"web", "db"} {
		if err := store.Append(Key{network, "c1", "eth0"}, testAdd()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, corruptDir), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second call reads from the start again
		networks, err := store.Networks()
		if err != nil || !slices.Equal(networks, []string{"db", "web"}) {
			t.Errorf("networks %q, error %v", networks, err)
		}
	}
}

func TestTryLockDoesNotWait(t *testing.T) {
	t.Parallel()
	store, err := Create(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := store.Append(testKey, testAdd()); err != nil {
		t.Fatal(err)
	}
	f, err := store.Lock(testKey)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := store.TryLock(testKey); !errors.Is(err, ErrLocked) {
		t.Errorf("error %v, want ErrLocked", err)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("took %s", took)
	}
	f.Close()
	f, err = store.TryLock(testKey)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
