package e2e

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/durable-args/durable-args/test/sandbox"
)

// TestSystemdUnits lets systemd say what it thinks of the units that make
// install puts in place.
func TestSystemdUnits(t *testing.T) {
	t.Parallel()
	if !sandbox.Enter(t) {
		return
	}
	overlay(t, "/usr/local")
	overlay(t, "/opt")
	install := exec.Command("make", "install")
	install.Dir = "../.."
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("make install: %v\n%s", err, out)
	}
	units, err := filepath.Glob("/usr/local/lib/systemd/system/durable-args-*")
	if err != nil || len(units) != 3 {
		t.Fatalf("make install has put %q in place: %v", units, err)
	}
	out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, units...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}
