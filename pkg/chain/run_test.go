package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// script makes a plugin of a shell script, and a Call that finds it.
func script(t testing.TB, body string) (Plugin, Call, string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "plugin"), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Plugin{Type: "plugin", Config: json.RawMessage(`{"type":"plugin"}`)},
		Call{Network: "web", CNIVersion: "1.0.0", ContainerID: "c1", IfName: "eth0", Path: "/nonexistent:" + dir}, dir
}

func TestHowAPluginEnds(t *testing.T) {
	t.Parallel()
	const printed = `{"cniVersion":"1.0.0","code":11,"msg":"try again","details":"a lock is held"}`
	for _, row := range []struct {
		name, script string
		want         *types.Error // nil if it succeeds
		mentions     string       // in the message
	}{
		{"it succeeds and prints nothing", `exit 0`, nil, ""},
		{"it succeeds and prints something", `echo '{"cniVersion":"1.0.0"}'`, nil, ""},
		{"it succeeds without reading its request", `exec <&-; exit 0`, nil, ""},
		{"it prints an error and fails", `echo '` + printed + `'; exit 1`, &types.Error{Code: 11, Msg: "try again", Details: "a lock is held"}, ""},
		{"it prints an error, but succeeds", `echo '` + printed + `'`, nil, ""},
		{"it prints an error of an unknown code", `echo '{"code":4711,"msg":"m","new":{}}'; exit 1`, &types.Error{Code: 4711, Msg: "m"}, ""},
		{"it prints nothing and fails", `exit 3`, &types.Error{Code: types.ErrUnknown}, "exit status 3"},
		{"it prints no JSON and fails", `echo panic: no; exit 2`, &types.Error{Code: types.ErrUnknown, Details: "panic: no\n"}, "exit status 2"},
		{"it is killed", `kill -9 $$`, &types.Error{Code: types.ErrUnknown}, "signal: killed"},
		{"it is killed in the middle of its error", `printf '{"code":11,'; kill -9 $$`, &types.Error{Code: types.ErrUnknown, Details: `{"code":11,`}, "signal: killed"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			p, c, _ := script(t, "echo to the log >&2\n"+row.script)
			var stderr bytes.Buffer
			err := Runner{Stderr: &stderr}.Del(t.Context(), p, c)
			if stderr.String() != "to the log\n" {
				t.Errorf("stderr has %q", stderr.String())
			}
			if row.want == nil {
				if err != nil {
					t.Errorf("Del: %v", err)
				}
				return
			}
			var got *types.Error
			if !errors.As(err, &got) || errors.Is(err, ErrMissing) {
				t.Fatalf("Del: %T %v, want a *types.Error", err, err)
			}
			if got.Code != row.want.Code || got.Details != row.want.Details ||
				row.want.Msg != "" && got.Msg != row.want.Msg || !strings.Contains(got.Msg, row.mentions) {
				t.Errorf("the error is %+v, want %+v that mentions %q", *got, *row.want, row.mentions)
			}
		})
	}
}

func TestAPluginThatIsMissing(t *testing.T) {
	t.Parallel()
	p, c, dir := script(t, "exit 0")
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("none", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "orphan"), []byte("#!/nonexistent/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct{ name, plugin, path string }{
		{"it is in no directory", "none", c.Path},
		{"CNI_PATH is empty", "plugin", ""},
		{"CNI_PATH leads nowhere", "plugin", "/nonexistent"},
		{"it is a directory", "directory", c.Path},
		{"it is a symbolic link to nothing", "dangling", c.Path},
		{"its interpreter is gone", "orphan", c.Path},
		{"its type is a path", "../" + filepath.Base(dir) + "/plugin", c.Path},
	} {
		p.Type, c.Path = row.plugin, row.path
		err := Runner{Stderr: os.Stderr}.Del(t.Context(), p, c)
		if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), filepath.Base(row.plugin)) {
			t.Errorf("%s: %v; want ErrMissing, naming it", row.name, err)
		}
	}
}

