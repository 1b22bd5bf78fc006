package main

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMountsThatGetThoseOfOthersAreKnown(t *testing.T) {
	t.Parallel()
	const mountinfo = `21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:20 / /proc rw shared:5 - proc proc rw
23 21 0:21 / /run rw master:7 - tmpfs tmpfs rw
24 23 0:21 / /run/shared:1 rw,master:2 - tmpfs shared:3 rw
25 23 0:22 / /run/unseen rw unbindable - tmpfs tmpfs rw
26 23 0:23 / /run/both rw shared:8 master:7 propagate_from:2 - tmpfs tmpfs rw

27
`
	if got := slices.Sorted(maps.Keys(propagated(mountinfo))); !slices.Equal(got, []uint64{22, 23, 26}) {
		t.Errorf("propagated are %d", got)
	}
}

func TestANamespaceMayBeThereThoughItIsNotSeen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	get := func(path string) map[uint64]bool {
		id, err := mountOf(path)
		if err != nil || id == 0 {
			t.Skipf("this kernel does not tell the mount of %s (error %v); the end-to-end tests of the agent cover it on one that does", path, err)
		}
		return map[uint64]bool{id: true}
	}
	for name, c := range map[string]struct {
		sight sight
		dir   string
		want  string // in the error, or empty
	}{
		"on the node":                          {sight{node: true}, dir, ""},
		"on the node, directory missing":       {sight{node: true}, missing, ""},
		"mounts of the node stay out":          {sight{}, dir, "does not see what the node mounts in " + dir},
		"they stay out of its root":            {sight{hostRoot: true}, dir, "does not see what the node mounts in " + dir},
		"they reach the image":                 {sight{propagated: get("/")}, "/", "the container's own"},
		"they reach the node's root":           {sight{propagated: get("/"), hostRoot: true}, "/", ""},
		"they reach a mount":                   {sight{propagated: get("/proc")}, "/proc", ""},
		"directory missing":                    {sight{initial: true}, missing, "is not in this container"},
		"directory missing in the node's root": {sight{hostRoot: true}, missing, "is not in this container"},
		"a process of the node":                {sight{initial: true}, "/proc/1/ns", ""},
		"a process of the node's root":         {sight{hostRoot: true}, "/proc/1/ns", ""},
		"a process, in a container":            {sight{}, "/proc/1/ns", "hostPID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.sight.dir(c.dir)
			if c.want == "" && err != nil || c.want != "" && (!errors.As(err, new(*hiddenError)) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestOnesOwnMountsAreOnesOwn(t *testing.T) {
	t.Parallel()
	if !sameMounts("/proc/self", "/proc/thread-self") {
		t.Error("this process is taken for one with other mounts")
	}
	if sameMounts("/proc/self", filepath.Join(t.TempDir(), "no-process")) {
		t.Error("a process that is not seen is taken for one with the same mounts")
	}
}

func TestReplayLeavesAloneWhatItMayNotSee(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"replay", "--stale"}, {"replay", "c1"}, {"replay", "--stale", "--dry-run"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			n := replayNode(t, "c1")
			booted := n.goneAdd()
			booted.NetNS.BootID = "an earlier boot"
			n.journal(web("c2"), booted)
			n.look = func(bool) (*sight, error) {
				s, err := look(false)
				if err == nil {
					s.initial, s.node, s.propagated = false, false, nil
				}
				return s, err
			}
			_, stderr, err := n.ctl(args...)
			if !errors.Is(err, errFinding) || !strings.Contains(stderr, "left alone") || !strings.Contains(stderr, "/run/netns") {
				t.Errorf("error %v, stderr %q", err, stderr)
			}
			want := map[string]string{"replay --stale": "c1", "replay c1": "c1 c2", "replay --stale --dry-run": "c1 c2"}[strings.Join(args, " ")]
			if got := n.left(); got != want {
				t.Errorf("left %q, want %q", got, want)
			}
			if slices.ContainsFunc(n.calls(), func(call string) bool { return strings.Contains(call, " c1 ") }) {
				t.Errorf("called %q", n.calls())
			}
		})
	}
}

func TestForceReplaysWhatIsOutOfSight(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1")
	n.look = func(bool) (*sight, error) { return nil, os.ErrPermission }
	if _, _, err := n.ctl("replay", "c1"); !errors.Is(err, os.ErrPermission) || n.left() != "c1" {
		t.Errorf("error %v, left %q", err, n.left())
	}
	if _, stderr, err := n.ctl("replay", "c1", "--force"); err != nil || n.left() != "" {
		t.Errorf("error %v, stderr %q, left %q", err, stderr, n.left())
	}
}
