package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// spare is how many bytes must be free for an ADD to be journaled: more than
// the largest entry that a runtime is likely to cause.
const spare = 1 << 20

// Ready returns nil if an ADD to network could be journaled in dataDir now, and
// would survive a reboot. It writes nothing. Else the error says why not, and
// what to do; it wraps [ErrVolatile], [ErrUntrusted] or the error of a system
// call.
func Ready(dataDir, network string, allowVolatile bool) error {
	dir := dataDir
	store, err := Open(dir)
	switch {
	case err == nil:
		defer store.Close()
		err = store.check(network)
	case errors.Is(err, fs.ErrNotExist):
		// The first ADD makes it: what counts is where.
		for err = fs.ErrNotExist; errors.Is(err, fs.ErrNotExist); _, err = os.Stat(dir) {
			dir = filepath.Dir(dir)
		}
	}
	if err == nil {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
	}
	var st unix.Statfs_t
	if err == nil {
		err = unix.Statfs(dir, &st)
	}
	switch {
	case err != nil:
	case st.Bfree*uint64(st.Bsize) < spare, st.Files > 0 && st.Ffree == 0: // btrfs counts no inodes
		err = unix.ENOSPC
	case !allowVolatile && volatile(dir, &st):
		return fmt.Errorf("dataDir %s is %w; choose a dataDir on a disk", dataDir, ErrVolatile)
	}
	if err != nil {
		if hint := Remedy(err); hint != "" {
			return fmt.Errorf("dataDir %s: %w; %s", dataDir, err, hint)
		}
		return err
	}
	return nil
}

// volatile reports whether the file system of dir is lost with a reboot: one in
// memory, or an overlay whose upper layer is.
func volatile(dir string, st *unix.Statfs_t) bool {
	switch st.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC:
		return true
	case unix.OVERLAYFS_SUPER_MAGIC:
		var upper unix.Statfs_t
		path := upperDir(dir)
		// A container's upper layer is out of its sight: no reason to refuse.
		return path != "" && path != dir && unix.Statfs(path, &upper) == nil && upper.Type != st.Type && volatile(path, &upper)
	}
	return false
}

// upperDir returns the upper layer of the overlay that dir is on.
func upperDir(dir string) string {
	var st unix.Stat_t
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil || unix.Stat(dir, &st) != nil {
		return ""
	}
	defer f.Close()
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[2] != device {
			continue
		}
		for _, option := range strings.Split(fields[len(fields)-1], ",") {
			if path, ok := strings.CutPrefix(option, "upperdir="); ok {
				return path
			}
		}
	}
	return ""
}

// Remedy says what an operator can do about an error of this package, empty if
// the error says so itself.
func Remedy(err error) string {
	switch {
	case errors.Is(err, ErrUntrusted):
		return ""
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "free space or inodes on that file system, or choose another dataDir"
	case errors.Is(err, unix.EROFS):
		return "mount that file system writable again, or choose another dataDir"
	case errors.Is(err, fs.ErrPermission):
		return "let root write there, or choose another dataDir"
	case errors.Is(err, unix.ENOTDIR):
		return "choose a dataDir whose parents are directories"
	default:
		return "look at that file system and at the kernel's log, or choose another dataDir"
	}
}
