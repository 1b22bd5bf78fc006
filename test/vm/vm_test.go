// Package vm runs whole machines: kernels of Debian's in qemu.
//
// One runs the unit tests on arm64. The other has its power cut: qemu is killed. What a killed qemu has written is safe in the host's memory, so
// qemu logs each write and flush of the guest's disk, and the disks that a power
// cut can leave are put together from that: all that was flushed, and all, none
// or some of what was not. test/crash does the same without a machine, more
// often and more strictly; this one adds a kernel that really dies.
//
// VM_CUTS says how many times; without it nothing is run. VM_KVM=1 uses KVM. See
// make crash-vm.
package vm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/test/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

const (
	diskSize = 96 << 20
	bootTime = 3 * time.Minute // without KVM, on a busy machine
)

func TestNothingAcknowledgedIsLostWhenAMachineLosesItsPower(t *testing.T) {
	cuts, err := strconv.Atoi(os.Getenv("VM_CUTS"))
	if err != nil {
		t.Skip("not asked for: make crash-vm cuts the power of a virtual machine; make crash covers the same without one")
	}
	for _, tool := range []string{"qemu-system-x86_64", "mkfs.ext4"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing, so NO MACHINE IS CUT OFF; only make crash stands for it", tool)
		}
	}
	kernel := filepath.Join(sandbox.Bin(t), "vm", "amd64")
	if images, _ := filepath.Glob(filepath.Join(kernel, "boot", "vmlinuz-*")); len(images) != 1 {
		t.Skip("there is no kernel in bin/vm/amd64, so NO MACHINE IS CUT OFF; only make crash stands for it")
	}
	if !sandbox.Enter(t) {
		return
	}
	m := newMachine(t, kernel)
	var total tally
	for n := range cuts {
		m.cut(t, n, &total)
	}
	if total.control == 0 {
		t.Error("the control, which flushes nothing, has lost nothing, so this test is blind")
	}
	if total.acknowledged == 0 {
		t.Error("nothing has been acknowledged, so nothing is proved")
	}
	sandbox.Report(t, fmt.Sprintf("%-6s %5s %7s %13s %6s %13s\n%-6s %5d %7d %13d %6d %13d\n",
		"method", "cuts", "states", "acknowledged", "lost", "control lost", "vm", cuts, total.states, total.acknowledged, total.lost, total.control))
}

// tally is what was found: entries are added up over all states.
type tally struct{ states, acknowledged, lost, control int }

type machine struct{ dir, kernel, initramfs string }

func (m machine) path(name string) string { return filepath.Join(m.dir, name) }

// newMachine builds what a machine boots.
func newMachine(t *testing.T, root string) machine {
	t.Helper()
	m := machine{dir: t.TempDir()}
	images, _ := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	m.kernel, m.initramfs = images[0], m.path("initramfs")
	succeed := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", m.path("init"), "./init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building init: %v: %s", err, out)
	}
	var archive bytes.Buffer
	for _, dir := range []string{"proc", "sys", "dev", "disk", "cache", "conf"} {
		member(&archive, dir, 0o40755, nil)
	}
	succeed(addModules(&archive, root))
	conflist := `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"durable-args"},{"type":"noop"}]}`
	member(&archive, "conf/web.conflist", 0o100644, []byte(conflist))
	files := map[string]string{"init": m.path("init"), "durable-args": filepath.Join(sandbox.Bin(t), "durable-args")}
	for name, path := range files {
		content, err := os.ReadFile(path)
		succeed(err)
		member(&archive, name, 0o100755, content)
	}
	member(&archive, "TRAILER!!!", 0, nil)
	succeed(os.WriteFile(m.initramfs, archive.Bytes(), 0o600))
	succeed(os.WriteFile(m.path("base"), nil, 0o600))
	succeed(os.Truncate(m.path("base"), diskSize))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", m.path("base")).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	return m
}

// boot runs a machine on a disk, of which it logs the writes to that name + ".log".
// Each line on its console goes to line, until that returns false: then its
// power is cut.
func (m machine) boot(disk, arguments string, line func(string) bool) error {
	if err := os.WriteFile(disk+".log", nil, 0o600); err != nil {
		return err
	}
	// Not every /dev/kvm can run a kernel that it was not made for, so it has to
	// be asked for.
	accel := "tcg"
	if kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil && os.Getenv("VM_KVM") != "" {
		kvm.Close()
		accel = "kvm"
	}
	// The kernel is silent, so that it does not break into what init says.
	cmd := exec.Command("qemu-system-x86_64", "-M", "pc", "-accel", accel, "-cpu", "max", "-m", "256", "-nographic", "-no-reboot", "-nodefaults",
		"-serial", "stdio", "-kernel", m.kernel, "-initrd", m.initramfs, "-append", "console=ttyS0 loglevel=0 panic=-1 "+arguments,
		"-blockdev", "driver=file,node-name=disk,filename="+disk,
		"-blockdev", "driver=file,node-name=log,filename="+disk+".log",
		"-blockdev", "driver=blklogwrites,node-name=logged,file=disk,log=log",
		"-device", "virtio-blk-pci,drive=logged")
	return watch(cmd, bootTime, line)
}

// acknowledged is what a machine has said.
type acknowledged struct{ added, control map[string]bool }

