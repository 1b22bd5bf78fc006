package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asCommand makes the test's binary the command itself, with main on a thread of
// its own: strace counts the calls of each thread.
const asCommand = "DURABLE_ARGSCTL_AS_COMMAND"

func init() {
	if os.Getenv(asCommand) != "" {
		runtime.LockOSThread()
		main()
		os.Exit(0)
	}
}

// traced runs the command exe, insert on a conflist, under strace, and returns what insert
// printed and what strace wrote. The run has been killed if killed says so.
func traced(t *testing.T, exe, conflist string, options ...string) (stderr, log string, killed bool, err error) {
	t.Helper()
	logFile := filepath.Join(t.TempDir(), "log")
	args := append([]string{"-f", "-qq", "-s", "4096", "-o", logFile}, options...)
	cmd := exec.Command("strace", append(args, exe, "insert", etc, conflist)...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "GOMAXPROCS=1")
	var buf bytes.Buffer
	cmd.Stderr = &buf
	err = cmd.Run()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		killed = exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	} else if err != nil {
		t.Fatal(err)
	}
	return buf.String(), readText(t, logFile), killed, err
}

// callOf matches a line of strace's: a thread, a call, its arguments.
var callOf = regexp.MustCompile(`^(\d+) +([a-z0-9_]+)\((.*)$`)

// point is one call: the nth of its name.
type point struct {
	call string
	n    int
}

// pointsOf returns the calls of a run from the first that names dir on, as far
// as they have to do with files.
func pointsOf(t *testing.T, exe, dir string) []point {
	t.Helper()
	path := filepath.Join(dir, "web.conflist")
	_, log, _, err := traced(t, exe, path, "-e", "trace=%file,%desc")
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	main, _, _ := strings.Cut(log, " ")
	count := make(map[string]int)
	var points []point
	for line := range strings.Lines(log) {
		match := callOf.FindStringSubmatch(strings.TrimSpace(line))
		if match == nil || match[1] != main {
			continue
		}
		call := match[2]
		count[call]++
		if len(points) > 0 || strings.Contains(match[3], dir) && call != "execve" {
			points = append(points, point{call, count[call]})
		}
	}
	return points
}

