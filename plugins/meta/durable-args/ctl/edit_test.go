package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

// inserted returns a conflist with our stanzas, or the error of whoever refuses
// it.
func inserted(text, layout string) (string, error) {
	c, err := parseConflist([]byte(text))
	if err != nil {
		return "", err
	}
	plugins, err := c.plugins()
	if err != nil {
		return "", err
	}
	edits, err := c.insertion(layout, capabilitiesOf(plugins), directories{})
	return string(apply(c.text, edits)), err
}

// removed returns a conflist without our stanzas.
func removed(text string) (string, error) {
	c, err := parseConflist([]byte(text))
	if err != nil {
		return "", err
	}
	edits, err := c.removal()
	return string(apply(c.text, edits)), err
}

// styles are ways to write a conflist, and what each layout makes of them.
var styles = []struct {
	name, text                string
	first, firstLast, wrapped string
}{{
	name:      "all on one line, no space, no newline at the end",
	text:      `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"bridge","isGateway":true},{"type":"portmap","capabilities":{"portMappings":true}}]}`,
	first:     `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"durable-args","capabilities":{"portMappings":true}},{"type":"bridge","isGateway":true},{"type":"portmap","capabilities":{"portMappings":true}}]}`,
	firstLast: `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"durable-args","capabilities":{"portMappings":true}},{"type":"bridge","isGateway":true},{"type":"portmap","capabilities":{"portMappings":true}},{"type":"durable-args","position":"last","capabilities":{"portMappings":true}}]}`,
	wrapped:   `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"durable-args","capabilities":{"portMappings":true},"plugins":[{"type":"bridge","isGateway":true},{"type":"portmap","capabilities":{"portMappings":true}}]}]}`,
}, {
	name:      "all on one line, spaced, one plugin",
	text:      `{ "name": "web", "plugins": [ { "type": "bridge" } ] }` + "\n",
	first:     `{ "name": "web", "plugins": [ { "type": "durable-args" }, { "type": "bridge" } ] }` + "\n",
	firstLast: `{ "name": "web", "plugins": [ { "type": "durable-args" }, { "type": "bridge" }, { "type": "durable-args", "position": "last" } ] }` + "\n",
	wrapped:   `{ "name": "web", "plugins": [ { "type": "durable-args", "plugins": [ { "type": "bridge" } ] } ] }` + "\n",
}, {
	name: "two spaces",
	text: `{
  "name": "web",
  "plugins": [
    {
      "type": "bridge",
      "ipam": {
        "type": "host-local"
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
`,
	first: `{
  "name": "web",
  "plugins": [
    {
      "type": "durable-args",
      "capabilities": {"portMappings": true}
    },
    {
      "type": "bridge",
      "ipam": {
        "type": "host-local"
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
`,
	firstLast: `{
  "name": "web",
  "plugins": [
    {
      "type": "durable-args",
      "capabilities": {"portMappings": true}
    },
    {
      "type": "bridge",
      "ipam": {
        "type": "host-local"
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    },
    {
      "type": "durable-args",
      "position": "last",
      "capabilities": {"portMappings": true}
    }
  ]
}
`,
	wrapped: `{
  "name": "web",
  "plugins": [
    {
      "type": "durable-args",
      "capabilities": {"portMappings": true},
      "plugins": [
        {
          "type": "bridge",
          "ipam": {
            "type": "host-local"
          }
        },
        {
          "type": "portmap",
          "capabilities": {
            "portMappings": true
          }
        }
      ]
    }
  ]
}
`,
}, {
	name:      "tabs and CRLF, plugins last but one, blank lines",
	text:      "{\r\n\t\"plugins\": [\r\n\t\t{\r\n\t\t\t\"type\": \"bridge\"\r\n\t\t},\r\n\r\n\t\t{\r\n\t\t\t\"type\": \"tuning\"\r\n\t\t}\r\n\t],\r\n\t\"name\": \"web\"\r\n}\r\n",
	first:     "{\r\n\t\"plugins\": [\r\n\t\t{\r\n\t\t\t\"type\": \"durable-args\"\r\n\t\t},\r\n\r\n\t\t{\r\n\t\t\t\"type\": \"bridge\"\r\n\t\t},\r\n\r\n\t\t{\r\n\t\t\t\"type\": \"tuning\"\r\n\t\t}\r\n\t],\r\n\t\"name\": \"web\"\r\n}\r\n",
	firstLast: "{\r\n\t\"plugins\": [\r\n\t\t{\r\n\t\t\t\"type\": \"durable-args\"\r\n\t\t},\r\n\r\n\t\t{\r\n\t\t\t\"type\": \"bridge\"\r\n\t\t},\r\n\r\n\t\t{\r\n\t\t\t\"type\": \"tuning\"\r\n\t\t},\r\n\r\n\t\t{\r\n\t\t\t\"type\": \"durable-args\",\r\n\t\t\t\"position\": \"last\"\r\n\t\t}\r\n\t],\r\n\t\"name\": \"web\"\r\n}\r\n",
	wrapped:   "{\r\n\t\"plugins\": [\r\n\t\t{\r\n\t\t\t\"type\": \"durable-args\",\r\n\t\t\t\"plugins\": [\r\n\t\t\t\t{\r\n\t\t\t\t\t\"type\": \"bridge\"\r\n\t\t\t\t},\r\n\r\n\t\t\t\t{\r\n\t\t\t\t\t\"type\": \"tuning\"\r\n\t\t\t\t}\r\n\t\t\t]\r\n\t\t}\r\n\t],\r\n\t\"name\": \"web\"\r\n}\r\n",
}, {
	name: "a plugin a line, four spaces, no newline at the end",
	text: `{
    "name": "web",
    "plugins": [
        {"type": "bridge", "vlan": 1e2},
        {"type": "portmap", "capabilities": {"portMappings": true, "mac": false}}
    ]
}`,
	first: `{
    "name": "web",
    "plugins": [
        {"type": "durable-args", "capabilities": {"portMappings": true}},
        {"type": "bridge", "vlan": 1e2},
        {"type": "portmap", "capabilities": {"portMappings": true, "mac": false}}
    ]
}`,
	firstLast: `{
    "name": "web",
    "plugins": [
        {"type": "durable-args", "capabilities": {"portMappings": true}},
        {"type": "bridge", "vlan": 1e2},
        {"type": "portmap", "capabilities": {"portMappings": true, "mac": false}},
        {"type": "durable-args", "position": "last", "capabilities": {"portMappings": true}}
    ]
}`,
	wrapped: `{
    "name": "web",
    "plugins": [
        {"type": "durable-args", "capabilities": {"portMappings": true}, "plugins": [
            {"type": "bridge", "vlan": 1e2},
            {"type": "portmap", "capabilities": {"portMappings": true, "mac": false}}
        ]}
    ]
}`,
}, {
	name: "brackets together",
	text: `{
 "name" : "web",
 "plugins" : [{
   "type" : "bandwidth",
   "capabilities" : {"bandwidth" : true}
 }, {
   "type" : "portmap",
   "capabilities" : {"portMappings" : true}
 }]
}
`,
	first: `{
 "name" : "web",
 "plugins" : [{
   "type" : "durable-args",
   "capabilities" : {"bandwidth" : true, "portMappings" : true}
 }, {
   "type" : "bandwidth",
   "capabilities" : {"bandwidth" : true}
 }, {
   "type" : "portmap",
   "capabilities" : {"portMappings" : true}
 }]
}
`,
	firstLast: `{
 "name" : "web",
 "plugins" : [{
   "type" : "durable-args",
   "capabilities" : {"bandwidth" : true, "portMappings" : true}
 }, {
   "type" : "bandwidth",
   "capabilities" : {"bandwidth" : true}
 }, {
   "type" : "portmap",
   "capabilities" : {"portMappings" : true}
 }, {
   "type" : "durable-args",
   "position" : "last",
   "capabilities" : {"bandwidth" : true, "portMappings" : true}
 }]
}
`,
	wrapped: `{
 "name" : "web",
 "plugins" : [{
   "type" : "durable-args",
   "capabilities" : {"bandwidth" : true, "portMappings" : true},
   "plugins" : [{
     "type" : "bandwidth",
     "capabilities" : {"bandwidth" : true}
   }, {
     "type" : "portmap",
     "capabilities" : {"portMappings" : true}
   }]
 }]
}
`,
}}

