package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// conflistRun is one run of insert or remove on a file.
type conflistRun struct {
	stdout, stderr string
	err            error
}

func runOnConflist(args ...string) conflistRun {
	var stdout, stderr bytes.Buffer
	root := newRoot(clearSight)
	root.SetArgs(args)
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	err := root.Execute()
	return conflistRun{stdout.String(), stderr.String(), err}
}

// writeFiles makes a directory with files.
func writeFiles(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func readText(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func namesIn(t testing.TB, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return strings.Join(names, " ")
}

func conflistOf(plugins string) string {
	return `{"cniVersion":"1.0.0","name":"web","plugins":[` + plugins + `]}`
}

// etc makes the stanzas say nothing of where the conflist is.
const etc = "--conf-dir=/etc/cni/net.d"

func TestInsertCommand(t *testing.T) {
	t.Parallel()
	const (
		chain   = `{"type":"bridge"},{"type":"portmap","capabilities":{"portMappings":true}}`
		first   = `{"type":"durable-args","capabilities":{"portMappings":true}},` + chain
		both    = first + `,{"type":"durable-args","position":"last","capabilities":{"portMappings":true}}`
		wrapped = `{"type":"durable-args","capabilities":{"portMappings":true},"plugins":[` + chain + `]}`
		moved   = `{"type":"durable-args","dataDir":"/d","cacheDir":"/c","capabilities":{"portMappings":true}},` + chain
		own     = `{"type":"durable-args","dataDir":"/d","replayAttempts":9,"capabilities":{"portMappings":true}},` + chain
	)
	for _, row := range []struct {
		name, before string
		args         []string
		after        string // as before if empty
		stderr       string
		failure      string
	}{
		{"by itself first and last", chain, nil, both, "the stanzas are put in, layout first-last", ""},
		{"first", chain, []string{"--layout", "first"}, first, "layout first\n", ""},
		{"wrapped", chain, []string{"--layout", "wrapped"}, wrapped, "layout wrapped\n", ""},
		{"again", both, nil, "", "it has the layout first-last already, nothing to do", ""},
		{"again, by name", both, []string{"--layout", "first-last"}, "", "nothing to do", ""},
		{"another layout is there and none is asked for", wrapped, nil, "", "it has the layout wrapped already, nothing to do", ""},
		{"the operator's own stanza", own, []string{"--layout", "first"}, "", "nothing to do", ""},
		{"another layout is asked for", own, []string{"--layout", "wrapped"}, "", "", "it has the layout first; take that out first: durable-argsctl remove"},
		{"stanzas out of place", chain + `,{"type":"durable-args"}`, nil, "", "", "not where they belong; take them out first: durable-argsctl remove"},
		{"other directories", chain, []string{"--layout", "first", "--data-dir", "/d", "--cache-dir", "/x/../c"}, moved, "layout first, with the dataDir /d, with the cacheDir /c\n", ""},
		{"the directories that it has", own, []string{"--data-dir", "/d/", "--cache-dir", "/var/lib/cni"}, "", "nothing to do", ""},
		{"another journal than it has", own, []string{"--data-dir", "/elsewhere"}, "", "", "its stanza has the dataDir /d, not /elsewhere; leave out --data-dir, or take the stanzas out first"},
		{"another cache than it has", own, []string{"--cache-dir", "/elsewhere"}, "", "", "its stanza has the cacheDir /var/lib/cni, not /elsewhere"},
		{"the usual directories", chain, []string{"--data-dir", "/var/lib/durable-args", "--cache-dir", "/var/lib/cni"}, both, "layout first-last\n", ""},
		{"a capability is missing", `{"type":"durable-args"},` + chain, nil, first, "the capabilities that its stanzas lacked are added", ""},

		{"a plugin that rejects a prevResult", `{"type":"loopback"}`, nil, "", "", "better wrapped: durable-argsctl insert --layout wrapped"},
		{"the same, insisted upon", `{"type":"loopback"}`, []string{"--layout", "first"}, `{"type":"durable-args"},{"type":"loopback"}`, "it is better wrapped\n", ""},
		{"the same, wrapped", `{"type":"loopback"}`, []string{"--layout", "wrapped"}, `{"type":"durable-args","plugins":[{"type":"loopback"}]}`, "layout wrapped", ""},
		{"a plugin that fails on a second DEL", chain + `,{"type":"host-device"}`, nil, "", "", `plugin "host-device" fails when it is called with DEL a second time, so it is better wrapped`},
		{"the same is there already", `{"type":"durable-args"},{"type":"host-device"}`, nil, "", "it is better wrapped\n", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir := writeFiles(t, map[string]string{"10-web.conflist": conflistOf(row.before)})
			path := filepath.Join(dir, "10-web.conflist")
			if row.after == "" {
				row.after = row.before
			}
			args := append([]string{"insert", etc, path}, row.args...)
			dry := runOnConflist(append(args, "--dry-run")...)
			if got := readText(t, path); got != conflistOf(row.before) {
				t.Fatalf("a dry run has changed it:\n%s", got)
			}
			if shown := strings.Contains(dry.stdout, "+++ "); shown != (row.before != row.after) {
				t.Errorf("a dry run prints\n%s", dry.stdout)
			}
			run := runOnConflist(args...)
			if row.failure != "" {
				for _, err := range []error{run.err, dry.err} {
					if err == nil || !strings.Contains(err.Error(), row.failure) || errors.As(err, new(*usageError)) {
						t.Errorf("error %v, want one that says %q", err, row.failure)
					}
				}
			} else if run.err != nil || dry.err != nil {
				t.Errorf("it fails: %v, with --dry-run %v", run.err, dry.err)
			}
			if !strings.Contains(run.stderr, row.stderr) || run.stdout != "" {
				t.Errorf("stdout %q, stderr %q", run.stdout, run.stderr)
			}
			if got := readText(t, path); got != conflistOf(row.after) {
				t.Errorf("it is\n%s\nwant\n%s", got, conflistOf(row.after))
			}
			if names := namesIn(t, dir); names != "10-web.conflist" {
				t.Errorf("there are %s", names)
			}
		})
	}
}

func TestInsertSaysWhereTheConflistIs(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{"real/web": conflistOf(`{"type":"bridge"}`)})
	link := filepath.Join(dir, "10-web.conflist")
	if err := os.Symlink("real/web", link); err != nil {
		t.Fatal(err)
	}
	run := runOnConflist("insert", link)
	if run.err != nil {
		t.Fatal(run.err)
	}
	// Runtimes find the link, so the stanza names its directory, not the file's.
	want := conflistOf(`{"type":"durable-args","confDir":"` + dir + `"},{"type":"bridge"},{"type":"durable-args","position":"last","confDir":"` + dir + `"}`)
	if got := readText(t, filepath.Join(dir, "real/web")); got != want {
		t.Errorf("it is\n%s\nwant\n%s", got, want)
	}
	for _, words := range []string{"it is a link; the file is " + dir + "/real/web\n", "the stanzas are put in, layout first-last, with the confDir " + dir + "\n"} {
		if !strings.Contains(run.stderr, words) {
			t.Errorf("stderr does not say %q:\n%s", words, run.stderr)
		}
	}
	if target, err := os.Readlink(link); target != "real/web" {
		t.Errorf("the link is %q, %v", target, err)
	}
	if names := namesIn(t, filepath.Join(dir, "real")); names != "web" {
		t.Errorf("there are %s", names)
	}
}

