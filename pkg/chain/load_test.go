package chain

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

// confDir fills a directory of the test's own.
func confDir(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestLoadFindsWhatLibcniFinds(t *testing.T) {
	t.Parallel()
	const web = `{ "cniVersion": "1.0.0", "name": "web", "plugins": [ { "type": "bridge", "mtu": 1500.0 }, {"type":"portmap", "capabilities": {"portMappings": true, "none": false}} ] }` + "\n"
	for _, row := range []struct {
		name  string
		files map[string]string
		types string // of the plugins
	}{
		{"a conflist", map[string]string{"web.conflist": web}, "bridge portmap"},
		{"a conflist named otherwise", map[string]string{"10-x.conflist": web}, "bridge portmap"},
		{"a conflist among others", map[string]string{
			"a.conflist": `{"name":"a","plugins":[{"type":"a"}]}`, "web.conflist": web, "z.conf": `{"name":"z","type":"z"}`,
		}, "bridge portmap"},
		{"of two conflists of the network, the first by name", map[string]string{
			"20.conflist": web, "10.conflist": `{"name":"web","plugins":[{"type":"first"}]}`,
		}, "first"},
		{"a conflist before a single configuration, whatever their names", map[string]string{
			"99.conflist": web, "10.conf": `{"name":"web","type":"single"}`,
		}, "bridge portmap"},
		{"a single configuration", map[string]string{"web.conf": `{ "type":"macvlan", "name":"web", "cniVersion":"0.3.1", "n": 9007199254740993, "s": "<&>" }`}, "macvlan"},
		{"a single configuration named .json", map[string]string{"web.json": `{"name":"web","type":"macvlan","capabilities":{"mac":true}}`}, "macvlan"},
		{"single configurations with both endings, by name", map[string]string{
			"b.conf": `{"name":"web","type":"second"}`, "a.json": `{"name":"web","type":"first"}`,
		}, "first"},
		{"plugins added from the network's directory", map[string]string{
			"x.conflist": web, "web/20.conf": `{ "type": "sbr" }`, "web/10.conf": `{"type":"tuning","capabilities":{"mac":true}}`,
			"web/30.conflist": `{"type":"ignored"}`, "web/sub/40.conf": `{"type":"ignored"}`,
		}, "bridge portmap tuning sbr"},
		{"no plugins but those added", map[string]string{
			"x.conflist": `{"cniVersion":"1.1.0","name":"web"}`, "web/10.conf": `{"type":"bridge"}`,
		}, "bridge"},
		{"a conflist that wants none added", map[string]string{
			"x.conflist": `{"name":"web","loadOnlyInlinedPlugins":true,"plugins":[{"type":"bridge"}]}`, "web/10.conf": `{"type":"ignored"}`,
		}, "bridge"},
		{"nothing is added to a single configuration", map[string]string{
			"x.conf": `{"name":"web","type":"bridge"}`, "web/10.conf": `{"type":"ignored"}`,
		}, "bridge"},
		{"a choice of versions", map[string]string{
			"x.conflist": `{"cniVersion":"0.4.0","cniVersions":["1.0.0","9.9.9","0.3.1"],"name":"web","plugins":[{"type":"bridge"}]}`,
		}, "bridge"},
		{"files with other endings are not configurations", map[string]string{
			"a.conflist.bak": `{`, "b.yaml": `{`, ".conflist/x": "", "web.conflist": web,
		}, "bridge portmap"},
		{"keys in another case, escapes, duplicates", map[string]string{
			"x.conflist": `{"name":"w\u0065b","plugins":[{"Type":"bridge","a":1,"a":{"z":1,"b":"<\/&"}},{"type":"a\u003cb"}]}`,
		}, "bridge a<b"},
		{"a plugin twice", map[string]string{"x.conflist": `{"name":"web","plugins":[{"type":"tuning"},{"type":"tuning","mtu":1}]}`}, "tuning tuning"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir := confDir(t, row.files)
			want, err := libcni.LoadNetworkConf(dir, "web")
			if err != nil {
				t.Fatalf("libcni: %v", err)
			}
			got, err := Load(dir, "web")
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Bytes) != string(want.Bytes) {
				t.Errorf("the bytes are\n%s\nlibcni has\n%s", got.Bytes, want.Bytes)
			}
			if len(got.Plugins) != len(want.Plugins) {
				t.Fatalf("there are %d plugins, libcni finds %d", len(got.Plugins), len(want.Plugins))
			}
			var types []string
			for i, p := range got.Plugins {
				w := want.Plugins[i]
				maps.DeleteFunc(w.Network.Capabilities, func(_ string, declared bool) bool { return !declared })
				if p.Type != w.Network.Type || string(p.Config) != string(w.Bytes) ||
					!slices.Equal(p.Capabilities, slices.Sorted(maps.Keys(w.Network.Capabilities))) {
					t.Errorf("plugin %d is %s %s with %v, libcni has %s with %v", i, p.Type, p.Config, p.Capabilities, w.Bytes, w.Network.Capabilities)
				}
				types = append(types, p.Type)
			}
			if got := strings.Join(types, " "); got != row.types {
				t.Errorf("the plugins are %q, want %q", got, row.types)
			}
		})
	}
}

