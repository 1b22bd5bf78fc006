package stanza

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// coded fails the test unless err is a *types.Error with this code that
// mentions every one of words.
func coded(t testing.TB, err error, code uint, words ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("the error is %T %v, want code %d", err, err, code)
		return
	}
	for _, word := range words {
		if !strings.Contains(e.Error(), word) {
			t.Errorf("the error does not mention %q: %v", word, err)
		}
	}
}

func mustParse(t testing.TB, config string) *Stanza {
	t.Helper()
	s, err := Parse([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Not parallel: it sets a variable.
func TestWhatAStanzaLeavesOutHasADefault(t *testing.T) {
	three, none := 3, 0
	for _, row := range []struct {
		name, netconfpath, config string
		want                      Stanza
	}{
		{"nothing but the type", "", `{"type":"durable-args"}`, Stanza{
			Type: "durable-args", Position: "first", DataDir: "/var/lib/durable-args", ConfDir: "/etc/cni/net.d", CacheDir: "/var/lib/cni", ReplayAttempts: &three,
		}},
		{"a confDir that is in the environment", "/from/environment", `{}`, Stanza{
			Position: "first", DataDir: "/var/lib/durable-args", ConfDir: "/from/environment", CacheDir: "/var/lib/cni", ReplayAttempts: &three,
		}},
		{"empty and null values", "", `{"position":"","dataDir":"","confDir":null,"cacheDir":"","replayAttempts":null,"plugins":null,"runtimeConfig":null,"prevResult":null}`, Stanza{
			Position: "first", DataDir: "/var/lib/durable-args", ConfDir: "/etc/cni/net.d", CacheDir: "/var/lib/cni", ReplayAttempts: &three,
		}},
		{"nothing", "/from/environment", `{
			"type":"durable-args","position":"last","dataDir":"/data//dir/","confDir":"/conf","cacheDir":"/cache","replayAttempts":0,"allowVolatile":true,
			"capabilities":{"mac":true,"ips":false},"name":"web","cniVersion":"1.0.0","unknown":{},
			"runtimeConfig":{"mac":9007199254740993},"prevResult": { "a":1.0 }
			}`, Stanza{
			Type: "durable-args", Position: "last", DataDir: "/data/dir", ConfDir: "/conf", CacheDir: "/cache", ReplayAttempts: &none, AllowVolatile: true,
			Capabilities: map[string]bool{"mac": true, "ips": false}, Name: "web", CNIVersion: "1.0.0",
			RuntimeConfig: []byte(`{"mac":9007199254740993}`), PrevResult: []byte(`{ "a":1.0 }`),
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Setenv("NETCONFPATH", row.netconfpath)
			if got := mustParse(t, row.config); !reflect.DeepEqual(*got, row.want) {
				t.Errorf("it is read as\n%+v, want\n%+v", *got, row.want)
			}
		})
	}
}

func TestTheLayoutOfAStanza(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, config, want string }{
		{"neither a position nor plugins", `{}`, First},
		{"position first", `{"position":"first"}`, First},
		{"position last", `{"position":"last"}`, Last},
		{"plugins", `{"plugins":[{"type":"bridge"}]}`, Wrapped},
		{"plugins and position first", `{"position":"first","plugins":[{"type":"bridge"}]}`, Wrapped},
		{"no plugins in the list", `{"plugins":[]}`, First},
		{"no plugins in the list, and position last", `{"position":"last","plugins":[]}`, Last},
	} {
		if got := mustParse(t, row.config).Layout(); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

func TestAStanzaThatCannotBeDecoded(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, config, mentions string }{
		{"nothing", ``, "unexpected end"},
		{"no JSON", `{"type":`, "unexpected end"},
		{"a list", `[]`, "array"},
		{"a position that is a number", `{"position":1}`, "position"},
		{"a dataDir that is a list", `{"dataDir":["/data"]}`, "dataDir"},
		{"a confDir that is a boolean", `{"confDir":true}`, "confDir"},
		{"a cacheDir that is a number", `{"cacheDir":1}`, "cacheDir"},
		{"tries that are a string", `{"replayAttempts":"3"}`, "replayAttempts"},
		{"tries that are a fraction", `{"replayAttempts":1.5}`, "replayAttempts"},
		{"capabilities that are a list", `{"capabilities":["portMappings"]}`, "capabilities"},
		{"a capability that is a string", `{"capabilities":{"portMappings":"yes"}}`, "capabilities"},
		{"plugins that are an object", `{"plugins":{"type":"bridge"}}`, "plugins"},
		{"a string for a boolean", `{"allowVolatile":"true"}`, "allowVolatile"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s, err := Parse([]byte(row.config))
			if s != nil {
				t.Errorf("it is read as %+v", *s)
			}
			coded(t, err, types.ErrDecodingFailure, "durable-args stanza", row.mentions)
		})
	}
}

func TestAStanzaThatMakesNoSenseSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, config string
		mentions     []string
	}{
		{"a position that does not exist", `{"position":"middle"}`, []string{`"middle"`, `"first"`, `"last"`}},
		{"a position in capitals", `{"position":"Last"}`, []string{`"Last"`, `"last"`}},
		{"a chain in the last position", `{"position":"last","plugins":[{"type":"bridge"}]}`, []string{`"plugins"`, `"position": "last"`}},
		{"a relative dataDir", `{"dataDir":"data"}`, []string{`dataDir "data"`, "absolute"}},
		{"a relative confDir", `{"confDir":"./conf"}`, []string{`confDir "./conf"`, "absolute"}},
		{"a relative cacheDir", `{"cacheDir":"../cache"}`, []string{`cacheDir "../cache"`, "absolute"}},
		{"less than no tries", `{"replayAttempts":-1}`, []string{"replayAttempts", "negative"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s, err := Parse([]byte(row.config))
			if s != nil {
				t.Errorf("it is read as %+v", *s)
			}
			coded(t, err, types.ErrInvalidNetworkConfig, append(row.mentions, "durable-args stanza")...)
		})
	}
}
