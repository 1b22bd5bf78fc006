package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"sigs.k8s.io/yaml"

	"github.com/durable-args/durable-args/test/sandbox"
)

// capabilityArgs are what a runtime would give for each capability that an
// example declares.
var capabilityArgs = map[string]string{
	"portMappings": `[{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]`,
	"ips":          `["10.245.0.7/24"]`,
	"mac":          `"02:00:00:00:00:07"`,
	"bandwidth":    `{"ingressRate": 10000000, "ingressBurst": 1000000, "egressRate": 10000000, "egressBurst": 1000000}`,
}

// multusExample has its chain in the cluster, and not on the node's disk.
const multusExample = "../../conf-examples/network-attachment-definition.yaml"

// TestExamples takes every configuration in conf-examples through the life of a
// pod whose DEL has lost everything, with the plugin's defaults; in the layout
// first, everything but the result, which is not journaled there.
func TestExamples(t *testing.T) {
	examples, err := filepath.Glob("../../conf-examples/*.conflist")
	if err != nil || len(examples) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	examples = append(examples, multusExample)
	for _, example := range examples {
		t.Run(filepath.Base(example), func(t *testing.T) {
			t.Parallel()
			if sandbox.Enter(t) {
				tryExample(t, example)
			}
		})
	}
}

func tryExample(t *testing.T, example string) {
	ctx := t.Context()
	work := t.TempDir()
	plugins, err := install(work, sandbox.Bin(t), "v1.10.0")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	// A sandbox is a process of its own, so this reaches no other test.
	if err := os.Setenv("NETCONFPATH", work); err != nil {
		t.Fatal(err)
	}
	if example == multusExample {
		var definition struct{ Spec struct{ Config string } }
		if err := yaml.Unmarshal(text, &definition); err != nil {
			t.Fatal(err)
		}
		text = []byte(definition.Spec.Config)
	} else if err := os.WriteFile(filepath.Join(work, "10-example.conflist"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfig([]string{plugins}, nil)
	if _, err := cni.ValidateNetworkList(ctx, list); err != nil {
		t.Fatalf("libcni does not accept it: %v", err)
	}

	sandbox.Output("ip", "netns", "add", "pod")
	linksBefore := links()
	known := &libcni.RuntimeConf{
		ContainerID:    "pod",
		NetNS:          "/run/netns/pod",
		IfName:         "eth0",
		Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "web-0"}},
		CapabilityArgs: argsFor(t, list),
	}
	if _, err := cni.AddNetworkList(ctx, list, known); err != nil {
		t.Fatalf("ADD: %v", err)
	}
	if found := sandbox.JournalFiles("/var/lib/durable-args"); len(found) != 1 {
		t.Errorf("the journal holds %q, want one file", found)
	}
	if err := cni.CheckNetworkList(ctx, list, known); err != nil {
		t.Errorf("CHECK: %v", err)
	}

	if filepath.Base(example) != "first.conflist" {
		if err := os.RemoveAll("/var/lib/cni/results"); err != nil {
			t.Fatal(err)
		}
	}
	lost := &libcni.RuntimeConf{ContainerID: known.ContainerID, NetNS: known.NetNS, IfName: known.IfName}
	for _, which := range []string{"first", "second"} {
		if err := cni.DelNetworkList(ctx, list, lost); err != nil {
			t.Errorf("%s DEL: %v", which, err)
		}
	}
	if found := sandbox.Leftovers(); len(found) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(found, "\n"))
	}
	for _, link := range links() {
		if !slices.Contains(linksBefore, link) && !strings.Contains(string(text), `"`+link+`"`) {
			t.Errorf("link %s is left behind", link)
		}
	}
}

// argsFor returns a value for every capability in the list, whether or not the
// durable-args stanza declares it.
func argsFor(t *testing.T, list *libcni.NetworkConfigList) map[string]any {
	args := make(map[string]any)
	for _, plugin := range list.Plugins {
		for capability := range plugin.Network.Capabilities {
			raw, ok := capabilityArgs[capability]
			if !ok {
				t.Fatalf("plugin %s declares %q, for which this test has no value; add one to capabilityArgs", plugin.Network.Type, capability)
			}
			var value any
			if err := json.Unmarshal([]byte(raw), &value); err != nil {
				t.Fatal(err)
			}
			args[capability] = value
		}
	}
	return args
}

// links are the names of the network interfaces of the sandbox.
func links() []string {
	var names []string
	for _, line := range sandbox.Output("ip", "-o", "link") {
		if fields := strings.Fields(line); len(fields) > 1 {
			name, _, _ := strings.Cut(strings.TrimSuffix(fields[1], ":"), "@")
			names = append(names, name)
		}
	}
	return names
}
