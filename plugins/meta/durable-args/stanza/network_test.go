package stanza

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/durable-args/durable-args/pkg/chain"
)

const (
	first = `{"type":"durable-args"}`
	last  = `{"type":"durable-args","position":"last"}`
)

// conflist is the configuration of the network web with these plugins.
func conflist(plugins ...string) string {
	return `{ "cniVersion": "1.0.0", "name": "web", "plugins": [` + strings.Join(plugins, ", ") + "] }\n"
}

// onDisk gives s a directory of the test's own with this conflist, or with none.
func onDisk(t testing.TB, s *Stanza, conflist string) {
	t.Helper()
	s.ConfDir = t.TempDir()
	if conflist == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(s.ConfDir, "10-web.conflist"), []byte(conflist), 0o600); err != nil {
		t.Fatal(err)
	}
}

// stanza is a stanza as libcni hands it to us.
func stanza(t testing.TB, more string) *Stanza {
	t.Helper()
	return mustParse(t, `{"type":"durable-args","name":"web","cniVersion":"1.0.0"`+more+`}`)
}

func named(plugins []chain.Plugin) string {
	var names []string
	for _, p := range plugins {
		names = append(names, p.Type)
	}
	return strings.Join(names, " ")
}

func TestWhichPluginsAreProtected(t *testing.T) {
	t.Parallel()
	const bridge, portmap, sbr = `{"type":"bridge"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`, `{"type":"sbr"}`
	for _, row := range []struct {
		name     string
		conflist string
		want     string // protected
		all      string
		stanzas  int
		extended bool
	}{
		{"first: all", conflist(first, bridge, portmap), "bridge portmap", "bridge portmap", 1, false},
		{"first, alone: none", conflist(first), "", "", 1, false},
		{"first, but others stand before it: all", conflist(bridge, first, portmap), "bridge portmap", "bridge portmap", 1, false},
		{"first, twice: all", conflist(first, bridge, first, portmap), "bridge portmap", "bridge portmap", 2, false},
		{"first and last: those between", conflist(first, bridge, portmap, last), "bridge portmap", "bridge portmap", 2, false},
		{"first and last, others before: those between", conflist(sbr, first, bridge, portmap, last), "bridge portmap", "sbr bridge portmap", 2, false},
		{"first and last, others behind: those between", conflist(first, bridge, portmap, last, sbr), "bridge portmap", "bridge portmap sbr", 2, true},
		{"first and last, others on both sides: those between", conflist(sbr, first, bridge, last, portmap), "bridge", "sbr bridge portmap", 2, true},
		{"first and last, nothing between: none", conflist(first, last), "", "", 2, false},
		{"first and two last: those before the very last", conflist(first, bridge, last, portmap, last), "bridge portmap", "bridge portmap", 3, false},
		{"two first and last: those behind the very first", conflist(first, bridge, first, portmap, last), "bridge portmap", "bridge portmap", 3, false},
		{"last before first: all", conflist(last, bridge, first, portmap), "bridge portmap", "bridge portmap", 2, false},
		{"a plugin twice: both", conflist(first, bridge, bridge, last), "bridge bridge", "bridge bridge", 2, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := stanza(t, "")
			onDisk(t, s, row.conflist)
			n, err := s.Network()
			if err != nil {
				t.Fatal(err)
			}
			if named(n.Protected) != row.want || named(n.Plugins) != row.all {
				t.Errorf("protected: %q of %q, want %q of %q", named(n.Protected), named(n.Plugins), row.want, row.all)
			}
			if n.Extended != row.extended || len(n.Capabilities) != row.stanzas || string(n.Conflist) != row.conflist {
				t.Errorf("extended: %v, stanzas: %d, conflist: %s", n.Extended, len(n.Capabilities), n.Conflist)
			}
		})
	}
}

// The binary may have been given another name.
func TestAStanzaIsKnownByItsOwnType(t *testing.T) {
	t.Parallel()
	s := mustParse(t, `{"type":"durable-args-2","name":"web"}`)
	onDisk(t, s, conflist(`{"type":"durable-args-2"}`, first, `{"type":"bridge"}`))
	if n, err := s.Network(); err != nil || named(n.Protected) != "durable-args bridge" {
		t.Errorf("%+v, %v", n, err)
	}
}

func TestAConflistThatDoesNotDoSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, conflist string
		mentions       []string
	}{
		{"there is none", "", []string{`"web"`, "confDir"}},
		{"it is another network's", `{"name":"db","plugins":[` + first + `]}`, []string{`"web"`, "confDir"}},
		{"it is broken", `{"name":"web",`, []string{`"web"`, "confDir", "10-web.conflist"}},
		{"it has no stanza of ours", conflist(`{"type":"bridge"}`), []string{`"web"`, "no durable-args stanza", "confDir"}},
		{"it has a last stanza only", conflist(`{"type":"bridge"}`, last), []string{`"web"`, `"position": "last"`, "add one without a position, first"}},
		{"a stanza in it cannot be decoded", conflist(`{"type":"durable-args","replayAttempts":"3"}`), []string{`"web"`, "replayAttempts"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for _, more := range []string{"", `,"position":"last"`} {
				s := stanza(t, more)
				onDisk(t, s, row.conflist)
				n, err := s.Network()
				if n != nil {
					t.Errorf("the network is %+v", *n)
				}
				coded(t, err, types.ErrInvalidNetworkConfig, append(row.mentions, "durable-args stanza")...)
			}
		})
	}
}

func TestAWrappedStanzaHoldsTheChain(t *testing.T) {
	t.Parallel()
	const plugins = `,"plugins":[{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}],"capabilities":{"portMappings":true}`
	for _, row := range []struct{ name, conflist, found string }{
		{"on disk", conflist(`{"type":"durable-args"` + plugins + `}`), conflist(`{"type":"durable-args"` + plugins + `}`)},
		{"not on disk, as with Multus", "", ""},
		{"what is on disk is broken", `{"name":"web"`, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := stanza(t, plugins)
			onDisk(t, s, row.conflist)
			n, err := s.Network()
			if err != nil {
				t.Fatal(err)
			}
			if named(n.Protected) != "bridge portmap" || named(n.Plugins) != "bridge portmap" || n.Extended || string(n.Conflist) != row.found {
				t.Errorf("the network is %+v", *n)
			}
			if err := n.Covered(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAWrappedChainThatMakesNoSense(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, plugins string
		mentions      []string
	}{
		{"it holds itself", `[{"type":"bridge"},` + first + `]`, []string{`"plugins"`, "durable-args stanza; take it out"}},
		{"it holds itself, wrapped again", `[{"type":"durable-args","plugins":[{"type":"bridge"}]}]`, []string{`"plugins"`, "take it out"}},
		{"a plugin has no type", `[{"type":"bridge"},{}]`, []string{`"plugins"`, "type"}},
		{"a plugin is null", `[null]`, []string{`"plugins"`, "type"}},
		{"a plugin is a string", `["bridge"]`, []string{`"plugins"`, "string"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := stanza(t, `,"plugins":`+row.plugins)
			for _, conflist := range []string{"", conflist(first)} {
				onDisk(t, s, conflist)
				n, err := s.Network()
				if n != nil {
					t.Errorf("the network is %+v", *n)
				}
				coded(t, err, types.ErrInvalidNetworkConfig, row.mentions...)
			}
		})
	}
}

func TestAnEmptyListOfPluginsWrapsNothing(t *testing.T) {
	t.Parallel()
	s := stanza(t, `,"plugins":[]`)
	onDisk(t, s, conflist(`{"type":"durable-args","plugins":[]}`, `{"type":"bridge"}`))
	if n, err := s.Network(); err != nil || named(n.Protected) != "bridge" {
		t.Errorf("%+v, %v; want the plugins of the conflist", n, err)
	}
}

func TestEveryStanzaMustDeclareTheCapabilitiesOfTheChain(t *testing.T) {
	t.Parallel()
	const (
		bridge  = `{"type":"bridge","capabilities":{"ips":false}}`
		portmap = `{"type":"portmap","capabilities":{"portMappings":true}}`
		tuning  = `{"type":"tuning","capabilities":{"mac":true}}`
	)
	// with is a stanza of ours that declares capabilities.
	with := func(position string, capabilities ...string) string {
		var declared []string
		for _, c := range capabilities {
			declared = append(declared, fmt.Sprintf("%q:true", c))
		}
		return fmt.Sprintf(`{"type":"durable-args","position":%q,"capabilities":{%s}}`, position, strings.Join(declared, ","))
	}
	for _, row := range []struct {
		name               string
		conflist           string
		plugin, capability string // that are not covered, empty if all are
	}{
		{"no capabilities at all", conflist(first, bridge), "", ""},
		{"all of them", conflist(with("first", "portMappings", "mac"), bridge, portmap, tuning), "", ""},
		{"more than all", conflist(with("first", "portMappings", "mac", "ips"), portmap, tuning), "", ""},
		{"none", conflist(first, bridge, portmap, tuning), "portmap", "portMappings"},
		{"not one of them", conflist(with("first", "portMappings"), bridge, portmap, tuning), "tuning", "mac"},
		{"declared, but as false", conflist(`{"type":"durable-args","capabilities":{"mac":false}}`, tuning), "tuning", "mac"},
		{"both stanzas all of them", conflist(with("first", "mac"), tuning, with("last", "mac")), "", ""},
		{"only the first stanza all of them", conflist(with("first", "mac"), tuning, with("last")), "tuning", "mac"},
		{"only the last stanza all of them", conflist(with("first"), tuning, with("last", "mac")), "tuning", "mac"},
		{"not those of plugins that are not protected", conflist(portmap, with("first", "mac"), tuning, with("last", "mac"), portmap), "", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := stanza(t, "")
			onDisk(t, s, row.conflist)
			n, err := s.Network()
			if err != nil {
				t.Fatal(err)
			}
			err = n.Covered()
			if row.plugin == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			coded(t, err, types.ErrInvalidNetworkConfig, "plugin "+row.plugin+" declares", fmt.Sprintf(`add "capabilities": {%q: true}`, row.capability))
		})
	}
}

func TestAWrappedStanzaMustDeclareTheCapabilitiesOfItsChain(t *testing.T) {
	t.Parallel()
	s := stanza(t, `,"capabilities":{"mac":true},"plugins":[{"type":"tuning","capabilities":{"mac":true}},{"type":"portmap","capabilities":{"portMappings":true}}]`)
	n, err := s.Nested()
	if err != nil {
		t.Fatal(err)
	}
	coded(t, n.Covered(), types.ErrInvalidNetworkConfig, "plugin portmap declares", `"portMappings"`)
}

// Whatever stands in a stanza and in the conflist, it is read or refused with a
// code; and what is read holds together.
func FuzzNetwork(f *testing.F) {
	const injected = `"type":"durable-args","name":"web","cniVersion":"1.0.0"`
	for _, config := range []string{
		`{` + injected + `}`, `{` + injected + `,"position":"last"}`, `{` + injected + `,"plugins":[{"type":"bridge","capabilities":{"mac":true}}]}`,
		`{` + injected + `,"plugins":[` + first + `]}`, `{` + injected + `,"plugins":[null],"prevResult":null}`, `{"name":"web"}`, `null`, `[]`, ``,
	} {
		for _, list := range []string{
			conflist(first, `{"type":"bridge"}`), conflist(first, `{"type":"bridge"}`, last, `{"type":"sbr","capabilities":{"mac":true}}`),
			conflist(last, first), conflist(first, last), conflist(last), `{"name":"web","plugins":[null]}`, `{"name":"web","plugins":[{"type":""}]}`, `{"name":"web"`, ``,
		} {
			f.Add([]byte(config), []byte(list))
		}
	}
	// One for all: making directories is slow.
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, config, conflist []byte) {
		s, err := Parse(config)
		if err != nil {
			if s != nil {
				t.Errorf("%+v comes with the error %v", *s, err)
			}
			code := uint(types.ErrInvalidNetworkConfig)
			if json.Unmarshal(config, new(Stanza)) != nil {
				code = types.ErrDecodingFailure
			}
			coded(t, err, code, "durable-args stanza")
			return
		}
		if s.ReplayAttempts == nil || *s.ReplayAttempts < 0 || !filepath.IsAbs(s.DataDir) || !slices.Contains([]string{First, Last, Wrapped}, s.Layout()) {
			t.Errorf("it is read as %+v", *s)
		}
		s.ConfDir = dir // wherever it says
		if err := os.WriteFile(filepath.Join(dir, "x.conflist"), conflist, 0o600); err != nil {
			t.Fatal(err)
		}
		n, err := s.Network()
		if err != nil {
			if n != nil {
				t.Errorf("%+v comes with the error %v", *n, err)
			}
			coded(t, err, types.ErrInvalidNetworkConfig, "durable-args stanza")
			return
		}
		if len(n.Capabilities) == 0 || len(n.Protected) > len(n.Plugins) {
			t.Errorf("the network is %+v", *n)
		}
		for _, p := range append(slices.Clone(n.Protected), n.Plugins...) {
			if p.Type == s.Type || p.Type == "" {
				t.Errorf("plugin %q is in the network of %q", p.Type, s.Type)
			}
		}
		if err := n.Covered(); err != nil {
			coded(t, err, types.ErrInvalidNetworkConfig)
		}
	})
}
