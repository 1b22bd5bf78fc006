package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/netnsid"
)

// sight tells a network namespace that is gone from one that is only hidden: in
// a container, the mounts and processes of the node may be out of sight.
type sight struct {
	// hostRoot says that the root is the node's, as it was given by the operator.
	hostRoot bool
	// initial says that this process counts PIDs as the kernel does.
	initial bool
	// node says that it also has the root and the mounts of the kernel's PID 1.
	node bool
	// propagated has the IDs of the mounts that get the mounts which others make.
	propagated map[uint64]bool
	bootID     string
	// seen has the verdict on each directory.
	seen map[string]error
}

// The inode of the first PID namespace, by the kernel's PROC_PID_INIT_INO.
const initialPIDNamespace = 0xEFFFFFFC

func look(hostRoot bool) (*sight, error) {
	s := &sight{hostRoot: hostRoot, seen: make(map[string]error)}
	var err error
	if s.bootID, err = netnsid.BootID(); err != nil {
		return nil, err
	}
	mountinfo, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	s.propagated = propagated(string(mountinfo))
	var pid unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &pid); err != nil {
		return nil, err
	}
	s.initial = pid.Ino == initialPIDNamespace
	s.node = s.initial && sameMounts("/proc/self", "/proc/1")
	return s, nil
}

// sameMounts reports whether two processes have one root in one mount namespace.
// Who may not ask is in a container.
func sameMounts(a, b string) bool {
	for _, link := range []string{"/ns/mnt", "/root"} {
		one, err := os.Stat(a + link)
		other, otherErr := os.Stat(b + link)
		if err != nil || otherErr != nil || !os.SameFile(one, other) {
			return false
		}
	}
	one, err := mountOf(a + "/root")
	other, otherErr := mountOf(b + "/root")
	return err == nil && otherErr == nil && one == other
}

// mountOf returns the ID of the mount that path is on, or 0 if the kernel is too
// old to tell (before Linux 5.8).
func mountOf(path string) (uint64, error) {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &stat); err != nil {
		return 0, err
	}
	if stat.Mask&unix.STATX_MNT_ID == 0 {
		return 0, nil
	}
	return stat.Mnt_id, nil
}

// propagated returns the IDs of the mounts that are shared or slaves: proc(5),
// /proc/pid/mountinfo.
func propagated(mountinfo string) map[uint64]bool {
	ids := make(map[uint64]bool)
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		for i := 6; i < len(fields) && fields[i] != "-"; i++ {
			id, err := strconv.ParseUint(fields[0], 10, 64)
			tag, _, _ := strings.Cut(fields[i], ":")
			if err == nil && (tag == "shared" || tag == "master") {
				ids[id] = true
			}
		}
	}
	return ids
}

// hiddenError says why a network namespace that is not seen may be there.
type hiddenError struct{ text string }

func (e *hiddenError) Error() string { return e.text }

func hidden(format string, args ...any) error { return &hiddenError{fmt.Sprintf(format, args...)} }

// of returns a *hiddenError if a namespace of rec that is not seen may be there all
// the same. Those of an earlier boot are not.
func (s *sight) of(rec journal.Record) error {
	for _, add := range rec.Adds {
		if add.NetNS.BootID != s.bootID || add.NetNS.Path == "" {
			continue
		}
		dir := filepath.Dir(add.NetNS.Path)
		if _, ok := s.seen[dir]; !ok {
			s.seen[dir] = s.dir(dir)
		}
		if err := s.seen[dir]; err != nil {
			return err
		}
	}
	return nil
}

func (s *sight) dir(dir string) error {
	if strings.HasPrefix(dir, "/proc/") {
		if s.hostRoot || s.initial {
			return nil
		}
		return hidden("its network namespace is that of a process (%s), and not all processes of the node are seen from here; give the container the node's PID namespace (hostPID), or run this on the node", dir)
	}
	if s.node {
		return nil
	}
	const mend = "mount the node's root with mountPropagation HostToContainer (rslave) and name it with --host-root, or run this on the node"
	mount, err := mountOf(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Runtimes make it once, and leave it there until the next boot.
		return hidden("%s, where its network namespace was made, is not in this container; %s", dir, mend)
	case err != nil:
		return hidden("%s: %v", dir, err)
	case mount == 0:
		return hidden("before Linux 5.8 a container cannot tell whether it sees what the node mounts in %s; run this on the node", dir)
	case !s.propagated[mount]:
		return hidden("this container does not see what the node mounts in %s; %s", dir, mend)
	}
	// In a container the root is the image, even where it gets the node's mounts.
	if root, err := mountOf("/"); !s.hostRoot && (err != nil || root == mount) {
		return hidden("%s is the container's own and not the node's; %s", dir, mend)
	}
	return nil
}