// TestInsertIsKilled kills insert at each of its system calls, and makes each of
// them fail. There is the old file or the new one, and nothing else once it has
// ended or run again.
func TestInsertIsKilled(t *testing.T) {
	t.Parallel()
	if err := exec.Command("strace", "-qq", "-o", "/dev/null", "true").Run(); err != nil {
		t.Skipf("NOT TESTED: insert under SIGKILL and failing system calls; strace cannot be run: %v", err)
	}
	// Not this binary: the race detector makes it ten times slower.
	exe := filepath.Join(t.TempDir(), "durable-argsctl")
	build := exec.Command("go", "test", "-c", "-o", exe, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the command: %v\n%s", err, out)
	}
	oldText := styles[2].text
	newText := styles[2].firstLast
	files := map[string]string{"web.conflist": oldText}

	points := pointsOf(t, exe, writeFiles(t, files))
	var renamed bool
	for _, p := range points {
		renamed = renamed || strings.HasPrefix(p.call, "rename")
	}
	if len(points) < 10 || !renamed {
		t.Fatalf("the run that was to be disturbed has only the calls %v", points)
	}

	type outcome struct{ killed, old, new int }
	var mu sync.Mutex
	outcomes := make(map[string]*outcome)
	try := func(t *testing.T, fault string, p point) {
		dir := writeFiles(t, files)
		path := filepath.Join(dir, "web.conflist")
		if err := os.Chmod(path, 0o640); err != nil {
			t.Fatal(err)
		}
		stderr, log, killed, err := traced(t, exe, path, "-e", "trace="+p.call, "-e", fmt.Sprintf("inject=%s:%s:when=%d", p.call, fault, p.n))
		got := readText(t, path)

		mu.Lock()
		if outcomes[fault] == nil {
			outcomes[fault] = new(outcome)
		}
		if killed {
			outcomes[fault].killed++
		}
		if got == newText {
			outcomes[fault].new++
		} else {
			outcomes[fault].old++
		}
		mu.Unlock()

		switch {
		case got != oldText && got != newText:
			t.Fatalf("the conflist is\n%s", got)
		case err == nil && got != newText:
			t.Errorf("insert succeeds, and the conflist is the old one:\n%s", log)
		case err != nil && !killed && got == newText && !strings.Contains(stderr, "it is written"):
			t.Errorf("insert fails, and the conflist is the new one; it says %q\n%s", stderr, log)
		}
		if names := namesIn(t, dir); names != "web.conflist" && !killed {
			t.Errorf("insert leaves %s; it says %q\n%s", names, stderr, log)
		}
		if run := runOnConflist("insert", etc, path); run.err != nil || readText(t, path) != newText || namesIn(t, dir) != "web.conflist" {
			t.Errorf("insert after that: error %v, there are %s, and the conflist is\n%s", run.err, namesIn(t, dir), readText(t, path))
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 {
			t.Errorf("the mode is %v, %v", info.Mode(), err)
		}
		if run := runOnConflist("remove", path); run.err != nil || readText(t, path) != oldText {
			t.Errorf("remove after that: error %v, and the conflist is\n%s", run.err, readText(t, path))
		}
	}
	const kill = "signal=SIGKILL"
	for _, fault := range []string{kill, "error=ENOSPC", "error=EIO", "error=EROFS"} {
		t.Run(fault, func(t *testing.T) {
			t.Run("at", func(t *testing.T) {
				for _, p := range points {
					if fault != kill && (p.call == "fcntl" || p.call == "epoll_ctl") {
						continue // no file system has a part in these
					}
					t.Run(fmt.Sprintf("%s-%d", p.call, p.n), func(t *testing.T) {
						t.Parallel()
						try(t, fault, p)
					})
				}
			})
			o := outcomes[fault]
			t.Logf("%d times killed, %d with the old file, %d with the new one", o.killed, o.old, o.new)
			if o.old == 0 || o.new == 0 {
				t.Error("nothing before the rename was disturbed, or nothing after it")
			}
			if fault == kill && o.killed < len(points)*9/10 {
				t.Errorf("of %d calls", len(points))
			}
		})
	}
}

func TestRewriteKeepsOwnerAndMode(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: the owner of a conflist is kept, which needs root")
	}
	dir := writeFiles(t, map[string]string{"web.conflist": styles[0].text})
	path := filepath.Join(dir, "web.conflist")
	if err := errors.Join(os.Chown(path, 12, 34), os.Chmod(path, 0o604)); err != nil {
		t.Fatal(err)
	}
	if run := runOnConflist("insert", path); run.err != nil {
		t.Fatal(run.err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != 12 || stat.Gid != 34 || stat.Mode&0o7777 != 0o604 {
		t.Errorf("the owner is %d:%d, the mode %o", stat.Uid, stat.Gid, stat.Mode)
	}
}

func TestRewriteIsAlone(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{"web.conflist": "0"})
	path := filepath.Join(dir, "web.conflist")

	t.Run("many at once", func(t *testing.T) {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if err := rewrite(path, func(text []byte) ([]byte, error) { return append(text, '+'), nil }); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := readText(t, path); got != "0"+strings.Repeat("+", 20) {
			t.Errorf("it is %s", got)
		}
	})
	t.Run("another tool", func(t *testing.T) {
		err := rewrite(path, func([]byte) ([]byte, error) {
			return []byte("ours"), os.WriteFile(path, []byte("theirs"), 0o644)
		})
		if err == nil || readText(t, path) != "theirs" || namesIn(t, dir) != "web.conflist" {
			t.Errorf("error %v, it is %s, there are %s", err, readText(t, path), namesIn(t, dir))
		}
	})
	t.Run("one that does not end", func(t *testing.T) {
		held, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = rewrite(path, func([]byte) ([]byte, error) { return []byte("ours"), nil })
		if err == nil || !strings.Contains(err.Error(), "another durable-argsctl is at work") || time.Since(began) > 3*lockPatience {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
	})
}