func TestInsertedTexts(t *testing.T) {
	t.Parallel()
	for _, s := range styles {
		for layout, want := range map[string]string{stanza.First: s.first, firstLast: s.firstLast, stanza.Wrapped: s.wrapped} {
			t.Run(s.name+"/"+layout, func(t *testing.T) {
				got, err := inserted(s.text, layout)
				if err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("inserted:\n%s\nwant:\n%s", got, want)
				}
				checkUndone(t, s.text, layout)
			})
		}
	}
}

// oddities are conflists that are valid, and easily spoiled.
var oddities = map[string]string{
	"lone carriage returns":         "{\r\"name\":\"web\",\r\"plugins\":[\r{\"type\":\"bridge\"\r},\r{\"type\":\"b\"}\r\r\n\r\r\n]\r}",
	"lines of white space":          "{\"name\":\"web\",\n  \"plugins\":\n  [\n\n    \n  {\n    \"type\":\"bridge\"\n \t \n},  \n\t\n{\"type\":\"b\"\n}\n\n]}\n\n\n",
	"tabs after spaces":             "{\n \"name\": \"web\",\n \"plugins\": [\n\t{\n\t \"type\": \"bridge\"\n\t}\n ]\n}",
	"inner lines further left":      "{\n      \"name\": \"web\",\n      \"plugins\": [\n    {\n  \"type\": \"bridge\"\n}\n]\n}",
	"numbers as they are spelled":   `{"name":"web","plugins":[{"type":"bridge","a":9007199254740993,"b":1.0,"c":1E+2,"d":-0,"e":123456789012345678901234567890}]}`,
	"escapes":                       `{"n\u0061me":"web","plu\u0067ins":[{"t\u0079pe":"bri\u0064ge","a":"\u00e9\ud83d\ude00\/\"[{,]}\\","é":"<&>"}]}`,
	"bytes that are not UTF-8":      "{\"name\":\"web\",\"plugins\":[{\"type\":\"bridge\",\"a\":\"\xff\xfe\"}]}",
	"nested arrays":                 `{"name":"web","x":[[{"plugins":[]}]],"plugins":[{"type":"bridge","ranges":[[{"subnet":"10.0.0.0/24"}],[]],"plugins":[[]]}]}`,
	"a key twice in a plugin":       `{"name":"web","plugins":[{"type":"a","type":"bridge","capabilities":{"mac":true},"capabilities":{"ips":true}}]}`,
	"a key twice beside plugins":    `{"name":"a","name":"web","plugins":[{"type":"bridge"}]}`,
	"keys in other cases":           `{"name":"web","Plugins":1,"plugins":[{"Type":"bridge","CAPABILITIES":{"mac":true}}]}`,
	"a capability with an odd name": `{"name":"web","plugins":[{"type":"bridge","capabilities":{"a\"b\\<[]>\u0001":true}}]}`,
	"a key and its value on lines":  "{\"name\":\"web\",\"plugins\"\n:\n[\n{\"type\"\n:\n\"bridge\"\n,\n\"a\"\n:\n1\n}\n]\n}",
	"white space around everything": " \n\t{ \"name\" : \"web\" , \"plugins\" : [ { \"type\" : \"bridge\" } , { \"type\" : \"b\" } ] } \n ",
	"a last plugin of another kind": "{\"name\": \"web\", \"plugins\": [{\n  \"type\": \"bridge\"}, {\"type\": \"b\"}]}",
}

