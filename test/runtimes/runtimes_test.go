// Package runtimes drives the plugin through container runtimes instead of
// cnitool: containerd 1.6 (Debian's), containerd 2.4 and podman 4.3 with CNI,
// each on a machine of its own (package sandbox), where it finds its default
// directories empty. It holds no code but tests; make test-runtimes builds and
// installs what they need. What cannot be had here is skipped, and the skip and
// its reason are printed with the table.
//
// Each runtime runs a pod with a host port and a bandwidth limit once for every
// fault in [faults] and every layout, and also without us, which shows what the
// fault does. Then it stops and removes the pod. What it fails to do is mended
// as an operator would mend it (see remedies), and with us nothing may be left.
//
// What the runtimes do differently:
//
//   - containerd 1.6 (libcni 1.1) fails every DEL of a pod whose cache file is
//     damaged, before any plugin is called. Only mending the file helps.
//   - containerd 2.4 (libcni 1.3) goes on without the result. It also asks STATUS,
//     on every CRI status request.
//   - podman calls no plugin if the cache file is damaged, and removes the
//     container all the same. After a reboot it sends ADD again for a container
//     that it knows, without a DEL between.
//
// A kubelet (1.34, on containerd 2.4) takes its time, so it gets only some of the
// faults; it is there if make test-kubelet has built it.
//
// containerd deletes with the conflist of today, podman with the one in the
// cache.
package runtimes

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/durable-args/durable-args/test/sandbox"
)

var enabled = flag.Bool("runtimes", false, "run what make test-runtimes runs")

func TestMain(m *testing.M) { sandbox.Main(m) }

// The layouts; none is the chain without us.
const (
	none      = "none"
	first     = "first"
	firstLast = "first-last"
	wrapped   = "wrapped"
)

var layouts = []string{none, first, firstLast, wrapped}

// kinds are the runtimes, in the order of the table.
var kinds = []struct {
	name string
	// missing says why it cannot run here, empty if it can.
	missing func(bin string) string
	install func(n *node) runtime
}{
	{"containerd 1.6", missingContainerd16, newContainerd16},
	{"containerd 2.4", missingContainerd24, newContainerd24},
	{"podman 4.3", missingPodman, newPodman},
	{"kubelet 1.34", missingKubelet, newKubelet},
}

// TestFaults fills the table.
func TestFaults(t *testing.T) {
	outer := enterSession(t)
	bin := sandbox.Bin(t)
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			for _, layout := range layouts {
				t.Run(layout, func(t *testing.T) {
					t.Parallel()
					out := results(kind.name, layout)
					if why := kind.missing(bin); why != "" {
						out.skip(t, why)
						t.Skip(why)
					}
					if !sandbox.Enter(t) {
						return
					}
					n := newNode(t, bin, layout)
					n.runtime = kind.install(n)
					n.boot()
					n.warmUp()
					for _, f := range faults {
						if !f.applies(kind.name, layout) {
							continue
						}
						if f.needs != "" && !n.has(f.needs) {
							out.add(t, f.name, "NOT RUN: durable-argsctl has no "+f.needs+" yet")
							continue
						}
						t.Run(f.name, func(t *testing.T) {
							n.T = t
							out.add(t, f.name, n.cell(f))
						})
					}
				})
			}
		})
	}
	if outer {
		t.Cleanup(func() { printTable(t) })
	}
}

// session names, in the environment of all sandboxes of a run, the directory
// where they leave their results. Its name is also that of the run's cgroup.
const session = "DURABLE_ARGS_RUNTIMES"

// enterSession reports whether the caller is the test that starts the
// sandboxes.
func enterSession(t *testing.T) bool {
	if os.Getenv(session) != "" {
		return false
	}
	if !*enabled {
		t.Skip("this takes its time, and packages that few machines have; run make test-runtimes")
	}
	dir, err := os.MkdirTemp("", "durable-args-runtimes-")
	if err != nil {
		t.Fatal(err)
	}
	_ = os.Setenv(session, dir)
	t.Cleanup(func() {
		_ = os.Unsetenv(session)
		removeCgroups(filepath.Base(dir))
		_ = os.RemoveAll(dir)
	})
	return true
}