func TestInsertWithPluginsBeside(t *testing.T) {
	t.Parallel()
	const inlined = `{"type":"bridge","capabilities":{"mac":true}}`
	for _, row := range []struct{ name, layout, top, beside, after, stderr string }{
		{"a first stanza protects them, too", "first", "", `{"type":"tc","capabilities":{"bandwidth":true}}`,
			`{"type":"durable-args","capabilities":{"bandwidth":true,"mac":true}},` + inlined, ""},
		{"behind a last stanza", "first-last", "", `{"type":"tc","capabilities":{"bandwidth":true}}`,
			`{"type":"durable-args","capabilities":{"mac":true}},` + inlined + `,{"type":"durable-args","position":"last","capabilities":{"mac":true}}`, "/web come behind the stanza and are not protected"},
		{"behind a wrapped stanza", "wrapped", "", `{"type":"tc"}`,
			`{"type":"durable-args","capabilities":{"mac":true},"plugins":[` + inlined + `]}`, "/web come behind the stanza and are not protected"},
		{"libcni does not load them", "first", `"loadOnlyInlinedPlugins":true,`, `{"type":"tc","capabilities":{"bandwidth":true}}`,
			`{"type":"durable-args","capabilities":{"mac":true}},` + inlined, ""},
		{"one is broken", "first", "", `{`, "", "libcni cannot load it"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			around := func(plugins string) string { return `{"name":"web",` + row.top + `"plugins":[` + plugins + `]}` }
			dir := writeFiles(t, map[string]string{"web.conflist": around(inlined), "web/10-tc.conf": row.beside})
			path := filepath.Join(dir, "web.conflist")
			run := runOnConflist("insert", etc, "--layout", row.layout, path)
			if row.after == "" {
				row.after = inlined
				if run.err == nil || !strings.Contains(run.err.Error(), row.stderr) {
					t.Errorf("error %v", run.err)
				}
			} else if run.err != nil || !strings.Contains(run.stderr, row.stderr) || row.stderr == "" && strings.Contains(run.stderr, "behind") {
				t.Errorf("error %v, stderr %q", run.err, run.stderr)
			}
			if got := readText(t, path); got != around(row.after) {
				t.Errorf("it is\n%s\nwant\n%s", got, around(row.after))
			}
		})
	}
}

