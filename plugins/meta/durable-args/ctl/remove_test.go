package main

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestRemoveCommand(t *testing.T) {
	t.Parallel()
	for _, layout := range layouts {
		t.Run(layout, func(t *testing.T) {
			t.Parallel()
			for _, s := range styles {
				dir := writeFiles(t, map[string]string{"web.conflist": s.text})
				path := filepath.Join(dir, "web.conflist")
				if run := runOnConflist("insert", "--layout", layout, path); run.err != nil {
					t.Fatal(run.err)
				}
				with := readText(t, path)
				if run := runOnConflist("remove", "--dry-run", path); run.err != nil || !strings.Contains(run.stdout, "durable-args") || readText(t, path) != with {
					t.Errorf("a dry run: error %v, stdout %q, and it is\n%s", run.err, run.stdout, readText(t, path))
				}
				if run := runOnConflist("remove", path); run.err != nil || run.stdout != "" || run.stderr != path+": the stanzas are taken out\n" {
					t.Errorf("error %v, stdout %q, stderr %q", run.err, run.stdout, run.stderr)
				}
				if got := readText(t, path); got != s.text {
					t.Errorf("it is\n%s\nwant\n%s", got, s.text)
				}
				if run := runOnConflist("remove", path); run.err != nil || !strings.Contains(run.stderr, "nothing to do") || readText(t, path) != s.text {
					t.Errorf("a second time: error %v, stderr %q", run.err, run.stderr)
				}
				if names := namesIn(t, dir); names != "web.conflist" {
					t.Errorf("there are %s", names)
				}
			}
		})
	}
	t.Run("a stanza within a stanza", func(t *testing.T) {
		t.Parallel()
		text := conflistOf(`{"type":"durable-args","plugins":[{"type":"durable-args"},{"type":"bridge"}]}`)
		path := filepath.Join(writeFiles(t, map[string]string{"web.conflist": text}), "web.conflist")
		if run := runOnConflist("remove", path); run.err == nil || readText(t, path) != text {
			t.Errorf("error %v, and it is\n%s", run.err, readText(t, path))
		}
	})
}