func TestWhatAPluginIsGiven(t *testing.T) {
	t.Parallel()
	p, c, dir := script(t, `here=${0%/*}; cat >$here/stdin; cat /proc/$$/environ >$here/environ`)
	var anyByte []byte
	for b := 1; b < 256; b++ {
		anyByte = append(anyByte, byte(b))
	}
	c.Args = "IgnoreUnknown=1;A==;B=" + string(anyByte)
	c.NetNS = "/run/netns/c1"
	c.PrevResult = json.RawMessage(`{"cniVersion":"1.0.0"}`)
	if err := (Runner{Stderr: os.Stderr}).Del(t.Context(), p, c); err != nil {
		t.Fatal(err)
	}
	stdin, err := os.ReadFile(filepath.Join(dir, "stdin"))
	if want, _ := c.Request(p); err != nil || !bytes.Equal(stdin, want) {
		t.Errorf("standard input is %s, want %s", stdin, want)
	}
	environ, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"CNI_ARGS=" + c.Args, "CNI_COMMAND=DEL", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/run/netns/c1", "CNI_PATH=" + c.Path}
	if got := cniVariables(strings.Split(string(environ), "\x00")); !slices.Equal(got, want) {
		t.Errorf("the environment has\n%q\nwant\n%q", got, want)
	}
	if !strings.Contains(string(environ), "PATH=") {
		t.Error("the rest of the environment is gone")
	}
}

// What is not given must not be inherited: a plugin that calls plugins has a
// CNI environment of its own.
func TestNothingIsInheritedFromOurOwnCall(t *testing.T) {
	for _, name := range []string{"CNI_ARGS", "CNI_NETNS", "CNI_COMMAND", "CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"} {
		t.Setenv(name, "ours")
	}
	p, c, dir := script(t, `cat /proc/$$/environ >${0%/*}/environ`)
	if err := (Runner{Stderr: os.Stderr}).Del(t.Context(), p, c); err != nil {
		t.Fatal(err)
	}
	environ, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil || strings.Contains(string(environ), "ours") || strings.Count(string(environ), "CNI_") != 6 {
		t.Errorf("the environment is %q, %v", environ, err)
	}
}

func TestAPluginThatIsBeingInstalledIsWaitedFor(t *testing.T) {
	t.Parallel()
	p, c, dir := script(t, `exit 0`)
	installing, err := os.OpenFile(filepath.Join(dir, "plugin"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer installing.Close()
	if err := exec.Command(installing.Name()).Run(); !errors.Is(err, syscall.ETXTBSY) {
		t.Fatalf("running it: %v, want ETXTBSY", err)
	}
	time.AfterFunc(200*time.Millisecond, func() { installing.Close() })
	if err := (Runner{Stderr: os.Stderr}).Del(t.Context(), p, c); err != nil {
		t.Errorf("Del: %v", err)
	}
}

func TestACallThatIsCancelledEndsThePlugin(t *testing.T) {
	t.Parallel()
	p, c, dir := script(t, `touch ${0%/*}/up; exec sleep 600`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	start := time.Now()
	go func() {
		for time.Since(start) < 30*time.Second {
			if _, err := os.Stat(filepath.Join(dir, "up")); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	var e *types.Error
	if err := (Runner{Stderr: os.Stderr}).Del(ctx, p, c); !errors.As(err, &e) || !strings.Contains(e.Msg, "signal: killed") {
		t.Errorf("Del: %v, want it to be killed", err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %s", took)
	}
}

// A runtime that has run out of patience kills us. What we have started must
// not run on when the runtime has already begun to clean up.
func TestPluginsDieWithUs(t *testing.T) {
	const variable = "CHAIN_TEST_PLUGIN_DIR"
	if dir := os.Getenv(variable); dir != "" {
		p := Plugin{Type: "plugin", Config: json.RawMessage(`{}`)}
		t.Fatal((Runner{Stderr: os.Stderr}).Del(t.Context(), p, Call{Path: dir}))
	}
	t.Parallel()
	// The plugin, or whatever it has become, holds the FIFO open.
	_, _, dir := script(t, `exec 3>${0%/*}/fifo; echo up >&3; exec sleep 600`)
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // the kernel kills what this thread has started when it ends
	defer runtime.UnlockOSThread()
	us := exec.Command("/proc/self/exe", "-test.run=^TestPluginsDieWithUs$")
	us.Env = append(os.Environ(), variable+"="+dir)
	us.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := us.Start(); err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-us.Process.Pid, syscall.SIGKILL) // should the plugin outlive it
	// For reading and writing, so that opening does not wait for the plugin.
	fifo, err := os.OpenFile(filepath.Join(dir, "fifo"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	up := make([]byte, 3)
	fifo.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := fifo.Read(up); err != nil || string(up) != "up\n" {
		t.Errorf("the plugin says %q, %v", up, err)
	}
	reader, err := os.OpenFile(fifo.Name(), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	fifo.Close() // now the plugin is the only one that could write

	if err := us.Process.Kill(); err != nil {
		t.Error(err)
	}
	us.Wait()
	reader.SetDeadline(time.Now().Add(30 * time.Second))
	if n, err := reader.Read(up); n != 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the plugin still runs: %d, %v; want the end of the FIFO", n, err)
	}
}
