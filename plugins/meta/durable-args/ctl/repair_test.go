package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/durable-args/durable-args/pkg/journal"
)

// repairRun runs the command on a node of the test's own.
type repairRun struct {
	t                    *testing.T
	conf, dataDir, cache string
}

func newRepairRun(t *testing.T) *repairRun {
	dir := t.TempDir()
	return &repairRun{t, dir, filepath.Join(dir, "data"), filepath.Join(dir, "cni")}
}

func (r *repairRun) run(args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	root := newRoot(clearSight)
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(append([]string{"repair", "--conf-dir", r.conf, "--data-dir", r.dataDir, "--cache-dir", r.cache}, args...))
	err = root.ExecuteContext(r.t.Context())
	return out.String(), errs.String(), err
}

// journal journals attachments whose cache files are missing.
func (r *repairRun) journal(result journal.Result, keys ...journal.Key) {
	r.t.Helper()
	store, err := journal.Create(r.dataDir)
	if err != nil {
		r.t.Fatal(err)
	}
	defer store.Close()
	for _, key := range keys {
		err := store.Append(key, journal.Add{CNIVersion: "1.0.0", Conflist: []byte("{}")})
		if err == nil && result != nil {
			err = store.Append(key, result)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

var aResult = journal.Result(`{"cniVersion": "1.0.0", "ips": [{"address": "10.88.0.2/16"}]}`)

func TestRepairTable(t *testing.T) {
	r := newRepairRun(t)
	long := strings.Repeat("0123456789abcdef", 4)
	r.journal(aResult, journal.Key{Network: "web", ContainerID: long, IfName: "eth0"})
	r.journal(nil, journal.Key{Network: "web", ContainerID: "c1", IfName: "eth0"})

	const head = "NETWORK  CONTAINER                    INTERFACE  CACHE FILE  OUTCOME\n"
	const none = "web      c1                           eth0       missing     no result journaled\n"
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"--dry-run"}, head +
			"web      0123456789abcdef0123456789…  eth0       missing     would be repaired\n" + none},
		{nil, head +
			"web      0123456789abcdef0123456789…  eth0       missing     repaired\n" + none},
		{nil, "NETWORK  CONTAINER  INTERFACE  CACHE FILE  OUTCOME\n" +
			"web      c1         eth0       missing     no result journaled\n"},
	} {
		stdout, stderr, err := r.run(step.args...)
		if err != nil || stderr != "" || stdout != step.want {
			t.Errorf("%v: %v, stderr %q, got\n%swant\n%s", step.args, err, stderr, stdout, step.want)
		}
	}
}

func TestRepairJSON(t *testing.T) {
	r := newRepairRun(t)
	r.journal(aResult, journal.Key{Network: "web", ContainerID: "c1", IfName: "eth0"})
	r.journal(nil, journal.Key{Network: "web", ContainerID: "c2", IfName: "eth0"})
	stdout, stderr, err := r.run("-o", "json")
	if err != nil || stderr != "" {
		t.Fatalf("%v, stderr %q", err, stderr)
	}
	want := `[
  {
    "network": "web",
    "containerID": "c1",
    "ifName": "eth0",
    "file": "CACHE/results/web-c1-eth0",
    "found": "missing",
    "action": "repaired",
    "reason": ""
  },
  {
    "network": "web",
    "containerID": "c2",
    "ifName": "eth0",
    "file": "CACHE/results/web-c2-eth0",
    "found": "missing",
    "action": "skipped",
    "reason": "no result journaled"
  }
]
`
	if want = strings.ReplaceAll(want, "CACHE", r.cache); stdout != want {
		t.Errorf("got\n%swant\n%s", stdout, want)
	}
}

func TestRepairWithNothingToDo(t *testing.T) {
	r := newRepairRun(t)
	stdout, stderr, err := r.run()
	if err != nil || stdout != "" || !strings.Contains(stderr, "there is no journal in "+r.dataDir) {
		t.Errorf("no journal: %q, %q, %v", stdout, stderr, err)
	}
	r.journal(nil)
	for _, args := range [][]string{nil, {"--dry-run"}} {
		if stdout, stderr, err := r.run(args...); err != nil || stdout != "" || stderr != "" {
			t.Errorf("an empty journal, %v: %q, %q, %v", args, stdout, stderr, err)
		}
	}
	if stdout, _, err := r.run("-o", "json"); err != nil || !json.Valid([]byte(stdout)) || stdout != "[]\n" {
		t.Errorf("-o json: %q, %v", stdout, err)
	}
	if _, err := os.Stat(r.cache); !os.IsNotExist(err) {
		t.Errorf("the cache has been made: %v", err)
	}
}

func TestRepairThatFails(t *testing.T) {
	r := newRepairRun(t)
	r.journal(aResult, journal.Key{Network: "web", ContainerID: "c1", IfName: "eth0"}, journal.Key{Network: "web", ContainerID: "c2", IfName: "eth0"})
	if err := os.MkdirAll(filepath.Join(r.cache, "results"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("elsewhere", filepath.Join(r.cache, "results", "web-c1-eth0")); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := r.run()
	if err == nil || err.Error() != "1 of 2 files could not be examined or written" || errors.As(err, new(*usageError)) {
		t.Errorf("error: %v", err)
	}
	if !strings.Contains(stderr, "durable-argsctl: web/c1@eth0: ") || !strings.Contains(stderr, "is a symbolic link") {
		t.Errorf("stderr: %q", stderr)
	}
	if !strings.Contains(stdout, "skipped\n") || !strings.Contains(stdout, "repaired\n") {
		t.Errorf("stdout:\n%s", stdout)
	}
	if err := os.Chmod(r.dataDir, 0o755); err != nil {
		t.Fatal(err)
	}
	if stdout, _, err := r.run(); !errors.Is(err, journal.ErrUntrusted) || stdout != "" {
		t.Errorf("a journal of others: %q, %v", stdout, err)
	}
}

func TestRepairCalledInAWrongWay(t *testing.T) {
	for _, args := range [][]string{{"c1"}, {"-o", "yaml"}, {"--no-such-flag"}} {
		stdout, _, err := newRepairRun(t).run(args...)
		if !errors.As(err, new(*usageError)) || stdout != "" {
			t.Errorf("%v: %q, %v", args, stdout, err)
		}
	}
}
