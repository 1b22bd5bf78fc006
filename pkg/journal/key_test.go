package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("c", 300)
	for _, row := range []struct {
		name string
		key  Key
		ok   bool
	}{
		{"what containerd sends", Key{"k8s-pod-network", strings.Repeat("0a", 32), "eth0"}, true},
		{"an interface name may have an '@'", Key{"web", "c1", "a@b"}, true},
		{"an interface name may begin with an '@'", Key{"web", "c1", "@"}, true},
		{"an interface name may have any byte", Key{"web", "c1", "\xff\x01"}, true},
		{"an interface name may begin with a dot", Key{"web", "c1", ".new"}, true},
		{"dots inside are harmless", Key{"a..b", "c..", "..."}, true},
		{"the longest container ID that fits", Key{"web", long[:250], "eth0"}, true},
		{"the longest network name", Key{long[:255], "c1", "eth0"}, true},

		{"one byte too many in the container ID", Key{"web", long[:251], "eth0"}, false},
		{"one byte too many in the interface name", Key{"web", long[:250], "eth10"}, false},
		{"one byte too many in the network name", Key{long[:256], "c1", "eth0"}, false},
		{"an interface name longer than the kernel's", Key{"web", "c1", long[:16]}, false},
		{"no network", Key{"", "c1", "eth0"}, false},
		{"no container", Key{"web", "", "eth0"}, false},
		{"no interface", Key{"web", "c1", ""}, false},
		{"a container ID with an '@' would have two readings", Key{"web", "c1@x", "eth0"}, false},
		{"the network would leave the store", Key{"..", "c1", "eth0"}, false},
		{"the network would be the store", Key{".", "c1", "eth0"}, false},
		{"the network would be .corrupt", Key{".corrupt", "c1", "eth0"}, false},
		{"the network would be a path", Key{"a/b", "c1", "eth0"}, false},
		{"the network would be an absolute path", Key{"/etc", "c1", "eth0"}, false},
		{"the container ID would leave the network", Key{"web", "../other/c1", "eth0"}, false},
		{"the container ID would be .new", Key{"web", ".new", "eth0"}, false},
		{"the interface name would leave the network", Key{"web", "c1", "/../x"}, false},
		{"an interface that is a directory", Key{"web", "c1", ".."}, false},
		{"a line feed behind the network", Key{"web\n", "c1", "eth0"}, false},
		{"a line feed behind the container ID", Key{"web", "c1\n", "eth0"}, false},
		{"a line feed in the interface name", Key{"web", "c1", "eth0\n"}, false},
		{"a NUL in the container ID", Key{"web", "c1\x00", "eth0"}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			err := row.key.Validate()
			if row.ok != (err == nil) || !row.ok && !errors.Is(err, ErrInvalidKey) {
				t.Fatalf("Validate(%q) = %v, want ok %v", row.key, err, row.ok)
			}
			got, ok := parseName(row.key.Network, row.key.name())
			if row.ok && (!ok || got != row.key) {
				t.Errorf("%q is read back as %q, %v", row.key, got, ok)
			}
			// What is refused must not get as far as the file system.
			dir := t.TempDir()
			store, err := Create(filepath.Join(dir, "data"))
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if err := store.Append(row.key, Attempt{}); row.ok != (err == nil) {
				t.Errorf("Append: %v, want ok %v", err, row.ok)
			}
			if f, err := store.Lock(row.key); err == nil {
				f.Close()
			} else if row.ok || !errors.Is(err, ErrInvalidKey) {
				t.Errorf("Lock: %v, want ok %v", err, row.ok)
			}
			files := files(t, dir)
			if row.ok && (len(files) != 1 || files[0] != filepath.Join("data", row.key.String())) || !row.ok && files != nil {
				t.Errorf("there are now %q", files)
			}
		})
	}
}

func TestFilesThatAreNoAttachments(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", ".new", "c1", "c1@", "@eth0", ".c1@eth0", "c1@..", "c1@a:b", "c1@" + strings.Repeat("e", 16), "c 1@eth0"} {
		if key, ok := parseName("web", name); ok {
			t.Errorf("the file name %q is read as %q", name, key)
		}
	}
}

// files returns the files below dir, nil if there are none.
func files(t testing.TB, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			path, err = filepath.Rel(dir, path)
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
