package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/durable-args/durable-args/pkg/chain"
)

func TestWeakPlugins(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, plugins string
		weak          []string // their types
	}{
		{"the usual ones", `[{"type":"bridge"},{"type":"portmap"},{"type":"firewall"}]`, nil},
		{"ipvlan with a master", `[{"type":"ipvlan","master":"eth0"}]`, nil},
		{"ipvlan without", `[{"type":"ipvlan"}]`, []string{"ipvlan"}},
		{"ipvlan with an empty one", `[{"type":"ipvlan","master":""}]`, []string{"ipvlan"}},
		{"macvlan without a master", `[{"type":"macvlan"}]`, nil},
		{"ipvlan upon another", `[{"type":"bridge"},{"type":"ipvlan"}]`, nil},
		{"loopback", `[{"type":"loopback"}]`, []string{"loopback"}},
		{"cilium-cni", `[{"type":"cilium-cni"}]`, []string{"cilium-cni"}},
		{"cilium-cni in chaining mode", `[{"type":"ptp"},{"type":"cilium-cni","chaining-mode":"generic-veth"}]`, nil},
		{"host-device anywhere", `[{"type":"loopback"},{"type":"tuning"},{"type":"host-device"}]`, []string{"loopback", "host-device"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var configs []json.RawMessage
			if err := json.Unmarshal([]byte(row.plugins), &configs); err != nil {
				t.Fatal(err)
			}
			plugins, err := chain.ParseAll(configs)
			if err != nil {
				t.Fatal(err)
			}
			var weak []string
			for _, sentence := range weakIn(plugins) {
				weak = append(weak, strings.Split(sentence, `"`)[1])
			}
			if !slices.Equal(weak, row.weak) {
				t.Errorf("weak are %q, want %q", weak, row.weak)
			}
		})
	}
}
