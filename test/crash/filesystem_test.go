package crash

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// blockSize is that of our loop devices: what a disk writes whole or not at all.
const blockSize = 4096

// filesystem is one on which the journal has to hold.
type filesystem struct {
	name string
	size int64 // of the disk, which is sparse
	mkfs []string
	// options let several states of one disk be mounted at once; see atOnce.
	options string
	// shutdown says that it can be cut off from its disk.
	shutdown bool
}

var filesystems = []filesystem{
	{"ext4", 96 << 20, []string{"mkfs.ext4", "-q", "-F", "-b", "4096"}, "", true},
	{"xfs", 320 << 20, []string{"mkfs.xfs", "-q", "-f", "-s", "size=4096"}, "nouuid", true},
	{"btrfs", 256 << 20, []string{"mkfs.btrfs", "-q", "-f"}, "", false},
}

// missing says what this machine lacks for f, empty if nothing.
func (f filesystem) missing() string {
	if _, err := exec.LookPath(f.mkfs[0]); err != nil {
		pkg := map[string]string{"ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}[f.name]
		return f.mkfs[0] + " is missing; apt-get install " + pkg
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "the kernel has no loop devices"
	}
	known, err := os.ReadFile("/proc/filesystems")
	if err == nil && !slices.Contains(strings.Fields(string(known)), f.name) && exec.Command("modprobe", f.name).Run() != nil {
		return "the kernel has no " + f.name
	}
	return ""
}

// atOnce is how many states of one disk can be mounted at once. They have the
// same UUID, which btrfs bears since Linux 6.7.
func (f filesystem) atOnce() int {
	if _, err := os.Stat("/sys/fs/btrfs/features/temp_fsid"); f.name == "btrfs" && err != nil {
		return 1
	}
	return runtime.NumCPU()
}

// format makes the file system on a device or file.
func (f filesystem) format(path string) error {
	out, err := exec.Command(f.mkfs[0], append(f.mkfs[1:], path)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", f.mkfs[0], err, out)
	}
	return nil
}

// image makes a file for a disk.
func (f filesystem) image(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(f.size); err != nil {
		t.Fatal(err)
	}
	return path
}

// attach makes file the backing of a loop device, which is gone once it is
// closed and no longer mounted.
func attach(path string, flags uint32) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: blockSize}
	config.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | flags
	for range 100 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("asking for a loop device: %w", err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if err != unix.EBUSY { // somebody else was faster
			return nil, fmt.Errorf("configuring %s: %w", dev.Name(), err)
		}
		time.Sleep(time.Millisecond)
	}
	return nil, errors.New("no loop device is free")
}

func (f filesystem) mount(dev, dir, options string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(dev, dir, f.name, unix.MS_NOATIME, options); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", f.name, filepath.Base(dev), err)
	}
	return nil
}

func unmount(dir string) (err error) {
	for range 100 {
		// A process that is just being started has our descriptors for a moment.
		if err = unix.Unmount(dir, 0); err != unix.EBUSY {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("unmounting %s: %w", dir, err)
	}
	return nil
}

// cutOff cuts the file system at dir off from its disk, and drops its log as
// far as it has not been written. The number is the same for all that know it.
func cutOff(dir *os.File) error {
	const goingDown, noLogFlush = 0x8004587d, 2
	if err := unix.IoctlSetPointerInt(int(dir.Fd()), goingDown, noLogFlush); err != nil {
		return fmt.Errorf("cutting off %s: %w", dir.Name(), err)
	}
	return nil
}
