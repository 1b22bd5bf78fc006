package cnicache

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// conflist has what json.Marshal would escape, and spaces that it would drop.
const conflist = `{
  "cniVersion": "VERSION",  "name": "web", "comment": "<a> & é",
  "plugins": [ {"type": "only", "capabilities": {"portMappings": true, "huge": true}} ]
}
`

const result100 = `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/c1"}],
  "ips": [{"interface": 0, "address": "10.88.0.2/16", "gateway": "10.88.0.1"}], "dns": {"nameservers": ["10.0.0.10"]}}`

// onePlugin is a plugin whose ADD answers with result. It notes CNI_ARGS, and
// the runtimeConfig and the result as a stanza behind it would get them.
type onePlugin struct {
	version.PluginDecoder
	result        string
	args          string
	runtimeConfig json.RawMessage
}

func (p *onePlugin) FindInPath(plugin string, _ []string) (string, error) { return plugin, nil }

func (p *onePlugin) ExecPlugin(_ context.Context, _ string, stdin []byte, environ []string) ([]byte, error) {
	for _, kv := range environ {
		if args, ok := strings.CutPrefix(kv, "CNI_ARGS="); ok {
			p.args = args
		}
	}
	var request struct {
		RuntimeConfig json.RawMessage `json:"runtimeConfig"`
	}
	err := json.Unmarshal(stdin, &request)
	p.runtimeConfig = request.RuntimeConfig
	return []byte(p.result), err
}

var _ invoke.Exec = (*onePlugin)(nil)

// TestAsLibcniWrites lets libcni run an ADD, and compares the file that it has
// written with the one that Write makes of what the plugins have seen.
func TestAsLibcniWrites(t *testing.T) {
	rt := func(change func(rt *libcni.RuntimeConf)) *libcni.RuntimeConf {
		rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0"}
		change(rt)
		return rt
	}
	for name, test := range map[string]struct {
		version, result string
		rt              *libcni.RuntimeConf
	}{
		"nothing but a result": {"1.0.0", result100, rt(func(*libcni.RuntimeConf) {})},
		"no network namespace": {"1.0.0", result100, rt(func(rt *libcni.RuntimeConf) { rt.NetNS = "" })},
		"args": {"1.0.0", result100, rt(func(rt *libcni.RuntimeConf) {
			rt.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "web-0"}, {"EMPTY", ""}}
		})},
		"args with a semicolon, an equals sign, markup or no UTF-8 in a value": {"1.0.0", result100, rt(func(rt *libcni.RuntimeConf) {
			rt.Args = [][2]string{{"A", "1;2;"}, {"B", "x=y"}, {"C", "<&>"}, {"D", "\xff\xfe"}, {"E", ";"}}
		})},
		"capability args": {"1.0.0", result100, rt(func(rt *libcni.RuntimeConf) {
			rt.CapabilityArgs = map[string]any{
				"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
				"huge":         []any{uint64(1<<64 - 1), 1e21, "<&>", nil},
			}
		})},
		"the first version":                        {"0.1.0", `{"ip4": {"ip": "10.88.0.2/16"}}`, rt(func(*libcni.RuntimeConf) {})},
		"version 0.2.0":                            {"0.2.0", `{"cniVersion": "0.2.0", "ip4": {"ip": "10.88.0.2/16"}}`, rt(func(*libcni.RuntimeConf) {})},
		"version 0.4.0":                            {"0.4.0", `{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.88.0.2/16"}]}`, rt(func(*libcni.RuntimeConf) {})},
		"version 1.1.0":                            {"1.1.0", strings.Replace(result100, "1.0.0", "1.1.0", 1), rt(func(*libcni.RuntimeConf) {})},
		"a result of another version than asked":   {"1.0.0", `{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.88.0.2/16"}]}`, rt(func(*libcni.RuntimeConf) {})},
		"a result that says nothing but a version": {"1.0.0", `{"cniVersion": "1.0.0"}`, rt(func(*libcni.RuntimeConf) {})},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := libcni.NetworkConfFromBytes([]byte(strings.Replace(conflist, "VERSION", test.version, 1)))
			if err != nil {
				t.Fatal(err)
			}
			theirs, ours := t.TempDir(), t.TempDir()
			plugin := &onePlugin{result: test.result}
			result, err := libcni.NewCNIConfigWithCacheDir(nil, theirs, plugin).AddNetworkList(t.Context(), list, test.rt)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := json.Marshal(result) // what the next plugin would get
			if err != nil {
				t.Fatal(err)
			}
			a := Attachment{
				ID:             ID{"web", test.rt.ContainerID, test.rt.IfName},
				NetNS:          test.rt.NetNS,
				Config:         list.Bytes,
				Args:           ParseArgs(plugin.args),
				CapabilityArgs: plugin.runtimeConfig,
				Result:         raw,
			}
			if err := Write(ours, a); err != nil {
				t.Fatal(err)
			}
			name := filepath.Join("results", "web-c1-eth0")
			want, got := decoded(t, filepath.Join(theirs, name)), decoded(t, filepath.Join(ours, name))
			if !reflect.DeepEqual(got, want) {
				t.Errorf("Write has written\n%v\nlibcni has\n%v", got, want)
			}
			for _, mode := range []string{"results", name} {
				want, err1 := os.Stat(filepath.Join(theirs, mode))
				got, err2 := os.Stat(filepath.Join(ours, mode))
				if err1 != nil || err2 != nil || got.Mode() != want.Mode() {
					t.Errorf("%s has mode %v, libcni's %v (%v, %v)", mode, got.Mode(), want.Mode(), err1, err2)
				}
			}
			// However well it compares: it is libcni that has to read it.
			if got, want := readByLibcni(t, ours, list, test.rt), readByLibcni(t, theirs, list, test.rt); !reflect.DeepEqual(got, want) {
				t.Errorf("libcni reads\n%+v\nof its own\n%+v", got, want)
			}
			file, err := Read(theirs, a.ID)
			if err != nil || file.State != Readable || file.Legacy || file.Foreign(a.ID) {
				t.Fatalf("Read of libcni's file: %+v, %v", file, err)
			}
			if fields := a.Differences(*file.Attachment); fields != nil {
				t.Errorf("libcni's file differs in %v", fields)
			}
		})
	}
}