// Where libcni's loader gives up, a runtime's own goes on.
func TestLoadPassesOverFilesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	const web = `{"name":"web","plugins":[{"type":"bridge"}]}`
	for _, row := range []struct {
		name  string
		files map[string]string
		names string // what the error must name, "" if web is found
	}{
		{"a broken conflist of another network", map[string]string{"a.conflist": `{"name":"a"`, "web.conflist": web}, ""},
		{"an empty conflist", map[string]string{"a.conflist": ``, "web.conflist": web}, ""},
		{"a conflist without plugins", map[string]string{"a.conflist": `{"name":"a","plugins":[]}`, "web.conflist": web}, ""},
		{"a plugin without a type in another network's directory", map[string]string{
			"a.conflist": `{"name":"a"}`, "a/1.conf": `{}`, "web.conflist": web,
		}, ""},
		{"a broken single configuration", map[string]string{"a.conf": `{`, "web.json": `{"name":"web","type":"bridge"}`}, ""},
		{"a broken conflist of this network, and a whole one", map[string]string{"a.conflist": `{"name":"web","plugins":3}`, "b.conflist": web}, ""},

		{"a broken conflist of this network alone", map[string]string{"web.conflist": `{"name":"web","plugins":[{}]}`}, "web.conflist"},
		{"a broken plugin in this network's directory", map[string]string{"x.conflist": web, "web/1.conf": `{`}, "x.conflist"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir := confDir(t, row.files)
			if list, err := libcni.LoadNetworkConf(dir, "web"); err == nil {
				t.Fatalf("libcni finds %s, so this case tells nothing", list.Bytes)
			}
			list, err := Load(dir, "web")
			if row.names == "" {
				if err != nil || len(list.Plugins) != 1 || list.Plugins[0].Type != "bridge" {
					t.Errorf("Load: %+v, %v", list, err)
				}
				return
			}
			if notFound := (libcni.NotFoundError{}); !errors.As(err, &notFound) || !strings.Contains(err.Error(), row.names) {
				t.Errorf("Load: %v; want a NotFoundError that names %s", err, row.names)
			}
		})
	}
}

func TestLoadFindsNothing(t *testing.T) {
	t.Parallel()
	dir := confDir(t, map[string]string{"a.conflist": `{"name":"a","plugins":[{"type":"a"}]}`, "file": ""})
	for _, row := range []struct{ name, dir string }{
		{"no conflist of that network", dir},
		{"no such directory", filepath.Join(dir, "none")},
		{"an empty directory", t.TempDir()},
	} {
		list, err := Load(row.dir, "web")
		if notFound := (libcni.NotFoundError{}); !errors.As(err, &notFound) || notFound.Name != "web" || notFound.Dir != row.dir {
			t.Errorf("%s: %+v, %v; want a NotFoundError", row.name, list, err)
		}
	}
	if list, err := Load(filepath.Join(dir, "file"), "web"); err == nil {
		t.Errorf("a file for a directory: %+v, want an error", list)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, config := range []string{``, `{`, `{}`, `[]`, `null`, `{"type":3}`, `{"type":""}`} {
		if p, err := Parse(json.RawMessage(config)); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", config, p)
		}
	}
}

func TestParseAllKeepsEveryConfiguration(t *testing.T) {
	t.Parallel()
	configs := []json.RawMessage{[]byte(`{"type":"bridge","mtu":9007199254740993}`), []byte(`{"capabilities":{"b":true,"a":true,"c":false},"type":"portmap"}`)}
	plugins, err := ParseAll(configs)
	if err != nil {
		t.Fatal(err)
	}
	if got := Configs(plugins); !slices.EqualFunc(got, configs, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
		t.Errorf("Configs() = %s, want %s", got, configs)
	}
	if want := []string{"a", "b"}; !slices.Equal(plugins[1].Capabilities, want) {
		t.Errorf("capabilities are %q, want %q", plugins[1].Capabilities, want)
	}
	if plugins, err := ParseAll(append(configs, []byte(`{}`))); err == nil {
		t.Errorf("one without a type: %+v, want an error", plugins)
	}
}
