package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/durable-args/durable-args/pkg/journal"
)

func TestListHasARowForEachAttachment(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	n.journal(web("a-alive"), n.aliveAdd(), address("10.88.0.2"))
	n.journal(web("b-gone"), n.goneAdd())
	booted := n.goneAdd()
	booted.Layout = "wrapped"
	booted.NetNS.BootID = "another boot's"
	booted.Args = []byte("K8S_POD_NAME=podman's")
	n.journal(web("c-booted"), booted)
	n.journal(web("d-debt"), n.goneAdd(), journal.Attempt{Plugin: "bridge"}, journal.Attempt{Plugin: "portmap"})
	n.journal(web("e-settled"), n.goneAdd(), journal.Replayed{})
	n.journal(web("f-damaged"), n.goneAdd())
	f, err := os.OpenFile(n.file(web("f-damaged")), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(f, "torn")
	f.Close()
	imported := n.goneAdd()
	imported.NetNS.BootID = ""
	imported.Args = []byte("K8S_POD_NAME=\x1b[2J")
	n.journal(journal.Key{Network: "db", ContainerID: strings.Repeat("0123456789abcdef", 4), IfName: "net1"}, imported)

	stdout, stderr, err := n.ctl("list")
	if err != nil || stderr != "" {
		t.Errorf("stderr %q, error %v", stderr, err)
	}
	var rows []string
	for line := range strings.Lines(stdout) {
		if n := len([]rune(line)); n > 81 {
			t.Errorf("a line has %d columns: %s", n, line)
		}
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"NETWORK CONTAINER IF POD AGE NETNS LAYOUT RESULT DEBT",
		`db 0123456789ab net1 …1b[2J" 0s gone first no -`,
		"web a-alive eth0 …/web-0 0s alive first yes -",
		"web b-gone eth0 …/web-0 0s gone first no -",
		"web c-booted eth0 …dman's 0s before boot wrapped no -",
		"web d-debt eth0 …/web-0 0s gone first no 2 port…",
		"web e-settled eth0 - - unknown - no settled",
		"web f-damaged eth0 …/web-0 0s gone first no damaged",
	}
	if len(rows) != len(want) {
		t.Fatalf("printed\n%s", stdout)
	}
	for i := range want {
		if strings.ReplaceAll(rows[i], " 1s ", " 0s ") != want[i] {
			t.Errorf("row %d is %q, want %q", i, rows[i], want[i])
		}
	}
}

func TestListForPrograms(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	n.journal(web("c1"), n.goneAdd(), address("10.88.0.2"), journal.Attempt{Plugin: "portmap"})
	stdout, _, err := n.ctl("list", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]any
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || len(got) != 1 {
		t.Fatalf("printed %s, error %v", stdout, err)
	}
	if got[0]["added"] == nil {
		t.Error("no time")
	}
	delete(got[0], "added")
	text, _ := json.Marshal(got[0])
	want := `{"containerID":"c1","damagedLines":[],"debt":{"attempts":1,"plugin":"portmap"},"error":"","ifName":"eth0","layout":"first",` +
		`"netns":"gone","network":"web","podName":"web-0","podNamespace":"default","result":true,"unknownEntries":0}`
	if string(text) != want {
		t.Errorf("printed %s\nwant %s", text, want)
	}
}

func TestListGoesOnAfterWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	n := newTestNode(t)
	n.journal(web("c1"), n.goneAdd())
	n.journal(web("c2"), n.goneAdd())
	n.journal(journal.Key{Network: "db", ContainerID: "c3", IfName: "eth0"}, n.goneAdd())
	n.journal(journal.Key{Network: "mail", ContainerID: "c4", IfName: "eth0"}, n.goneAdd())
	if err := errors.Join(os.Chmod(n.file(web("c1")), 0o644), os.Chmod(filepath.Join(n.dataDir, "db"), 0o755)); err != nil {
		t.Fatal(err)
	}
	stdout, stderr, err := n.ctl("list")
	if !errors.Is(err, errFinding) {
		t.Errorf("error %v", err)
	}
	for _, want := range []string{"mail", "c2", "c1", "unrea"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%s is not in\n%s", want, stdout)
		}
	}
	for _, file := range []string{n.file(web("c1")), filepath.Join(n.dataDir, "db")} {
		if !strings.Contains(stderr, file+" has mode") {
			t.Errorf("%s is not in\n%s", file, stderr)
		}
	}
}

// make bench says how long it takes.
func TestListOfTenThousand(t *testing.T) {
	n := newTestNode(t)
	n.journal(web("c0"), n.goneAdd(), address("10.88.0.2"))
	data, err := os.ReadFile(n.file(web("c0")))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		n.write(n.file(web(fmt.Sprintf("c%d", i))), string(data))
	}
	stdout, _, err := n.ctl("list")
	if rows := strings.Count(stdout, "\n"); err != nil || rows != 10_001 {
		t.Errorf("%d rows, error %v", rows, err)
	}
}