func decoded(t *testing.T, path string) any {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.UseNumber() // the numbers are to be the same to the last digit
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// byLibcni is all that libcni gives of one attachment.
type byLibcni struct {
	Config      string
	RuntimeConf libcni.RuntimeConf
	Result      types.Result
	Attachments []libcni.NetworkAttachment
}

func readByLibcni(t *testing.T, cacheDir string, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) byLibcni {
	t.Helper()
	cni := libcni.NewCNIConfigWithCacheDir(nil, cacheDir, nil)
	known := &libcni.RuntimeConf{ContainerID: rt.ContainerID, IfName: rt.IfName}
	config, cached, err := cni.GetNetworkListCachedConfig(list, known)
	if err != nil || cached == nil {
		t.Fatalf("GetNetworkListCachedConfig: %v, %v", cached, err)
	}
	result, err := cni.GetNetworkListCachedResult(list, known)
	if err != nil || result == nil {
		t.Fatalf("GetNetworkListCachedResult: %v, %v", result, err)
	}
	read := byLibcni{Config: string(config), RuntimeConf: *cached, Result: result}
	for _, container := range []string{"", rt.ContainerID} {
		attachments, err := cni.GetCachedAttachments(container)
		if err != nil || len(attachments) != 1 {
			t.Fatalf("GetCachedAttachments(%q): %v, %v", container, attachments, err)
		}
		read.Attachments = append(read.Attachments, *attachments[0])
	}
	return read
}

func TestEncodeRefusesWhatLibcniCannotRead(t *testing.T) {
	for name, a := range map[string]Attachment{
		"no result":                   {},
		"a result that is no object":  {Result: json.RawMessage(`[]`)},
		"a result of the future":      {Result: json.RawMessage(`{"cniVersion": "9.0.0"}`)},
		"a result of the wrong shape": {Result: json.RawMessage(`{"cniVersion": "1.0.0", "ips": 1}`)},
		"capability args of no shape": {Result: json.RawMessage(result100), CapabilityArgs: json.RawMessage(`[]`)},
	} {
		t.Run(name, func(t *testing.T) {
			if data, err := a.Encode(); err == nil {
				t.Errorf("Encode returned %s", data)
			}
		})
	}
}

func TestParseArgs(t *testing.T) {
	for args, want := range map[string][][2]string{
		"":            nil,
		"A=1":         {{"A", "1"}},
		"A=1;B=2":     {{"A", "1"}, {"B", "2"}},
		"A=1;B=":      {{"A", "1"}, {"B", ""}},
		"A=x=y":       {{"A", "x=y"}},
		"A=1;2;B=3":   {{"A", "1;2"}, {"B", "3"}},
		"A=1;":        {{"A", "1;"}},
		"no pair":     {{"no pair", ""}},
		"A=1;A=1;B=2": {{"A", "1"}, {"A", "1"}, {"B", "2"}},
	} {
		if got := ParseArgs(args); !slices.Equal(got, want) {
			t.Errorf("ParseArgs(%q) = %q, want %q", args, got, want)
		}
	}
}

func TestDifferences(t *testing.T) {
	a := Attachment{
		ID: ID{"web", "c1", "eth0"}, NetNS: "/run/netns/c1", Config: []byte("{}"),
		Args:           [][2]string{{"A", "1"}, {"B", "2"}},
		CapabilityArgs: json.RawMessage(`{"mac": "02:00:00:00:00:01"}`),
		Result:         json.RawMessage(result100),
	}
	for name, test := range map[string]struct {
		change func(cached *Attachment)
		want   []string
	}{
		"none":                            {func(*Attachment) {}, nil},
		"args in another order":           {func(c *Attachment) { c.Args = [][2]string{{"B", "2"}, {"A", "1"}} }, nil},
		"a netns not yet written":         {func(c *Attachment) { c.NetNS = "" }, nil},
		"capability args nobody declares": {func(c *Attachment) { c.CapabilityArgs = json.RawMessage(`{"dns": {}, "mac": "02:00:00:00:00:01"}`) }, nil},
		"an argument lost":                {func(c *Attachment) { c.Args = c.Args[:1] }, []string{"cniArgs"}},
		"all else": {func(c *Attachment) { *c = Attachment{NetNS: "/run/netns/c2"} },
			[]string{"config", "netns", "cniArgs", "capabilityArgs", "result"}},
	} {
		t.Run(name, func(t *testing.T) {
			cached := a
			test.change(&cached)
			if got := a.Differences(cached); !slices.Equal(got, test.want) {
				t.Errorf("Differences = %v, want %v", got, test.want)
			}
		})
	}
	if got := (Attachment{}).Differences(a); !slices.Equal(got, []string{"cniArgs"}) {
		t.Errorf("what is not known differs: %v", got)
	}
}
