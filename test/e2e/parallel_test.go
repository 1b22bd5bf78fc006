package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/durable-args/durable-args/test/sandbox"
)

const containers = 50

// A node that starts and stops fifty pods at once, as after a reboot: every one
// of them is whole. (containerd/nerdctl#2908, containernetworking/plugins#418)
func TestFiftyContainersAtOnce(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	bin := sandbox.Bin(t)
	cnibin, err := install(t.TempDir(), bin, "v1.10.0")
	if err != nil {
		t.Fatal(err)
	}
	each := func(t *testing.T, f func(id string) error) {
		t.Helper()
		var wg sync.WaitGroup
		errs := make([]error, containers)
		for i := range errs {
			wg.Go(func() { errs[i] = f(fmt.Sprintf("c%d", i)) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	each(t, func(id string) error { return exec.Command("ip", "netns", "add", id).Run() })

	for _, test := range []struct {
		name   string
		rounds int
		chain  string
	}{
		{"on a recorder", 9, `{"type": "recorder", "capabilities": {"portMappings": true}}`},
		{"on bridge and portmap", 1, `{"type": "bridge", "bridge": "web0", "isGateway": true,
				"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}},
			{"type": "portmap", "capabilities": {"portMappings": true}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			conf := t.TempDir()
			conflist := `{"cniVersion": "1.0.0", "name": "web", "plugins": [
				{"type": "durable-args", "capabilities": {"portMappings": true}}, ` + test.chain + `]}`
			if err := os.WriteFile(filepath.Join(conf, "web.conflist"), []byte(conflist), 0o644); err != nil {
				t.Fatal(err)
			}
			list, err := libcni.LoadNetworkConf(conf, "web")
			if err != nil {
				t.Fatal(err)
			}
			// portmap's own race (containernetworking/plugins#335): whoever is
			// second to make the chains that all containers share fails. So one
			// has been here before.
			first := newCNI(cnibin, io.Discard, "NETCONFPATH="+conf, "RECORDER="+filepath.Join(conf, "first"))
			if _, err := first.AddNetworkList(context.Background(), list, attachment("c0")); err != nil {
				t.Fatal(err)
			}
			if err := first.DelNetworkList(context.Background(), list, attachment("c0")); err != nil {
				t.Fatal(err)
			}
			for range test.rounds {
				record := filepath.Join(t.TempDir(), "calls")
				cni := newCNI(cnibin, io.Discard, "NETCONFPATH="+conf, "RECORDER="+record)
				each(t, func(id string) error {
					_, err := cni.AddNetworkList(context.Background(), list, attachment(id))
					return err
				})
				if files := sandbox.JournalFiles("/var/lib/durable-args"); len(files) != containers {
					t.Fatalf("%d containers have %d journal files", containers, len(files))
				}
				// Every one is stopped without what it was started with.
				each(t, func(id string) error {
					lost := attachment(id)
					lost.Args, lost.CapabilityArgs = nil, nil
					return cni.DelNetworkList(context.Background(), list, lost)
				})
				if found := sandbox.Leftovers(); len(found) > 0 {
					t.Fatalf("left behind:\n%s", strings.Join(found, "\n"))
				}
				if strings.Contains(test.chain, "recorder") {
					each(t, replayedOnce(t, record))
				}
			}
		})
	}
}

func attachment(id string) *libcni.RuntimeConf {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "c"))
	return &libcni.RuntimeConf{
		ContainerID: id,
		NetNS:       "/run/netns/" + id,
		IfName:      "eth0",
		Args:        [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", id}},
		CapabilityArgs: map[string]any{
			"portMappings": []map[string]any{{"hostPort": 20000 + n, "containerPort": 80, "protocol": "tcp"}},
		},
	}
}

// replayedOnce returns a check that a container's DEL has reached the recorder
// twice, bare and then with all that is its own.
func replayedOnce(t *testing.T, record string) func(id string) error {
	data, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	return func(id string) error {
		port, err := json.Marshal(attachment(id).CapabilityArgs)
		if err != nil {
			return err
		}
		call := "container=" + id + " ifname=eth0 netns=/run/netns/" + id
		want := []string{
			"DEL recorder " + call + " args= caps= ",
			"DEL recorder " + call + " args=IgnoreUnknown=1;K8S_POD_NAME=" + id + " caps=" + string(port) + " ",
		}
		var got []string
		for _, line := range lines {
			if strings.HasPrefix(line, "DEL ") && strings.Contains(line, " container="+id+" ") {
				got = append(got, line[:strings.Index(line, "prevResult=")])
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("container %s: DELs are\n%s\nwant\n%s", id, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	}
}
