package runtimes

import (
	"encoding/json"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/test/sandbox"
)

// TestStatus makes dataDir read-only under containerd 2.4, which asks STATUS: its
// network is not ready then, with our sentence, until dataDir is writable again.
func TestStatus(t *testing.T) {
	enterSession(t)
	bin := sandbox.Bin(t)
	for _, layout := range layouts[1:] {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			if why := missingContainerd24(bin); why != "" {
				t.Skip(why)
			}
			if !sandbox.Enter(t) {
				return
			}
			n := newNode(t, bin, layout)
			c := newContainerd24(n).(*containerd)
			n.runtime = c
			n.boot()
			n.must(n.runtime.remove(n.runPod()).wait())
			if ready, message := c.networkReady(); !ready {
				t.Fatalf("the network is not ready: %s", message)
			}

			n.must(unix.Mount(journal, journal, "", unix.MS_BIND, ""))
			n.must(unix.Mount("", journal, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			ready, message := c.networkReady()
			if ready {
				t.Fatal("the network is ready though dataDir is read-only")
			}
			for _, part := range []string{"not ready: dataDir " + journal, "read-only file system; mount that file system writable again"} {
				if !strings.Contains(message, part) {
					t.Errorf("the condition does not say %q but %q", part, message)
				}
			}
			p := n.newPod()
			if err := n.runtime.run(p).wait(); err == nil || !strings.Contains(err.Error(), "nothing has been set up") {
				t.Errorf("a pod that cannot be journaled: %v", err)
			}

			n.must(unix.Unmount(journal, 0))
			if ready, message := c.networkReady(); !ready {
				t.Fatalf("the network is not ready again: %s", message)
			}
			n.must(n.runtime.remove(n.runPod()).wait())
		})
	}
}

// networkReady returns the runtime's condition NetworkReady, and its message.
func (c *containerd) networkReady() (bool, string) {
	c.Helper()
	var info struct {
		Status struct {
			Conditions []struct {
				Type, Message string
				Status        bool
			}
		}
	}
	c.must(c.crictlThen(func(out string) error { return json.Unmarshal([]byte(out), &info) }, "info").wait())
	for _, condition := range info.Status.Conditions {
		if condition.Type == "NetworkReady" {
			return condition.Status, condition.Message
		}
	}
	c.Fatal("crictl info tells of no network")
	return false, ""
}
