package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/test/sandbox"
)

// TestREADME types what the README tells a newcomer to type by hand, on a
// machine whose directories are copies. make demo and make test, which it names
// too, are what CI runs.
func TestREADME(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(readme), -1) {
		if block[1] != "make demo\n" && block[1] != "make test\n" {
			script.WriteString(block[1])
		}
	}
	if !strings.Contains(script.String(), "cnitool del") {
		t.Fatal("the README's commands by hand are not where this test looks for them")
	}
	for _, dir := range []string{"/etc", "/opt", "/usr/local"} {
		overlay(t, dir)
	}
	if err := os.MkdirAll("/etc/cni/net.d", 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-exc", script.String())
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if found := sandbox.Leftovers(); len(found) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(found, "\n"))
	}
}

// overlay makes dir a copy of itself.
func overlay(t *testing.T, dir string) {
	t.Helper()
	upper, work := filepath.Join(t.TempDir(), "upper"), filepath.Join(t.TempDir(), "work")
	for _, d := range []string{upper, work} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	options := "lowerdir=" + dir + ",upperdir=" + upper + ",workdir=" + work
	if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
		t.Fatalf("making %s a copy of itself: %v", dir, err)
	}
}