func TestInsertAndRemoveRefuse(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{
		"10-web.conf":     conflistOf(`{"type":"bridge"}`),
		"10-web.json":     `{"name":"web","type":"bridge"}`,
		"single.conflist": `{"name":"web","type":"bridge"}`,
		"web.conflist":    conflistOf(`{"type":"bridge"}`),
		"d.conflist/x":    "",
	})
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.conflist"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := namesIn(t, dir)
	for _, row := range []struct {
		name    string
		args    []string
		want    string
		isUsage bool
	}{
		{"a .conf", []string{"10-web.conf"}, "ends in .conflist", false},
		{"a .json", []string{"10-web.json"}, "ends in .conflist", false},
		{"a single configuration", []string{"single.conflist"}, "single configuration", false},
		{"no such file", []string{"none.conflist"}, "no such file", false},
		{"a directory", []string{"d.conflist"}, "no regular file", false},
		{"a pipe", []string{"fifo.conflist"}, "no regular file", false},
		{"no file", nil, "CONFLIST", true},
		{"two files", []string{"web.conflist", "web.conflist"}, "CONFLIST", true},
		{"an unknown flag", []string{"web.conflist", "--yes"}, "unknown flag", true},
	} {
		for _, command := range []string{"insert", "remove"} {
			t.Run(row.name+"/"+command, func(t *testing.T) {
				args := []string{command}
				for _, arg := range row.args {
					if !strings.HasPrefix(arg, "-") {
						arg = filepath.Join(dir, arg)
					}
					args = append(args, arg)
				}
				run := runOnConflist(args...)
				if run.err == nil || !strings.Contains(run.err.Error(), row.want) || errors.As(run.err, new(*usageError)) != row.isUsage {
					t.Errorf("error %v", run.err)
				}
				if run.stdout != "" {
					t.Errorf("stdout %q", run.stdout)
				}
			})
		}
	}
	if run := runOnConflist("insert", "--layout", "last", filepath.Join(dir, "web.conflist")); !errors.As(run.err, new(*usageError)) {
		t.Errorf("an unknown layout: %v", run.err)
	}
	if names := namesIn(t, dir); names != before {
		t.Errorf("there are %s", names)
	}
	if got := readText(t, filepath.Join(dir, "web.conflist")); got != conflistOf(`{"type":"bridge"}`) {
		t.Errorf("it is %s", got)
	}
}
