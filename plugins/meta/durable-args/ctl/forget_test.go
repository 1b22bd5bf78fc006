package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/journal"
)

func TestForgetSaysWhatItLeavesBehind(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1")
	stdout, stderr, err := n.ctl("forget", "c1", "--yes")
	if err != nil || stdout != "" || n.left() != "" || n.calls() != nil {
		t.Errorf("stdout %q, error %v, left %q, calls %q", stdout, err, n.left(), n.calls())
	}
	for _, want := range []string{"web/c1@eth0", "default/web-0", "gone", "bridge, portmap", "10.88.0.2\n", "8080/tcp"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("%q is not in\n%s", want, stderr)
		}
	}
}

func TestForgetNeedsAYes(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1")
	_, stderr, err := n.ctl("forget", "c1")
	if !errors.As(err, new(*usageError)) || !strings.Contains(err.Error(), "--yes") || n.left() != "c1" || !strings.Contains(stderr, "bridge, portmap") {
		t.Errorf("stderr %q, error %v, left %q", stderr, err, n.left())
	}
}

func TestForgetAsksOnATerminal(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ answer, left string }{{"y\n", ""}, {"Yes\n", ""}, {"n\n", "c1"}, {"\n", "c1"}, {"\x04", "c1"}} {
		n := replayNode(t, "c1")
		person, term := openTerminal(t)
		n.stdin = term
		if _, err := person.WriteString(row.answer); err != nil {
			t.Fatal(err)
		}
		_, stderr, err := n.ctl("forget", "c1")
		if n.left() != row.left || (err != nil) != (row.left != "") || !strings.Contains(stderr, "Drop web/c1@eth0? [y/N]") {
			t.Errorf("after %q: stderr %q, error %v, left %q", row.answer, stderr, err, n.left())
		}
	}
}

// openTerminal returns both ends of a pseudo-terminal.
func openTerminal(t *testing.T) (person, term *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	fd := int(person.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	term, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { term.Close() })
	return person, term
}

func TestForgetRefusesWhatIsInUse(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1")
	store, err := journal.Open(n.dataDir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	f, err := store.Lock(web("c1"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, err := n.ctl("forget", "c1", "--yes"); err == nil || !strings.Contains(err.Error(), "web/c1@eth0 is in use") || n.left() != "c1" {
		t.Errorf("error %v, left %q", err, n.left())
	}
}

func TestForgetIsForOneAttachment(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1")
	n.journal(journal.Key{Network: "db", ContainerID: "c1", IfName: "net1"}, n.goneAdd())
	if _, _, err := n.ctl("forget", "c1", "--yes"); !errors.As(err, new(*usageError)) || n.left() != "c1 c1" {
		t.Errorf("error %v, left %q", err, n.left())
	}
	if _, _, err := n.ctl("forget", "c1", "--yes", "--network", "db"); err != nil || n.left() != "c1" {
		t.Errorf("error %v, left %q", err, n.left())
	}
}

func TestForgetDropsWhatHasNoReadableEntry(t *testing.T) {
	t.Parallel()
	n := replayNode(t, "c1")
	n.write(n.file(web("torn")), "torn\n")
	_, stderr, err := n.ctl("forget", "torn", "--yes")
	if err != nil || n.left() != "c1" || !strings.Contains(stderr, "1 entries, which may hold more") {
		t.Errorf("stderr %q, error %v, left %q", stderr, err, n.left())
	}
}

// On a terminal colours and a line of progress are welcome.
func TestTerminals(t *testing.T) {
	person, term := openTerminal(t)
	if _, ok := terminal(term); !ok {
		t.Error("a terminal is not taken for one")
	}
	if err := unix.IoctlSetWinsize(int(person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 132}); err != nil {
		t.Fatal(err)
	}
	if width := tableWidth(term); width != 132 {
		t.Errorf("width %d", width)
	}
	t.Setenv("TERM", "xterm")
	for value, want := range map[string]bool{"": true, "1": false} {
		t.Setenv("NO_COLOR", value)
		if hasColour(term) != want {
			t.Errorf("colour with NO_COLOR=%s: %v", value, !want)
		}
	}
	n := replayNode(t, "c1", "c2")
	n.plugin("bridge", "sleep 1.1")
	root := newRoot(clearSight)
	root.SetErr(term)
	root.SetArgs([]string{"replay", "--stale", "--data-dir", n.dataDir, "--conf-dir", n.confDir})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	seen := make([]byte, 4096)
	k, _ := person.Read(seen)
	if text := string(seen[:k]); !strings.Contains(text, "replaying 2 of 2: web/c1@eth0") || strings.Contains(text, "1 of 2: ") {
		t.Errorf("the terminal shows %q", text)
	}
}
