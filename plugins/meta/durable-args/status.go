package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

// spare is how much must be free for an ADD to be journaled: more than the
// largest entry that a runtime is likely to cause.
const spare = 1 << 20

// status answers whether an ADD could be journaled now. It is polled every few
// seconds, and writes nothing.
func (p plugin) status(args *skel.CmdArgs) error {
	s, err := stanza.Parse(args.StdinData)
	if err != nil {
		return err
	}
	if s.Layout() == stanza.Last {
		return nil // the first stanza answers for both
	}
	n, err := s.Network()
	if err == nil {
		err = n.Covered()
	}
	if err == nil {
		err = ready(s)
	}
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "not ready: "+err.Error(), "")
	}
	if s.Layout() == stanza.Wrapped {
		call, err := call(s, args)
		if err != nil {
			return err
		}
		return chainError(p.runner().Status(context.Background(), n.Protected, call))
	}
	return nil
}

// ready returns an error unless dataDir can take an entry that survives a reboot.
func ready(s *stanza.Stanza) error {
	dir := s.DataDir
	store, err := journal.Open(dir)
	switch {
	case err == nil:
		defer store.Close()
		err = store.Check(s.Name)
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
	case !s.AllowVolatile && volatile(dir, &st):
		return fmt.Errorf("dataDir %s is on a file system in memory, which a reboot empties; choose a dataDir on a disk", s.DataDir)
	}
	if err != nil {
		if hint := remedy(err); hint != "" {
			return fmt.Errorf("dataDir %s: %w; %s", s.DataDir, err, hint)
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
