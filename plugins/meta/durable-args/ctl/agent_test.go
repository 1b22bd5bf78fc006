package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/durable-args/durable-args/pkg/journal"
)

func TestBackoffEndsAFightAndForgetsIt(t *testing.T) {
	t.Parallel()
	var b backoff
	now := time.Now()
	if b.left(now) != 0 {
		t.Error("the first edit has to wait")
	}
	insertions := 0
	for end := now.Add(24 * time.Hour); now.Before(end); now = now.Add(time.Second) {
		if b.left(now) == 0 {
			b.inserted(now)
			insertions++
		}
	}
	if insertions < 24*12-1 || insertions > 24*12+10 {
		t.Errorf("%d edits in a day's fight, want one in five minutes", insertions)
	}
	if b.current(now) != backoffMost {
		t.Errorf("waits %s", b.current(now))
	}
	now = b.last.Add(4 * backoffMost)
	if b.left(now) != 0 || b.current(now) != 0 {
		t.Errorf("after a quiet while it waits %s, of %s", b.left(now), b.current(now))
	}
	b.inserted(now)
	if b.left(now) != backoffLeast {
		t.Errorf("after a quiet while it waits %s", b.left(now))
	}
}

func TestInstallFile(t *testing.T) {
	t.Parallel()
	const old, plugin = "\x7fELF old", "\x7fELF new"
	for _, row := range []struct {
		name         string
		source       string
		mode         os.FileMode
		target       string
		changed      bool
		left, errors string
	}{
		{"there is none", plugin, 0o755, "", true, plugin, ""},
		{"there is another", plugin, 0o755, old, true, plugin, ""},
		{"it is there already", plugin, 0o755, plugin, false, plugin, ""},
		{"the source is no program", "half", 0o755, old, false, old, "say with --plugin"},
		{"the source is not executable", plugin, 0o644, old, false, old, "say with --plugin"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newTestNode(t)
			source, target := filepath.Join(t.TempDir(), "durable-args"), filepath.Join(n.binDir, "durable-args")
			n.write(source, row.source)
			leftover := filepath.Join(n.binDir, ".durable-args.durable-argsctl")
			n.write(leftover, "what a killed run has left")
			if row.target != "" {
				n.write(target, row.target)
				if err := os.Chmod(target, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(source, row.mode); err != nil {
				t.Fatal(err)
			}
			program, err := readExecutable(source)
			changed := false
			if err == nil {
				changed, err = installFile(program, target)
			}
			if changed != row.changed || (err != nil) != (row.errors != "") || err != nil && !strings.Contains(err.Error(), row.errors) {
				t.Errorf("changed %v, error %v", changed, err)
			}
			if text, _ := os.ReadFile(target); string(text) != row.left {
				t.Errorf("it is %q", text)
			}
			if _, statErr := os.Stat(leftover); err == nil && !errors.Is(statErr, os.ErrNotExist) {
				t.Errorf("the leftover is still there: %v", statErr)
			}
			if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("its mode is %v, error %v", info, err)
			}
		})
	}
}

