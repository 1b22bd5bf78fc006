package journal

import (
	"os"
	"path/filepath"
	"testing"
)

// A process dies after it has given a file its name, and before that name is
// durable. Whoever appends to the file next acknowledges an entry in it, so it
// has to make the name durable first. The mode tells.
func TestTheNameOfAFileThatADeadProcessHasLeftIsMadeDurable(t *testing.T) {
	t.Parallel()
	key := Key{"web", "c1", "eth0"}
	for name, appended := range map[string]func(s *Store) error{
		"by an ADD": func(s *Store) error { return s.Append(key, Add{}) },
		"by a result": func(s *Store) error {
			f, err := s.Lock(key)
			if err != nil {
				return err
			}
			defer f.Close()
			return f.Append(Result(`{}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "journal")
			s, err := Create(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if err := s.Append(key, Add{}); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, key.String())
			mode := func() os.FileMode {
				st, err := os.Stat(file)
				if err != nil {
					t.Fatal(err)
				}
				return st.Mode().Perm()
			}
			if mode() != fileMode {
				t.Fatalf("once its name is durable, the file has mode %o", mode())
			}
			if err := os.Chmod(file, fileUnsynced); err != nil {
				t.Fatal(err)
			}
			if err := appended(s); err != nil {
				t.Fatal(err)
			}
			if mode() != fileMode {
				t.Errorf("after the append it has mode %o", mode())
			}
		})
	}
}
