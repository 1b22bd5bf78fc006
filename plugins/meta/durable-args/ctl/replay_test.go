package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/durable-args/durable-args/pkg/journal"
)

// replayNode has the plugins of goneAdd's chain, and dead attachments.
func replayNode(t *testing.T, dead ...string) *testNode {
	n := newTestNode(t)
	n.plugin("bridge", "")
	n.plugin("portmap", "")
	for i, container := range dead {
		n.journal(web(container), n.goneAdd(), address(fmt.Sprintf("10.88.0.%d", i+2)))
	}
	return n
}

const goneArgs = "args=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"

func TestReplayStaleReleasesTheDeadAndNobodyElse(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1", "c2")
	n.journal(web("live"), n.aliveAdd(), address("10.88.0.9"))
	n.journal(journal.Key{Network: "db", ContainerID: "c3", IfName: "net1"}, n.goneAdd())
	stdout, stderr, err := n.ctl("replay", "--stale")
	if err != nil || stdout != "" || !strings.Contains(stderr, "3 of 3 replayed") {
		t.Errorf("stdout %q, stderr %q, error %v", stdout, stderr, err)
	}
	want := []string{
		"portmap c3 netns= " + goneArgs, "bridge c3 netns= " + goneArgs, // networks by name,
		"portmap c2 netns= " + goneArgs, "bridge c2 netns= " + goneArgs, // in each the newest first
		"portmap c1 netns= " + goneArgs, "bridge c1 netns= " + goneArgs,
	}
	if got := n.calls(); !slices.Equal(got, want) {
		t.Errorf("called\n%s", strings.Join(got, "\n"))
	}
	if got := n.left(); got != "live" {
		t.Errorf("left in the journal: %s", got)
	}
}

func TestADryRunSaysWhatTheRealOneDoes(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1", "c2")
	n.journal(web("heir"), n.goneAdd(), address("10.88.0.2")) // c1's address, and dead, too
	twice := n.goneAdd()
	twice.Args = []byte("A=2")
	n.journal(web("c2"), twice)
	stdout, _, err := n.ctl("replay", "--stale", "--dry-run", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var planned []plannedDel
	if err := json.Unmarshal([]byte(stdout), &planned); err != nil {
		t.Fatal(err)
	}
	text, _, err := n.ctl("replay", "--stale", "--dry-run")
	if err != nil {
		t.Fatal(err)
	}
	if calls := n.calls(); calls != nil || n.left() != "c1 c2 heir" {
		t.Errorf("a dry run has called %q and left %q", calls, n.left())
	}
	if _, _, err := n.ctl("replay", "--stale"); err != nil || n.left() != "" {
		t.Fatalf("error %v, left %q", err, n.left())
	}
	var calls, requests []string
	for _, p := range planned {
		calls = append(calls, fmt.Sprintf("%s %s netns=%s args=%s", p.Plugin, p.ContainerID, p.Env["CNI_NETNS"], p.Env["CNI_ARGS"]))
		var compact strings.Builder
		_ = json.NewEncoder(&compact).Encode(p.Stdin)
		requests = append(requests, strings.TrimSpace(compact.String()))
	}
	if got := n.calls(); len(got) != 8 || !slices.Equal(got, calls) {
		t.Errorf("called\n%s\nplanned\n%s", strings.Join(got, "\n"), strings.Join(calls, "\n"))
	}
	if got := n.lines("requests"); !slices.Equal(got, requests) {
		t.Errorf("requested\n%s\nplanned\n%s", strings.Join(got, "\n"), strings.Join(requests, "\n"))
	}
	var fromText []string
	for line := range strings.Lines(text) {
		if request, ok := strings.CutPrefix(line, "  stdin: "); ok {
			fromText = append(fromText, strings.TrimSpace(request))
		}
	}
	if !slices.Equal(fromText, requests) || !strings.HasPrefix(text, "web/c2@eth0: DEL portmap\n  CNI_NETNS=\n  CNI_ARGS=A=2\n") {
		t.Errorf("printed\n%s", text)
	}
}

func TestReplayRefusesWhatWouldHurtAnother(t *testing.T) {
	t.Parallel()
	for _, dryRun := range []string{"--dry-run=false", "--dry-run"} {
		n := replayNode(t, "old")
		n.journal(web("heir"), n.aliveAdd(), address("10.88.0.2"))
		for _, row := range []struct{ args, says string }{
			{"old", "its address 10.88.0.2 belongs to web/heir@eth0 now"},
			{"--stale", "its address 10.88.0.2 belongs to web/heir@eth0 now"},
			{"heir", "replaying web/heir@eth0 is refused: its network namespace is still there"},
		} {
			stdout, stderr, err := n.ctl("replay", row.args, dryRun)
			if !errors.Is(err, errFinding) || stdout != "" || !strings.Contains(stderr, row.says) || !strings.Contains(stderr, "1 of 1 could not be replayed") {
				t.Errorf("replay %s %s: stdout %q, stderr %q, error %v", row.args, dryRun, stdout, stderr, err)
			}
		}
		if calls := n.calls(); calls != nil || n.left() != "heir old" {
			t.Errorf("called %q, left %q", calls, n.left())
		}
	}
}

func TestForceReplaysOne(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "old")
	n.journal(web("heir"), n.aliveAdd(), address("10.88.0.2"))
	if _, stderr, err := n.ctl("replay", "old", "--force"); err != nil || !strings.Contains(stderr, "plugins are not told the result of web/old@eth0") {
		t.Errorf("stderr %q, error %v", stderr, err)
	}
	if requests := n.lines("requests"); len(requests) != 2 || strings.Contains(strings.Join(requests, ""), "prevResult") {
		t.Errorf("requested %q", requests)
	}
	if _, _, err := n.ctl("replay", "heir", "--force"); err != nil || n.left() != "" {
		t.Errorf("error %v, left %q", err, n.left())
	}
	if requests := n.lines("requests"); len(requests) != 4 || !strings.Contains(requests[3], `"prevResult"`) {
		t.Errorf("requested %q", requests)
	}
	// The test's own namespace is nowhere for a plugin to be sent.
	if calls := n.calls(); calls[3] != "bridge heir netns= "+goneArgs {
		t.Errorf("called %q", calls)
	}
}

