package runtimes

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
)

const network = "pods"

// stanza is a plugin's configuration.
type stanza = map[string]any

// chain is the one that every runtime gets. The recorder can be made to wait
// between the plugins before and behind it.
func chain(n *node) []stanza {
	bandwidth := stanza{"type": "bandwidth", "capabilities": stanza{"bandwidth": true}}
	if _, ok := n.runtime.(*podman); ok {
		// It knows no bandwidth: the limit is the same for all.
		bandwidth = stanza{"type": "bandwidth", "ingressRate": 10_000_000, "ingressBurst": 10_000_000, "egressRate": 20_000_000, "egressBurst": 20_000_000}
	}
	return []stanza{
		{
			"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
			"ipam": stanza{
				"type":   "host-local",
				"ranges": [][]stanza{{{"subnet": "10.231.0.0/24", "gateway": "10.231.0.1"}}},
				"routes": []stanza{{"dst": "0.0.0.0/0"}},
			},
		},
		{"type": "portmap", "capabilities": stanza{"portMappings": true}, "backend": "iptables"},
		{"type": "recorder", "sleepWhile": n.asleep()},
		{"type": "firewall", "backend": "iptables"},
		bandwidth,
	}
}

// withoutPortmap is the chain after somebody has edited it.
func withoutPortmap(n *node) []stanza {
	return slices.DeleteFunc(chain(n), func(s stanza) bool { return s["type"] == "portmap" })
}

// writeConflist writes the conflist in a layout.
func (n *node) writeConflist(layout string, chain func(n *node) []stanza) {
	plugins := chain(n)
	capabilities := stanza{"portMappings": true, "bandwidth": true}
	own := stanza{"type": "durable-args", "confDir": n.confDir(), "capabilities": capabilities}
	switch layout {
	case first:
		plugins = append([]stanza{own}, plugins...)
	case firstLast:
		last := stanza{"type": "durable-args", "confDir": n.confDir(), "capabilities": capabilities, "position": "last"}
		plugins = append(append([]stanza{own}, plugins...), last)
	case wrapped:
		own["plugins"] = plugins
		plugins = []stanza{own}
	}
	text, err := json.MarshalIndent(stanza{"cniVersion": n.runtime.cniVersion(), "name": network, "plugins": plugins}, "", "  ")
	n.must(err)
	file := filepath.Join(n.confDir(), "10-pods.conflist")
	n.must(os.WriteFile(file+".new", text, 0o644))
	n.must(os.Rename(file+".new", file))
}