func TestInsertIsUndone(t *testing.T) {
	t.Parallel()
	for name, text := range oddities {
		for _, layout := range layouts {
			t.Run(name+"/"+layout, func(t *testing.T) { checkUndone(t, text, layout) })
		}
	}
}

// checkUndone inserts into a conflist without our stanzas, and checks all that
// is promised of the result.
func checkUndone(t *testing.T, text, layout string) {
	t.Helper()
	with, err := inserted(text, layout)
	if err != nil {
		t.Fatalf("insert: %v", err)
	}
	before, err := parseConflist([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	after, err := parseConflist([]byte(with))
	if err != nil {
		t.Fatalf("what was inserted cannot be read: %v\n%s", err, with)
	}
	if err := before.sameBut(after); err != nil {
		t.Errorf("%v:\n%s", err, with)
	}
	if is, err := after.layout(); is != layout {
		t.Errorf("the layout is %q, %v:\n%s", is, err, with)
	}
	if again, err := inserted(with, layout); err != nil || again != with {
		t.Errorf("a second insert makes of\n%s\nthis, and %v:\n%s", with, err, again)
	}
	if without, err := removed(with); err != nil || without != text {
		t.Errorf("remove makes of\n%q\nthis, and %v:\n%q\nwant:\n%q", with, err, without, text)
	}
	if without, err := removed(text); err != nil || without != text {
		t.Errorf("remove changes a conflist without stanzas, and %v:\n%s", err, without)
	}
}

func TestStanzasThatAreThere(t *testing.T) {
	t.Parallel()
	const portmap = `{"type": "portmap", "capabilities": {"portMappings": true, "mac": true}}`
	for _, row := range []struct{ name, plugins, want string }{
		{"all is said", `[{"type": "durable-args", "dataDir": "/d", "capabilities": {"mac": true, "x": true, "portMappings": true}}, ` + portmap + `]`, ""},
		{"no capabilities", `[{"type": "durable-args", "dataDir": "/d"}, ` + portmap + `]`,
			`[{"type": "durable-args", "capabilities": {"mac": true, "portMappings": true}, "dataDir": "/d"}, ` + portmap + `]`},
		{"one is missing", `[{"type": "durable-args", "capabilities": { "mac": true }}, ` + portmap + `]`,
			`[{"type": "durable-args", "capabilities": { "mac": true, "portMappings": true }}, ` + portmap + `]`},
		{"one is false", `[{"type":"durable-args","capabilities":{"portMappings":true,"mac":false}},` + portmap + `]`,
			`[{"type":"durable-args","capabilities":{"portMappings":true,"mac":true}},` + portmap + `]`},
		{"one is false and one is missing", `[{"type":"durable-args","capabilities":{"mac":false}},` + portmap + `]`,
			`[{"type":"durable-args","capabilities":{"mac":true,"portMappings":true}},` + portmap + `]`},
		{"they are null", `[{"capabilities": null, "type": "durable-args"}, ` + portmap + `]`,
			`[{"capabilities": {"mac": true, "portMappings": true}, "type": "durable-args"}, ` + portmap + `]`},
		{"they are empty", `[{"type": "durable-args", "capabilities": { }}, ` + portmap + `]`,
			`[{"type": "durable-args", "capabilities": {"mac": true, "portMappings": true}}, ` + portmap + `]`},
		{"a line each", "[{\n\t\"type\": \"durable-args\",\n\t\"capabilities\": {\n\t\t\"mac\": true\n\t}\n}, " + portmap + "]",
			"[{\n\t\"type\": \"durable-args\",\n\t\"capabilities\": {\n\t\t\"mac\": true,\n\t\t\"portMappings\": true\n\t}\n}, " + portmap + "]"},
		{"the last lacks one", `[{"type": "durable-args", "capabilities": {"mac": true, "portMappings": true}}, ` + portmap + `, {"type": "durable-args", "position": "last", "capabilities": {"mac": true}}]`,
			`[{"type": "durable-args", "capabilities": {"mac": true, "portMappings": true}}, ` + portmap + `, {"type": "durable-args", "position": "last", "capabilities": {"mac": true, "portMappings": true}}]`},
		{"a wrapped one lacks one", `[{"type": "durable-args", "capabilities": {"mac": true}, "dataDir": "/d", "plugins": [` + portmap + `]}]`,
			`[{"type": "durable-args", "capabilities": {"mac": true, "portMappings": true}, "dataDir": "/d", "plugins": [` + portmap + `]}]`},
	} {
		t.Run(row.name, func(t *testing.T) {
			around := func(plugins string) string { return `{"name": "web", "plugins": ` + plugins + `}` }
			if row.want == "" {
				row.want = row.plugins
			}
			got, err := inserted(around(row.plugins), "")
			if err != nil || got != around(row.want) {
				t.Errorf("insert makes\n%s\nwant\n%s\nerror %v", got, around(row.want), err)
			}
			want, err := removed(around(row.plugins))
			if err != nil {
				t.Fatal(err)
			}
			if without, err := removed(got); err != nil || without != want || strings.Contains(want, pluginType) {
				t.Errorf("remove makes\n%s\nof it, and of what was there before\n%s\nerror %v", without, want, err)
			}
		})
	}
}

func TestRemoveByHand(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, plugins, want string }{
		{"a stanza in the middle", `[{"type": "a"}, {"type": "durable-args"},   {"type": "b"}]`, `[{"type": "a"}, {"type": "b"}]`},
		{"several at the beginning", `[{"type": "durable-args"}, {"type": "durable-args"}, {"type": "b"} ]`, `[{"type": "b"} ]`},
		{"several at the end", `[ {"type": "b"}, {"type": "durable-args"}, {"type": "durable-args", "position": "last"} ]`, `[ {"type": "b"} ]`},
		{"everywhere", `[{"type": "durable-args"},{"type": "a"},{"type": "durable-args"},{"type": "b"},{"type": "durable-args"}]`, `[{"type": "a"},{"type": "b"}]`},
		{"empty plugins in it", `[{"type": "durable-args", "plugins": []}, {"type": "a"}]`, `[{"type": "a"}]`},
		{"wrapped and indented anew", "[\n  {\"type\": \"durable-args\",\n   \"plugins\": [\n     {\"type\": \"a\"}\n   ]}\n]", "[\n  {\"type\": \"a\"}\n]"},
		{"nothing else", `[{"type": "durable-args"}]`, "error: it is the only plugin"},
		{"wrapped, but not alone", `[{"type": "durable-args", "plugins": [{"type": "a"}]}, {"type": "b"}]`, "error: move them out by hand"},
		{"plugins twice", `[{"type": "durable-args", "plugins": [{"type": "a"}], "Plugins": [{"type": "a"}]}]`, "error: take one out"},
	} {
		t.Run(row.name, func(t *testing.T) {
			got, err := removed(`{"name":"web","plugins":` + row.plugins + `}`)
			if words, isError := strings.CutPrefix(row.want, "error: "); isError {
				words = strings.TrimPrefix(words, "it is ")
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("%v, want an error that says %q", err, words)
				}
			} else if want := `{"name":"web","plugins":` + row.want + `}`; err != nil || got != want {
				t.Errorf("it is\n%s\nwant\n%s\nerror %v", got, want, err)
			}
		})
	}
}

func TestConflistsThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, text, want string }{
		{"empty", "", "not JSON: line 1"},
		{"a comment", "{\n  // ours\n  \"name\": \"web\"}", "not JSON: line 2"},
		{"a comma too many", `{"name": "web", "plugins": [{"type": "a"},]}`, "not JSON"},
		{"something behind it", `{"name": "web", "plugins": [{"type": "a"}]} x`, "not JSON"},
		{"a byte order mark", "\xef\xbb\xbf" + `{"name": "web", "plugins": [{"type": "a"}]}`, "byte order mark"},
		{"UTF-16", "\xff\xfe{\x00}\x00", "not JSON"},
		{"an array", `[{"type": "a"}]`, "not a JSON object"},
		{"null", `null`, `it has no "plugins"`},
		{"a single configuration", `{"name": "web", "type": "bridge"}`, "put it into the \"plugins\" of a conflist"},
		{"plugins elsewhere", `{"name": "web", "cniVersion": "1.1.0"}`, "loaded from the directory named after the network"},
		{"no plugins", `{"name": "web", "plugins": []}`, "no plugins in list"},
		{"plugins are no array", `{"name": "web", "plugins": {"type": "a"}}`, "invalid 'plugins' type"},
		{"plugins are null", `{"name": "web", "plugins": null}`, "invalid 'plugins' type"},
		{"a plugin is no object", `{"name": "web", "plugins": [{"type": "a"}, 1]}`, "failed to parse plugin config 1"},
		{"a plugin has no type", `{"name": "web", "plugins": [{"type": "a"}, {}]}`, "missing 'type'"},
		{"plugins twice", `{"name": "web", "plugins": [{"type": "a"}], "plugins": [{"type": "b"}]}`, "more than once"},
		{"plugins twice, once escaped", `{"name": "web", "plugins": [{"type": "a"}], "plu\u0067ins": [{"type": "b"}]}`, "more than once"},
		{"no name", `{"plugins": [{"type": "a"}]}`, "no name"},
		{"an empty name", `{"name": "", "plugins": [{"type": "a"}]}`, "missing network name"},
		{"a name that is a path", `{"name": "../x", "plugins": [{"type": "a"}]}`, "invalid characters"},
		{"a number that is none", `{"name": "web", "plugins": [{"type": "a", "b": 1e999}]}`, "libcni cannot load it"},
		{"a stanza that is broken", `{"name": "web", "plugins": [{"type": "durable-args", "position": "middle"}, {"type": "a"}]}`, "right by hand first"},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, err := parseConflist([]byte(row.text)); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want one that says %q", err, row.want)
			}
		})
	}
}

func FuzzInsertIsUndone(f *testing.F) {
	for _, s := range styles {
		for _, text := range []string{s.text, s.first, s.firstLast, s.wrapped} {
			f.Add([]byte(text))
		}
	}
	for _, text := range oddities {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseConflist(text)
		if err != nil {
			return
		}
		if _, err := c.plugins(); err != nil {
			return
		}
		if len(c.ours()) == 0 {
			for _, layout := range layouts {
				checkUndone(t, string(text), layout)
			}
			return
		}
		without, err := removed(string(text))
		if err != nil {
			return
		}
		with, err := inserted(string(text), "")
		if err != nil {
			return
		}
		if again, err := inserted(with, ""); err != nil || again != with {
			t.Errorf("a second insert makes of\n%q\nthis, and %v:\n%q", with, err, again)
		}
		if got, err := removed(with); err != nil || got != without {
			t.Errorf("removed after an insert it is\n%q\nwithout that\n%q\nerror %v", got, without, err)
		}
		if !json.Valid([]byte(without)) || bytes.Equal(text, []byte(without)) {
			t.Errorf("remove makes of it\n%q", without)
		}
	})
}
