// Package sandbox gives a test a machine of its own: network, mount and PID
// namespaces in which it is root. The kernel takes it all down with the
// process, however that ends, so a test cannot leave a bridge, rule, namespace
// or process behind.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inside is set in the environment of a test that is in its sandbox.
const inside = "DURABLE_ARGS_SANDBOX"

// Enter runs the calling test again, alone, in a sandbox. In the test that
// called first it returns false, once the other has ended, with its outcome; in
// the sandbox it returns true. There /run and /var/lib are empty, the one in memory
// and the other on the disk that holds the temporary directory.
func Enter(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root: it makes network namespaces, bridges and rules of its own; run make test as root")
	}
	var pattern []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	timeout := time.Duration(0) // none
	if deadline, ok := t.Deadline(); ok {
		timeout = time.Until(deadline)
	}
	dir := t.TempDir()
	cmd := Command(dir, "-test.run="+strings.Join(pattern, "/"), "-test.v", "-test.timeout="+timeout.String())
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Fatalf("in the sandbox: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skip(string(out))
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Fatalf("the test did not run in the sandbox:\n%s", out)
	}
	if text, err := os.ReadFile(filepath.Join(dir, report)); err == nil {
		t.Logf("\n%s", text)
	}
	return false
}

// report is the file with what a test has to say.
const report = "report"

// Report shows text to who runs the test, though it succeeds: go test -v.
func Report(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(os.Getenv(inside), report), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Main is TestMain for packages whose tests call Enter.
func Main(m *testing.M) {
	if _, err := Furnish(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Command is a command that runs the calling program again, in a sandbox whose
// disk is dir. The program calls Furnish first.
func Command(dir string, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		exe = os.Args[0]
	}
	// The shell is PID 1, and waits for orphans as an init does: to some a zombie
	// looks alive.
	cmd := exec.Command("sh", append([]string{"-c", `"$@"; exit $?`, "sh", exe}, args...)...)
	cmd.Env = append(os.Environ(), inside+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd
}

// Furnish reports whether the calling program is in a sandbox, and furnishes
// that.
func Furnish() (bool, error) {
	dir := os.Getenv(inside)
	if dir == "" {
		return false, nil
	}
	if err := furnish(dir); err != nil {
		return true, fmt.Errorf("furnishing the sandbox: %w", err)
	}
	return true, nil
}

func furnish(dir string) error {
	var errs []error
	mount := func(source, target, fstype string, flags uintptr) {
		if err := unix.Mount(source, target, fstype, flags, ""); err != nil {
			errs = append(errs, fmt.Errorf("mounting %s: %w", target, err))
		}
	}
	mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE)
	mount("proc", "/proc", "proc", 0)
	mount("tmpfs", "/run", "tmpfs", 0)
	mount("", "/run", "", unix.MS_SHARED) // as where systemd runs
	lib := filepath.Join(dir, "lib")
	errs = append(errs, os.Mkdir(lib, 0o755))
	mount(lib, "/var/lib", "", unix.MS_BIND)
	errs = append(errs, exec.Command("ip", "link", "set", "lo", "up").Run())
	return errors.Join(errs...)
}

// Bin returns the directory where make puts the binaries, bin at the top of
// the repository.
func Bin(t testing.TB) string {
	t.Helper()
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "cni", "cnitool")); err != nil {
		t.Fatalf("the binaries under test are not built; run: make build tools (%v)", err)
	}
	return bin
}
