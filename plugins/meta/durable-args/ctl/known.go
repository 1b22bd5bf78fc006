package main

import (
	"encoding/json"
	"fmt"

	"github.com/durable-args/durable-args/pkg/chain"
)

// weakness is what is known of a plugin that does badly behind a stanza which
// does not wrap it.
type weakness struct {
	plugin string
	// firstOnly says that it matters only if the plugin is the first of its
	// chain: there our stanza's ADD gives it a prevResult that holds the version
	// alone.
	firstOnly bool
	// without is the key of its configuration that, when set, makes it sound;
	// empty if there is none.
	without string
	// does completes a sentence that begins with the plugin's name.
	does string
}

// weaknesses were all seen in runs or read in the plugin's source.
var weaknesses = []weakness{
	{"ipvlan", true, "master", "takes the empty prevResult for that of a plugin before it, and fails"},
	{"loopback", true, "", "passes the empty prevResult on, and the result lacks its interface"},
	{"cilium-cni", true, "chaining-mode", "rejects any prevResult"},
	{"host-device", false, "", "fails when it is called with DEL a second time"},
}

// weakIn returns a sentence for each plugin of a chain, without our stanzas,
// that is better wrapped.
func weakIn(plugins []chain.Plugin) []string {
	var found []string
	for i, p := range plugins {
		for _, w := range weaknesses {
			if p.Type != w.plugin || w.firstOnly && i > 0 {
				continue
			}
			name := fmt.Sprintf("plugin %q", p.Type)
			if w.without != "" {
				if isSet(p.Config, w.without) {
					continue
				}
				name += fmt.Sprintf(" without %q", w.without)
			}
			found = append(found, name+" "+w.does)
		}
	}
	return found
}

// isSet says whether key is a string in config that is not empty.
func isSet(config json.RawMessage, key string) bool {
	var conf map[string]any
	if err := json.Unmarshal(config, &conf); err != nil {
		return false
	}
	value, _ := conf[key].(string)
	return value != ""
}