func TestARunningReleaseCanBeReplaced(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(n.binDir, "durable-args")
	n.write(target, "old")
	before, err := os.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	program, err := readExecutable(self)
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := installFile(program, target); !changed || err != nil {
		t.Fatalf("changed %v, error %v", changed, err)
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(before); err != nil || text.String() != "old" {
		t.Errorf("who has the old one open reads %q, error %v", text.String(), err)
	}
}

func TestMetricsTellWhatIsJournaled(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	n.journal(web("alive"), n.aliveAdd(), address("10.88.0.2"))
	n.journal(web("gone"), n.goneAdd(), journal.Attempt{Plugin: "portmap", Error: "words"})
	n.journal(web("damaged"), n.aliveAdd())
	f, err := os.OpenFile(n.file(web("damaged")), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("00000000 {}\n")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	m := newAgentMetrics(&node{dataDir: n.dataDir})
	m.observe(nil)
	m.observe(errors.New("portmap has failed"))
	m.repairs.WithLabelValues("kept").Inc()
	m.backoff.WithLabelValues("10-pods.conflist").Set(8)
	problems, err := testutil.GatherAndLint(m.registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("promtool would say %v, error %v", problems, err)
	}
	const want = `
# HELP durable_args_attachments Attachments in the journal.
# TYPE durable_args_attachments gauge
durable_args_attachments{network="web"} 3
# HELP durable_args_damaged_entries Lines in the journal whose checksum is wrong.
# TYPE durable_args_damaged_entries gauge
durable_args_damaged_entries 1
# HELP durable_args_debts Attachments whose replay has failed.
# TYPE durable_args_debts gauge
durable_args_debts 1
# HELP durable_args_journal_readable Whether the whole journal could be read (1) or not (0).
# TYPE durable_args_journal_readable gauge
durable_args_journal_readable 1
# HELP durable_args_replays_total Replays of stale attachments, by outcome.
# TYPE durable_args_replays_total counter
durable_args_replays_total{outcome="failed"} 1
durable_args_replays_total{outcome="refused"} 0
durable_args_replays_total{outcome="replayed"} 1
# HELP durable_args_stale_attachments Attachments whose network namespace no longer exists.
# TYPE durable_args_stale_attachments gauge
durable_args_stale_attachments 1
`
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "durable_args_attachments", "durable_args_damaged_entries",
		"durable_args_debts", "durable_args_journal_readable", "durable_args_replays_total", "durable_args_stale_attachments"); err != nil {
		t.Error(err)
	}
}

func TestAnAgentSaysWhatIsWrongWithItsFlags(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ args, says string }{
		{"--layout woven", "only first, first-last, wrapped"},
		{"--interval 10ms", "give at least 1s"},
		{"--conflist 10-pods.conf", "ends in .conflist"},
		{"--conflist /elsewhere/10-pods.conflist", "--conf-dir"},
		{"extra", "takes no arguments"},
	} {
		t.Run(row.args, func(t *testing.T) {
			t.Parallel()
			_, _, err := newTestNode(t).ctl(append([]string{"agent"}, strings.Fields(row.args)...)...)
			if !errors.As(err, new(*usageError)) || !strings.Contains(err.Error(), row.says) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestAnAgentChoosesTheFirstConflist(t *testing.T) {
	t.Parallel()
	const text = `{"cniVersion":"1.0.0","name":"NAME","plugins":[{"type":"bridge"}]}`
	for _, row := range []struct {
		args      []string
		protected string
	}{
		{nil, "10-a.conflist"},
		{[]string{"--conflist", "20-b.conflist"}, "20-b.conflist"},
		{[]string{"--conflist", "10-a.conflist", "--conflist", "20-b.conflist"}, "10-a.conflist 20-b.conflist"},
	} {
		t.Run(row.protected, func(t *testing.T) {
			t.Parallel()
			n := newTestNode(t)
			n.write(filepath.Join(n.confDir, "00-single.conf"), `{"cniVersion":"1.0.0","name":"single","type":"bridge"}`)
			n.write(filepath.Join(n.confDir, "10-a.conflist"), strings.ReplaceAll(text, "NAME", "a"))
			n.write(filepath.Join(n.confDir, "20-b.conflist"), strings.ReplaceAll(text, "NAME", "b"))
			n.write(filepath.Join(n.binDir, "durable-args"), "old")
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			n.ctx = ctx
			if _, stderr, err := n.ctl(append([]string{"agent", "--plugin", self, "--bin-dir", n.binDir}, row.args...)...); err != nil {
				t.Fatalf("error %v, stderr %s", err, stderr)
			}
			var protected []string
			files, _ := filepath.Glob(n.confDir + "/*")
			for _, file := range files {
				if text, _ := os.ReadFile(file); bytes.Contains(text, []byte(pluginType)) {
					protected = append(protected, filepath.Base(file))
				}
			}
			if strings.Join(protected, " ") != row.protected {
				t.Errorf("protected are %v", protected)
			}
		})
	}
}