// cut boots a machine, cuts its power, and looks at what that can have left.
func (m machine) cut(t *testing.T, n int, total *tally) {
	base, err := os.ReadFile(m.path("base"))
	if err != nil {
		t.Fatal(err)
	}
	disk := m.path("disk")
	if err := os.WriteFile(disk, base, 0o600); err != nil {
		t.Fatal(err)
	}
	ack := acknowledged{make(map[string]bool), make(map[string]bool)}
	enough := 10 + rand.N(60)
	seen := 0
	err = m.boot(disk, "", func(line string) bool {
		what, id, _ := strings.Cut(line, " ")
		switch what {
		case "added":
			ack.added[id] = true
			seen++
		case "control":
			ack.control[id] = true
		case "deleting":
			delete(ack.added, id)
		case "init:":
			t.Errorf("cut %d: %s", n, line)
		}
		return seen < enough
	})
	if err != nil {
		t.Fatal(err)
	}
	writes, flushed, err := readLog(disk + ".log")
	if err != nil {
		t.Fatal(err)
	}
	for _, keep := range []struct {
		name string
		odds float64
	}{{"none", 0}, {"all", 1}, {"some", 0.5}, {"most", 0.9}} {
		image := bytes.Clone(base)
		for i, w := range writes {
			if i < flushed || rand.Float64() < keep.odds {
				copy(image[w.off:], w.data)
			}
		}
		when := fmt.Sprintf("cut %d, %s of %d writes kept of those not flushed", n, keep.name, len(writes)-flushed)
		if err := os.WriteFile(m.path("state"), image, 0o600); err != nil {
			t.Fatal(err)
		}
		if keep.odds == 0.5 && n == 0 {
			m.reboot(t, when, ack)
		}
		if err := m.look(t, when, ack, total); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
}

// look mounts a state here, and holds what is in it against what was acknowledged.
func (m machine) look(t *testing.T, when string, ack acknowledged, total *tally) (err error) {
	dir := m.path("mounted")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if out, err := exec.Command("mount", "-t", "ext4", "-o", "loop", m.path("state"), dir).CombinedOutput(); err != nil {
		return fmt.Errorf("mounting: %w: %s", err, out)
	}
	defer func() { err = errors.Join(err, exec.Command("umount", dir).Run()) }()
	total.states++
	total.acknowledged += len(ack.added)
	store, err := journal.Open(filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	defer store.Close()
	for id := range ack.added {
		rec, err := store.Read(journal.Key{Network: "web", ContainerID: id, IfName: "eth0"})
		if err != nil || !whole(rec, id) {
			total.lost++
			t.Errorf("%s: %s is lost: %+v, %v", when, id, rec, err)
		}
	}
	for id := range ack.control {
		if content, err := os.ReadFile(filepath.Join(dir, "control", id)); err != nil || string(content) != id {
			total.control++
		}
	}
	return nil
}

// whole reports whether rec is what an ADD for id journals.
func whole(rec journal.Record, id string) bool {
	return len(rec.Adds) == 1 && len(rec.Damaged) == 0 && string(rec.Newest().Args) == "TOKEN="+id && len(rec.Newest().Chain) == 1
}

// reboot lets a machine itself read a state.
func (m machine) reboot(t *testing.T, when string, ack acknowledged) {
	t.Helper()
	content, err := os.ReadFile(m.path("state"))
	if err == nil {
		err = os.WriteFile(m.path("again"), content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]bool)
	var said []string
	if err := m.boot(m.path("again"), "check", func(line string) bool {
		said = append(said, line)
		if id, ok := strings.CutPrefix(line, "whole "); ok {
			found[id] = true
		}
		return line != "checked"
	}); err != nil {
		t.Fatalf("%s: booting again: %v", when, err)
	}
	for id := range ack.added {
		if !found[id] {
			t.Errorf("%s: the machine that was booted again does not find %s: %q", when, id, said)
		}
	}
}

// write is one write to the disk.
type write struct {
	off  int64
	data []byte
}

// readLog reads a log of qemu's blklogwrites, which is that of dm-log-writes. It
// returns the writes in order, and how many of them were flushed.
func readLog(path string) (writes []write, flushed int, err error) {
	const (
		sector         = 512
		magic          = 0x6a736677736872
		flush, discard = 1, 4
	)
	log, err := os.ReadFile(path)
	if err != nil {
		return nil, 0, err
	}
	if len(log) < sector || binary.LittleEndian.Uint64(log) != magic {
		return nil, 0, errors.New("qemu has logged no writes")
	}
	// The count of entries in front is not always up to date.
	for log = log[sector:]; len(log) >= sector; {
		at, sectors, flags := binary.LittleEndian.Uint64(log), binary.LittleEndian.Uint64(log[8:]), binary.LittleEndian.Uint64(log[16:])
		log = log[sector:]
		if sectors == 0 && flags == 0 {
			break
		}
		if flags&flush != 0 {
			flushed = len(writes)
		}
		size := int(sectors) * sector
		if flags&discard != 0 || size == 0 {
			continue
		}
		if size > len(log) {
			break // it was being written
		}
		writes = append(writes, write{int64(at) * sector, log[:size]})
		log = log[size:]
	}
	return writes, flushed, nil
}