func TestForceIsForOneAttachment(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1")
	n.journal(journal.Key{Network: "web", ContainerID: "c1", IfName: "net1"}, n.goneAdd())
	_, _, err := n.ctl("replay", "c1", "--force")
	if !errors.As(err, new(*usageError)) || !strings.Contains(err.Error(), "web/c1@eth0, web/c1@net1") || n.calls() != nil {
		t.Errorf("error %v, calls %q", err, n.calls())
	}
	if _, _, err := n.ctl("replay", "c1", "--force", "--ifname", "net1"); err != nil || n.left() != "c1" {
		t.Errorf("error %v, left %q", err, n.left())
	}
	if _, _, err := n.ctl("replay", "c1"); err != nil || n.left() != "" || len(n.calls()) != 4 {
		t.Errorf("error %v, left %q, calls %q", err, n.left(), n.calls())
	}
}

func TestReplayGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1", "c2", "c3")
	n.plugin("portmap", `[ $CNI_CONTAINERID = c2 ] && { echo '{"code":102,"msg":"endpoint is on fire"}'; exit 1; }`)
	_, stderr, err := n.ctl("replay", "--stale")
	if !errors.Is(err, errFinding) || n.left() != "c2" ||
		!strings.Contains(stderr, `replaying DEL of plugin "portmap" for web/c2@eth0: endpoint is on fire`) || !strings.Contains(stderr, "1 of 3 could not be replayed") {
		t.Errorf("stderr %q, error %v, left %q", stderr, err, n.left())
	}
	if attempts := n.read(web("c2")).Attempts; len(attempts) != 1 || attempts[0].Error != "endpoint is on fire" {
		t.Errorf("attempts %+v", attempts)
	}
	n.plugin("portmap", "")
	if _, _, err := n.ctl("replay", "c2"); err != nil || n.left() != "" {
		t.Errorf("error %v, left %q", err, n.left())
	}
}

func TestReplayStopsBetweenPlugins(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1", "c2", "c3")
	running := filepath.Join(n.binDir, "running")
	n.plugin("portmap", fmt.Sprintf("[ $CNI_CONTAINERID = c2 ] && { touch %s; sleep 1; }", running))
	ctx, interrupt := context.WithCancel(t.Context())
	n.ctx = ctx
	go func() {
		for {
			if _, err := os.Stat(running); err == nil {
				interrupt()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	_, stderr, err := n.ctl("replay", "--stale")
	if err == nil || !strings.Contains(err.Error(), "interrupted: 1 of 3 done") || !strings.Contains(stderr, "stopping as soon as") {
		t.Errorf("stderr %q, error %v", stderr, err)
	}
	// The plugin that ran has ended as it should, and nothing has failed.
	if calls := n.calls(); len(calls) != 3 || calls[2] != "portmap c2 netns= "+goneArgs {
		t.Errorf("called %q", calls)
	}
	if n.left() != "c1 c2" || len(n.read(web("c2")).Attempts) != 0 {
		t.Errorf("left %q", n.left())
	}
	n.ctx = t.Context()
	n.plugin("portmap", "")
	if _, _, err := n.ctl("replay", "--stale"); err != nil || n.left() != "" {
		t.Errorf("error %v, left %q", err, n.left())
	}
}

func TestReplayOfWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1", "c2")
	n.write(n.file(web("torn")), "torn\n")
	if _, _, err := n.ctl("replay", "--stale", "--dry-run"); err != nil || n.left() != "c1 c2 torn" {
		t.Errorf("a dry run: error %v, left %q", err, n.left())
	}
	_, stderr, err := n.ctl("replay", "--stale")
	if err != nil || n.left() != "" || !strings.Contains(stderr, "no entry in "+n.file(web("torn"))+" can be read; it is kept as "+n.dataDir) {
		t.Errorf("stderr %q, error %v, left %q", stderr, err, n.left())
	}
}
