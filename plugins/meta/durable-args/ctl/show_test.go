package main

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/durable-args/durable-args/pkg/journal"
)

func TestShowLeavesNothingOut(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	earlier := n.goneAdd()
	earlier.Args = []byte("K8S_POD_NAME=\xff\x1b[2J")
	earlier.RuntimeConfig = nil
	n.journal(web("c1"), earlier, n.goneAdd(), address("10.88.0.2"), journal.Attempt{Plugin: "portmap", Error: "line one\nline two"})
	stdout, stderr, err := n.ctl("show", "c1")
	if err != nil || stderr != "" {
		t.Errorf("stderr %q, error %v", stderr, err)
	}
	for _, want := range []string{
		"web/c1@eth0", n.file(web("c1")), "ADD 1 of 2:", `"K8S_POD_NAME=\xff\x1b[2J"`, "ADD 2 of 2:",
		"IgnoreUnknown=1\n", "K8S_POD_NAME=web-0\n", `"hostPort": 8080,`, "/run/netns/there-is-none, gone\n",
		"device 4, inode 5, cookie 6", "CNI_PATH:     " + n.binDir, "1.0.0", "bridge\n", `"address": "10.88.0.2/24"`,
		"Failed replay 1:", "plugin portmap", "    line one\n    line two\n", "Layout:       first",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
}

func TestShowForPrograms(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	add := n.goneAdd()
	add.Args = []byte("A=\xff")
	add.RuntimeConfig = json.RawMessage(`{"x":9007199254740993}`)
	n.journal(web("c1"), add, address("10.88.0.2"), journal.Attempt{Plugin: "portmap", Error: "words"})
	stdout, _, err := n.ctl("show", "c1", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var all []shown
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || len(all) != 1 || len(all[0].Adds) != 1 || len(all[0].Attempts) != 1 {
		t.Fatalf("printed %s, error %v", stdout, err)
	}
	a := all[0].Adds[0]
	if string(a.ArgsBase64) != "A=\xff" || a.NetNS.Inode != 5 || a.NetNS.State != netnsGone || a.Conflist != `{"name":"web"}` || len(a.Chain) != 2 {
		t.Errorf("read back %+v", a)
	}
	for _, want := range []string{
		`"network": "web"`, `"containerID": "c1"`, `"ifName": "eth0"`, `"x": 9007199254740993`, `"bootID"`, `"path": "/run/netns/there-is-none"`,
		`"damagedLines": []`, `"unknownEntries": 0`, `"error": "words"`,
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%s is not in\n%s", want, stdout)
		}
	}
}

func TestShowGoesOnAfterWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	other := journal.Key{Network: "web", ContainerID: "c1", IfName: "net1"}
	n.journal(web("c1"), n.goneAdd())
	n.journal(other, n.goneAdd())
	if err := os.Chmod(n.file(web("c1")), 0o644); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := n.ctl("show", "c1")
	if !errors.Is(err, errFinding) || !strings.Contains(stdout, "web/c1@net1") || !strings.Contains(stderr, "reading web/c1@eth0: untrusted journal") {
		t.Errorf("stdout %q, stderr %q, error %v", stdout, stderr, err)
	}
}
