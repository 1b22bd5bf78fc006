package vm

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/durable-args/durable-args/test/sandbox"
)

// arm64Init runs every test program where its package is, on a disk.
const arm64Init = `#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod $module; done
until [ -b /dev/vda ]; do sleep 0.1; done
mount -t ext4 /dev/vda /tmp
for test in $(find /src -name unit.test | sort); do
	cd ${test%/unit.test}
	echo "run $PWD"
	if $test -test.v -test.timeout=20m </dev/null 2>&1; then echo "passed $PWD"; else echo "failed $PWD"; fi
done
echo done
sleep 60
`

// What the machine has not got: the test that this names says what covers it.
const notOnArm64 = "insert under SIGKILL and failing system calls needs strace and Go on the machine; make test runs it on this one"

// TestTheUnitTestsPassOnArm64 emulates the whole machine and not only its programs:
// the kernel's part, network namespaces and their cookies, is what they are about.
func TestTheUnitTestsPassOnArm64(t *testing.T) {
	if os.Getenv("VM_ARM64") == "" {
		t.Skip("not asked for: make test-arm64 runs the unit tests on an emulated arm64 machine; make test builds them for this one only")
	}
	for _, tool := range []string{"qemu-system-aarch64", "mkfs.ext4"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing, so NOTHING IS RUN ON ARM64", tool)
		}
	}
	root := filepath.Join(sandbox.Bin(t), "vm", "arm64")
	images, _ := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if len(images) != 1 {
		t.Skip("there is no kernel in bin/vm/arm64, so NOTHING IS RUN ON ARM64")
	}
	dir := t.TempDir()
	initramfs, disk := filepath.Join(dir, "initramfs"), filepath.Join(dir, "disk")
	packages := buildArm64(t, root, initramfs)
	err := os.WriteFile(disk, nil, 0o600)
	if err == nil {
		err = os.Truncate(disk, 1<<30)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", disk).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}

	cmd := exec.Command("qemu-system-aarch64", "-M", "virt", "-accel", "tcg,thread=multi", "-cpu", "max,pauth-impdef=on", "-smp", "2", "-m", "2048",
		"-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio", "-kernel", images[0], "-initrd", initramfs,
		"-append", "console=ttyAMA0 loglevel=1 panic=-1 rdinit=/init", "-drive", "if=none,id=disk,format=raw,file="+disk, "-device", "virtio-blk-pci,drive=disk")
	passed := make(map[string]bool)
	var said []string
	err = watch(cmd, time.Hour, func(line string) bool {
		said = append(said, line)
		what, where, _ := strings.Cut(line, " ")
		switch what {
		case "run":
			said = nil
		case "passed":
			passed[where] = true
			for i, line := range said {
				if strings.Contains(line, "--- SKIP") {
					t.Logf("%s: %s", where, strings.Join(said[i:min(i+2, len(said))], " "))
				}
			}
		case "failed":
			t.Errorf("%s:\n%s", where, strings.Join(said, "\n"))
		}
		return line != "done"
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		if !passed[p] {
			t.Errorf("%s has not passed", p)
		}
	}
	t.Logf("%d packages on arm64; %s", len(passed), notOnArm64)
}

// buildArm64 makes an initramfs of the repository, with a test program in each
// package, and returns where these are.
func buildArm64(t *testing.T, root, initramfs string) (packages []string) {
	t.Helper()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0", "GOFLAGS=-trimpath")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	var archive bytes.Buffer
	add := func(name string, mode int, path string) {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		member(&archive, name, mode, content)
	}
	made := make(map[string]bool)
	var directory func(string)
	directory = func(name string) {
		if name != "." && !made[name] {
			directory(filepath.Dir(name))
			made[name] = true
			member(&archive, name, 0o40755, nil)
		}
	}
	for _, dir := range []string{"bin", "proc", "sys", "dev", "tmp", "run", "src"} {
		directory(dir)
	}
	member(&archive, "init", 0o100755, []byte(arm64Init))
	add("bin/busybox", 0o100755, filepath.Join(root, "bin", "busybox"))
	if err := addModules(&archive, root); err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(run("git", "-c", "safe.directory=*", "ls-files"), "\n") {
		directory(filepath.Dir(filepath.Join("src", name)))
		add(filepath.Join("src", name), 0o100644, filepath.Join("../..", name))
	}
	for line := range strings.SplitSeq(run("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}", "./..."), "\n") {
		path, dir, ok := strings.Cut(line, " ")
		if !ok {
			continue
		}
		program := filepath.Join(t.TempDir(), "unit.test")
		run("go", "test", "-c", "-o", program, path)
		relative, err := filepath.Rel(run("go", "list", "-m", "-f", "{{.Dir}}"), dir)
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join("src", relative)
		add(filepath.Join(at, "unit.test"), 0o100755, program)
		packages = append(packages, "/"+at)
	}
	if len(packages) == 0 {
		t.Fatal("there are no packages with tests")
	}
	member(&archive, "TRAILER!!!", 0, nil)
	if err := os.WriteFile(initramfs, archive.Bytes(), 0o600); err != nil {
		t.Fatal(fmt.Errorf("writing the initramfs: %w", err))
	}
	return packages
}
