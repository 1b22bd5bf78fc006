package chain

import (
	"context"
	"encoding/json"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
)

// recorder is an invoke.Exec that runs nothing and notes what libcni would
// have run.
type recorder struct {
	version.PluginDecoder
	calls []recorded
}

type recorded struct {
	plugin  string
	request []byte
	env     []string // CNI_*, sorted
}

func (r *recorder) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (r *recorder) ExecPlugin(_ context.Context, plugin string, stdin []byte, env []string) ([]byte, error) {
	r.calls = append(r.calls, recorded{plugin, stdin, cniVariables(env)})
	var conf struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return nil, err
	}
	if conf.PrevResult != nil {
		return conf.PrevResult, nil
	}
	return json.Marshal(map[string]any{
		"cniVersion": conf.CNIVersion,
		"ip4":        map[string]string{"ip": "10.0.0.2/24"}, // up to 0.2.0
		"ips":        []any{map[string]any{"version": "4", "address": "10.0.0.2/24"}},
		"dns":        map[string]any{"domain": "<a&b>"},
	})
}

func cniVariables(env []string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return !strings.HasPrefix(kv, "CNI_") })
	slices.Sort(env)
	return env
}

// From what libcni gives to our stanza, the first of the chain, every other
// plugin's request is derived: what comes out must be what libcni itself gives
// to that plugin, to the byte.
func TestRequestsAreLibcnis(t *testing.T) {
	t.Parallel()
	// ours declares what the others do, as the stanza has to.
	const ours = `{"type":"durable-args","capabilities":{"portMappings":true,"bandwidth":true,"mac":true,"io.x/y":true}},`
	for _, row := range []struct {
		name         string
		version      string
		plugins      string
		capabilities string
		added        map[string]string // files added to the conflist's directory
		asValues     bool              // libcni sorts and rounds what it reads from added files; we do not
	}{
		{"plugins without capabilities", "1.0.0", `{"type":"bridge","mtu":1500},{"type":"tuning"}`, `{"mac":"02::1"}`, nil, false},
		{"every plugin is given its own share", "1.0.0",
			`{"type":"bridge","capabilities":{"mac":true}},{"type":"portmap","capabilities":{"portMappings":true,"bandwidth":true}}`,
			`{"mac":"02::1","portMappings":[{"hostPort":8080,"containerPort":80}],"bandwidth":{"ingressRate":1000},"undeclared":1}`, nil, false},
		{"a capability declared false is no capability", "1.0.0",
			`{"type":"portmap","capabilities":{"portMappings":false,"mac":true}}`, `{"mac":"02::1","portMappings":[]}`, nil, false},
		{"a plugin whose capabilities were not given", "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`, `{"mac":"02::1"}`, nil, false},
		{"no capability args at all", "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`, ``, nil, false},
		{"values that are null, false, empty", "1.0.0",
			`{"type":"x","capabilities":{"mac":true,"bandwidth":true,"portMappings":true,"io.x/y":true}}`,
			`{"mac":null,"bandwidth":false,"portMappings":[],"io.x/y":{}}`, nil, false},
		{"a runtimeConfig in the configuration is replaced", "1.0.0",
			`{"type":"x","runtimeConfig":{"old":1},"capabilities":{"mac":true}}`, `{"mac":"02::1"}`, nil, false},
		{"and left as it is if the plugin has no share", "1.0.0", `{"type":"x","runtimeConfig":{"old":1}}`, `{"mac":"02::1"}`, nil, false},
		{"name, cniVersion and prevResult in the configuration are replaced", "1.0.0",
			`{"type":"x","name":"other","cniVersion":"0.1.0","prevResult":{"old":1}}`, ``, nil, false},
		{"what HTML and JavaScript would trip over", "1.0.0",
			`{"type":"x","a":"<&>\u2028","capabilities":{"mac":true,"io.x/y":true}}`, `{"mac":"<&>\u2028\u00e9","io.x/y":{"<":"&"}}`, nil, false},
		{"nested values", "1.0.0", `{"type":"x","z":[{"b":[],"a":{}},null,true,1.50,1e3],"ipam":{"type":"host-local","ranges":[[{"subnet":"10.0.0.0/24"}]]}}`, ``, nil, false},
		{"a DEL without prevResult", "0.3.1", `{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}`, `{"portMappings":[]}`, nil, false},
		{"a prevResult in the configuration when none comes", "0.3.1", `{"type":"x","prevResult":{"old":1}}`, ``, nil, false},
		{"the oldest result", "0.2.0", `{"type":"bridge"},{"type":"x"}`, ``, nil, false},
		{"the newest version", "1.1.0", `{"type":"bridge"},{"type":"x"}`, ``, nil, false},
		{"a plugin added from the network's directory", "1.0.0", `{"type":"bridge"}`, `{"mac":"02::1"}`,
			map[string]string{"web/1.conf": "{\n \"type\": \"x\", \"z\": {\"b\": 1.0, \"a\": \"<\"},\n \"capabilities\": {\"mac\": true}\n}\n"}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{"x.conflist": `{"name":"web","cniVersion":"` + row.version + `","plugins":[` + ours + row.plugins + `]}`}
			for name, content := range row.added {
				files[name] = content
			}
			dir := confDir(t, files)
			list, err := libcni.LoadNetworkConf(dir, "web")
			if err != nil {
				t.Fatal(err)
			}
			rt := &libcni.RuntimeConf{
				ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0",
				Args: [][2]string{{"IgnoreUnknown", "1"}, {"B", "\xff"}, {"A", ""}},
			}
			if row.capabilities != "" {
				if err := json.Unmarshal([]byte(row.capabilities), &rt.CapabilityArgs); err != nil {
					t.Fatal(err)
				}
			}
			var add, del recorder
			cache := filepath.Join(dir, "cache")
			if _, err := libcni.NewCNIConfigWithCacheDir([]string{"/a", "/b"}, cache, &add).AddNetworkList(t.Context(), list, rt); err != nil {
				t.Fatal(err)
			}
			if err := libcni.NewCNIConfigWithCacheDir([]string{"/a", "/b"}, cache, &del).DelNetworkList(t.Context(), list, rt); err != nil {
				t.Fatal(err)
			}
			slices.Reverse(del.calls)

			found, err := Load(dir, "web")
			if err != nil {
				t.Fatal(err)
			}
			for command, calls := range map[string][]recorded{"ADD": add.calls, "DEL": del.calls} {
				if len(calls) != len(found.Plugins) || len(calls) < 2 {
					t.Fatalf("libcni made %d calls, we know of %d plugins", len(calls), len(found.Plugins))
				}
				var stanza struct {
					Name          string                     `json:"name"`
					CNIVersion    string                     `json:"cniVersion"`
					RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
					PrevResult    json.RawMessage            `json:"prevResult"`
				}
				if err := json.Unmarshal(calls[0].request, &stanza); err != nil {
					t.Fatal(err)
				}
				call := Call{
					Network: stanza.Name, CNIVersion: stanza.CNIVersion,
					ContainerID: "c1", IfName: "eth0", NetNS: "/run/netns/c1",
					Args: "IgnoreUnknown=1;B=\xff;A=", Path: "/a:/b",
					RuntimeConfig: stanza.RuntimeConfig, PrevResult: stanza.PrevResult,
				}
				for i := range calls {
					if command == "ADD" && i > 0 {
						// The one that the plugin before it has printed.
						var given struct {
							PrevResult json.RawMessage `json:"prevResult"`
						}
						if err := json.Unmarshal(calls[i].request, &given); err != nil {
							t.Fatal(err)
						}
						call.PrevResult = given.PrevResult
					}
					request, err := call.Request(found.Plugins[i])
					if err != nil {
						t.Fatal(err)
					}
					same := string(request) == string(calls[i].request)
					if row.asValues && !same {
						same = reflect.DeepEqual(value(t, request), value(t, calls[i].request))
					}
					if !same {
						t.Errorf("%s of %s: the request is\n%s\nlibcni sends\n%s", command, calls[i].plugin, request, calls[i].request)
					}
					if env := cniVariables(call.environment(command).AsEnv()); !slices.Equal(env, calls[i].env) {
						t.Errorf("%s of %s: the environment is\n%q\nlibcni's is\n%q", command, calls[i].plugin, env, calls[i].env)
					}
				}
			}
		})
	}
}

func value(t testing.TB, raw []byte) (v any) {
	t.Helper()
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestWhatCameAsJSONIsHandedOnAsItCame(t *testing.T) {
	t.Parallel()
	p, err := Parse(json.RawMessage(`{"type":"x","n":9007199254740993,"f":1.0,"s":"<","capabilities":{"b":true,"a":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	request, err := Call{
		Network: "web", CNIVersion: "1.0.0",
		RuntimeConfig: map[string]json.RawMessage{"a": json.RawMessage(`[9007199254740993,1e400,-0,"<"]`), "b": json.RawMessage(`{"z":1,"a":2}`), "c": json.RawMessage(`1`)},
		PrevResult:    json.RawMessage(`{"z":9007199254740993,"a":"&"}`),
	}.Request(p)
	const want = `{"capabilities":{"b":true,"a":true},"cniVersion":"1.0.0","f":1.0,"n":9007199254740993,"name":"web",` +
		`"prevResult":{"z":9007199254740993,"a":"&"},"runtimeConfig":{"a":[9007199254740993,1e400,-0,"<"],"b":{"z":1,"a":2}},"s":"<","type":"x"}`
	if err != nil || string(request) != want {
		t.Errorf("the request is\n%s, %v\nwant\n%s", request, err, want)
	}
	if string(p.Config) != `{"type":"x","n":9007199254740993,"f":1.0,"s":"<","capabilities":{"b":true,"a":true}}` {
		t.Errorf("the configuration has become %s", p.Config)
	}
}

func TestRequestOfAConfigurationThatIsNoObject(t *testing.T) {
	t.Parallel()
	if request, err := (Call{}).Request(Plugin{Type: "x", Config: json.RawMessage(`[]`)}); err == nil || !strings.Contains(err.Error(), "plugin x") {
		t.Errorf("Request: %s, %v; want an error that names the plugin", request, err)
	}
}
