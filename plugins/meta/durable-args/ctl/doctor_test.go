package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/durable-args/durable-args/pkg/journal"
)

const soundConflist = `{
  "cniVersion": "1.0.0", "name": "web", "plugins": [
    {"type": "durable-args", "dataDir": "DATA", "capabilities": {"portMappings": true}},
    {"type": "bridge"},
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "durable-args", "position": "last", "dataDir": "DATA", "capabilities": {"portMappings": true}}
  ]
}`

// diagnose runs doctor on a node that is sound but for what spoil does to it,
// and returns its findings.
func diagnose(t *testing.T, spoil func(n *testNode)) []finding {
	t.Helper()
	n := newTestNode(t)
	n.conflist("10-web.conflist", soundConflist)
	n.plugin("bridge", "")
	n.plugin("portmap", "")
	spoil(n)
	stdout, stderr, err := n.ctl("doctor", "-o", "json")
	var findings []finding
	if jsonErr := json.Unmarshal([]byte(stdout), &findings); jsonErr != nil {
		t.Fatalf("%v: stdout %q, stderr %q, error %v", jsonErr, stdout, stderr, err)
	}
	if (len(findings) > 0) != errors.Is(err, errFinding) || len(findings) == 0 && err != nil {
		t.Errorf("%d findings, but error %v", len(findings), err)
	}
	return findings
}

// conflist writes one to the node; DATA in it stands for the journal.
func (n *testNode) conflist(name, text string) {
	n.Helper()
	n.write(filepath.Join(n.confDir, name), strings.ReplaceAll(text, "DATA", n.dataDir))
}

func TestDoctorFindsNothingOnASoundNode(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(n *testNode){
		"before the first pod": func(*testNode) {},
		"with a pod": func(n *testNode) {
			n.journal(web("c1"), n.aliveAdd(), address("10.0.0.2"))
			n.repaired()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if findings := diagnose(t, spoil); len(findings) > 0 {
				t.Errorf("it found %+v", findings)
			}
		})
	}
}

// repaired gives every journaled attachment its cache file.
func (n *testNode) repaired() {
	n.Helper()
	if _, stderr, err := n.ctl("repair"); err != nil {
		n.Fatalf("repair: %v\n%s", err, stderr)
	}
}

func TestDoctorFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	edit := func(old, new string) func(n *testNode) {
		return func(n *testNode) {
			if !strings.Contains(soundConflist, old) {
				n.Fatalf("the conflist has no %s", old)
			}
			n.conflist("10-web.conflist", strings.ReplaceAll(soundConflist, old, new))
		}
	}
	for _, row := range []struct {
		name  string
		spoil func(n *testNode)
		what  string
		do    string
	}{
		{"no stanza at all", func(n *testNode) {
			n.conflist("10-web.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"bridge"}]}`)
		}, "has a durable-args stanza", "durable-argsctl insert "},
		{"the stanza is not first", edit(`"plugins": [`, `"plugins": [{"type": "tuning"},`), "1 plugins stand before the durable-args stanza", "durable-argsctl remove "},
		{"the last stanza is not last", edit("\n  ]", `, {"type": "tuning"}]`), "1 plugins stand behind the last durable-args stanza", "durable-argsctl insert "},
		{"a capability is missing", edit(`"capabilities": {"portMappings": true}},
    {"type": "bridge"}`, `"capabilities": {}},
    {"type": "bridge"}`), `declares the capability "portMappings"`, "durable-argsctl insert "},
		{"no cniVersion", edit(`"cniVersion": "1.0.0", `, ""), "has no cniVersion", `add "cniVersion"`},
		{"a main plugin that rejects an empty prevResult", edit(`{"type": "bridge"}`, `{"type": "ipvlan"}`), `plugin "ipvlan" without "master"`, "--layout wrapped"},
		{"a plugin that fails on a second DEL", edit(`{"type": "bridge"}`, `{"type": "host-device", "device": "eth1"}`), `plugin "host-device" fails when it is called with DEL a second time`, "--layout wrapped"},
		{"a stanza that makes no sense", edit(`"position": "last"`, `"position": "middle"`), `position "middle"`, "mend the stanza"},
		{"two conflists of one name", func(n *testNode) { n.conflist("20-web.conflist", soundConflist) }, "are both of network web", "remove or rename"},
		{"one journal for two caches", func(n *testNode) {
			db := strings.ReplaceAll(soundConflist, `"name": "web"`, `"name": "db"`)
			n.conflist("20-db.conflist", strings.ReplaceAll(db, `"dataDir": "DATA"`, `"dataDir": "DATA", "cacheDir": "/var/lib/other"`))
		}, "20-db.conflist journal in", "the same cacheDir"},
		{"a file that is no conflist", func(n *testNode) { n.conflist("05-broken.conflist", "{") }, "05-broken.conflist is no conflist", "mend or remove"},
		{"dataDir is in memory", func(n *testNode) {
			n.conflist("10-web.conflist", strings.ReplaceAll(soundConflist, "DATA", "/dev/shm/durable-args-doctor"))
		}, "on a file system in memory", "durable-argsctl doctor"},
		{"dataDir is open to others", func(n *testNode) {
			n.journal(web("c1"), n.aliveAdd())
			if err := os.Chmod(n.dataDir, 0o777); err != nil {
				n.Fatal(err)
			}
		}, "has mode 0777", "durable-argsctl doctor"},
		{"dataDir is somebody else's", func(n *testNode) {
			if os.Geteuid() != 0 {
				n.Skip("only root can give a directory away; the end-to-end tests run as root")
			}
			n.journal(web("c1"), n.aliveAdd())
			if err := os.Chown(n.dataDir, 12345, -1); err != nil {
				n.Fatal(err)
			}
		}, "belongs to user 12345", "durable-argsctl doctor"},
		{"an entry is damaged", func(n *testNode) {
			n.journal(web("c1"), n.aliveAdd(), address("10.0.0.2"))
			text, err := os.ReadFile(n.file(web("c1")))
			if err != nil {
				n.Fatal(err)
			}
			n.write(n.file(web("c1")), strings.Replace(string(text), "10.0.0.2", "10.0.0.3", 1))
		}, "lines [2] of its file are damaged", "durable-argsctl show c1"},
		{"an entry is of a later version", func(n *testNode) {
			n.journal(web("c1"), n.aliveAdd())
			text, err := os.ReadFile(n.file(web("c1")))
			if err != nil {
				n.Fatal(err)
			}
			n.write(n.file(web("c1")), string(text)+laterVersion())
		}, "1 entries are of a later version", "durable-argsctl replay c1"},
		{"a debt", func(n *testNode) {
			n.journal(web("c1"), n.aliveAdd(), journal.Attempt{Plugin: "portmap", Error: "on fire"})
		}, "is a debt: 1 replays have failed, the last one of plugin portmap", "durable-argsctl replay c1"},
		{"stale attachments", func(n *testNode) {
			n.journal(web("c1"), n.goneAdd())
			n.journal(web("c2"), n.goneAdd())
		}, "2 attachments are stale", "durable-argsctl replay --stale"},
		{"a cache file is empty", func(n *testNode) {
			n.journal(web("c1"), n.aliveAdd(), address("10.0.0.2"))
			n.write(filepath.Join(n.cacheDir, "results", "web-c1-eth0"), "")
		}, "web-c1-eth0 is damaged", "durable-argsctl repair"},
		{"a cache file is damaged and cannot be repaired", func(n *testNode) {
			n.journal(web("c1"), n.aliveAdd())
			n.write(filepath.Join(n.cacheDir, "results", "web-c1-eth0"), "{")
		}, "web-c1-eth0 is damaged", "rm "},
		{"a cache file is missing", func(n *testNode) {
			n.journal(web("c1"), n.aliveAdd(), address("10.0.0.2"))
		}, "web-c1-eth0 is missing", "durable-argsctl repair"},
		{"a cache file says something else", func(n *testNode) {
			n.journal(web("c1"), n.aliveAdd(), address("10.0.0.2"))
			n.repaired()
			file := filepath.Join(n.cacheDir, "results", "web-c1-eth0")
			text, err := os.ReadFile(file)
			if err != nil {
				n.Fatal(err)
			}
			n.write(file, strings.Replace(string(text), "10.0.0.2", "10.0.0.3", 1))
		}, "and the journal differ in result", "durable-argsctl show c1"},
		{"a plugin's binary is gone", func(n *testNode) {
			n.journal(web("c1"), n.aliveAdd())
			if err := os.Remove(filepath.Join(n.binDir, "portmap")); err != nil {
				n.Fatal(err)
			}
		}, "there is no plugin portmap in ", "install it again in "},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			findings := diagnose(t, row.spoil)
			for _, f := range findings {
				if strings.Contains(f.What, row.what) && strings.Contains(f.Do, row.do) && f.Why != "" {
					return
				}
			}
			t.Errorf("not among %d findings: %+v", len(findings), findings)
		})
	}
}

// laterVersion is a line that only a later version could read.
func laterVersion() string {
	const entry = `{"version":9}`
	return fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(entry), crc32.MakeTable(crc32.Castagnoli)), entry)
}

func TestDoctorAsksForTheUnitWhereSystemdRuns(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	look := func() []finding {
		d := &doctor{}
		d.unit(root)
		return d.findings
	}
	if found := look(); len(found) > 0 {
		t.Errorf("without systemd: %+v", found)
	}
	for _, dir := range []string{"run/systemd/system", "etc/systemd/system/multi-user.target.wants"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if found := look(); len(found) != 1 || !strings.Contains(found[0].Do, "systemctl enable durable-args-repair.service") {
		t.Errorf("with systemd: %+v", found)
	}
	if err := os.Symlink("nowhere", filepath.Join(root, "etc/systemd/system/multi-user.target.wants/durable-args-repair.service")); err != nil {
		t.Fatal(err)
	}
	if found := look(); len(found) > 0 {
		t.Errorf("with the unit: %+v", found)
	}
}

func TestDoctorPrintsAFindingInThreeLines(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	stdout, _, err := n.ctl("doctor")
	want := "no conflist in " + n.confDir + " has a durable-args stanza\n  why: nothing is journaled\n  do:  durable-argsctl insert " + n.confDir + "/NAME.conflist\n"
	if !errors.Is(err, errFinding) || stdout != want {
		t.Errorf("stdout %q, want %q; error %v", stdout, want, err)
	}
}
