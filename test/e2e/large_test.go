package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/durable-args/durable-args/test/sandbox"
)

// A runtime may give a megabyte of capability args, and a plugin may print a
// result of one; no environment variable holds as much, hence no script.
func TestAMegabyteOfCapabilityArgsAndOfResultComesBackOnDEL(t *testing.T) {
	for _, layout := range []string{"first-last", "wrapped"} {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			if sandbox.Enter(t) {
				megabyte(t, layout)
			}
		})
	}
}

func megabyte(t *testing.T, layout string) {
	ctx := t.Context()
	work := t.TempDir()
	plugins, err := install(work, sandbox.Bin(t), "v1.10.0")
	if err != nil {
		t.Fatal(err)
	}
	var ips []string
	for i := range 25_000 {
		ips = append(ips, fmt.Sprintf(`{"address": "10.%d.%d.%d/8", "gateway": "10.0.0.1"}`, i/65536, i/256%256, i%256))
	}
	recorder := fmt.Sprintf(`{"type": "recorder", "capabilities": {"large": true}, "result": {"cniVersion": "1.0.0", "ips": [%s]}}`, strings.Join(ips, ","))
	stanzas := map[string]string{
		"first-last": `{"type": "durable-args", "capabilities": {"large": true}}, %s, {"type": "durable-args", "position": "last", "capabilities": {"large": true}}`,
		"wrapped":    `{"type": "durable-args", "capabilities": {"large": true}, "plugins": [%s]}`,
	}
	conflist := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "web", "plugins": [`+stanzas[layout]+`]}`, recorder)
	if err := os.WriteFile(filepath.Join(work, "10-web.conflist"), []byte(conflist), 0o644); err != nil {
		t.Fatal(err)
	}
	// A sandbox is a process of its own, so these reach no other test.
	record := filepath.Join(work, "calls")
	for name, value := range map[string]string{"NETCONFPATH": work, "RECORDER": record} {
		if err := os.Setenv(name, value); err != nil {
			t.Fatal(err)
		}
	}
	list, err := libcni.LoadNetworkConf(work, "web")
	if err != nil {
		t.Fatal(err)
	}
	sandbox.Output("ip", "netns", "add", "c1")
	cni := libcni.NewCNIConfig([]string{plugins}, nil)
	large := strings.Repeat("<x>", 350_000)
	known := &libcni.RuntimeConf{ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0",
		CapabilityArgs: map[string]any{"large": large}}
	result, err := cni.AddNetworkList(ctx, list, known)
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	if len(want) < 1<<20 {
		t.Fatalf("the result is of %d bytes only", len(want))
	}
	for _, path := range []string{record, record + ".stdin", "/var/lib/cni/results"} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	if err := cni.DelNetworkList(ctx, list, &libcni.RuntimeConf{ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0"}); err != nil {
		t.Fatal(err)
	}
	stdin, err := os.ReadFile(record + ".stdin")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(stdin), "\n")
	var got struct {
		RuntimeConfig struct{ Large string }
		PrevResult    json.RawMessage
	}
	if err := json.Unmarshal([]byte(first), &got); err != nil {
		t.Fatal(err)
	}
	if got.RuntimeConfig.Large != large {
		t.Errorf("of %d bytes of capability args, DEL got %d", len(large), len(got.RuntimeConfig.Large))
	}
	if string(got.PrevResult) != string(want) {
		t.Errorf("of a result of %d bytes, DEL got another, of %d", len(want), len(got.PrevResult))
	}
	if left := sandbox.JournalFiles("/var/lib/durable-args"); len(left) > 0 {
		t.Errorf("left in the journal: %q", left)
	}
}
