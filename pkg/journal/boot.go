package journal

import (
	"fmt"
	"io"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

const bootFile = ".boot"

// OncePerBoot runs do, unless do has already returned nil in the boot named
// boot. If another process is running it at this moment, OncePerBoot does not
// wait, and returns nil. The error is do's, or says why it cannot be noted
// that do has been run; it then runs again at the next call.
//
// When there is nothing to do, the cost is that of reading one small file.
//
// The note is not made durable: after a crash the boot is another one anyway.
func (s *Store) OncePerBoot(boot string, do func() error) error {
	if s.noted(boot) {
		return nil
	}
	// The directory's own lock, as .boot cannot be made on a file system that
	// is read-only.
	fd := int(s.dir.Fd())
	switch err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
		defer func() { _ = unix.Flock(fd, unix.LOCK_UN) }()
	case unix.EWOULDBLOCK:
		return nil
	default:
		return &fs.PathError{Op: "lock", Path: s.dir.Name(), Err: err}
	}
	if s.noted(boot) {
		return nil
	}
	if err := do(); err != nil {
		return err
	}
	if err := s.note(boot); err != nil {
		return fmt.Errorf("noting the boot: %w", err)
	}
	return nil
}

func (s *Store) noted(boot string) bool {
	f, _, err := openFile(s.dir, bootFile, unix.O_RDONLY)
	if err != nil {
		return false
	}
	defer f.Close()
	noted, err := io.ReadAll(f)
	return err == nil && strings.TrimSpace(string(noted)) == boot
}

func (s *Store) note(boot string) error {
	f, _, err := openFile(s.dir, bootFile, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(0); err != nil {
		return err
	}
	return writeAll(f, []byte(boot+"\n"))
}
