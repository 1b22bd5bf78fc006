// Command init is all there is in the virtual machine: it mounts the disk, and
// ADDs and DELs with the plugin, several processes at once, until the power is
// cut. Each acknowledgement is a line on the console.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/journal"
)

const workers = 3

func main() {
	fmt.Println() // ends the line that the BIOS has begun
	if err := run(); err != nil {
		fmt.Println("init:", err)
	}
	time.Sleep(time.Second) // for the console
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func run() error {
	for _, m := range [][3]string{{"proc", "/proc", "proc"}, {"sys", "/sys", "sysfs"}, {"dev", "/dev", "devtmpfs"}} {
		if err := unix.Mount(m[0], m[1], m[2], 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mounting %s: %w", m[1], err)
		}
	}
	modules, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	for _, module := range modules { // their names are in the right order
		f, err := os.Open(module)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("loading %s: %w", module, err)
		}
	}
	for range 100 { // the disk may be slow to appear
		if err = unix.Mount("/dev/vda", "/disk", "ext4", 0, ""); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("mounting the disk: %w", err)
	}
	if strings.Contains(read("/proc/cmdline"), "check") {
		return check()
	}
	if err := os.MkdirAll("/disk/control", 0o700); err != nil {
		return err
	}
	netns := make(chan string)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			fmt.Println("init: making a network namespace:", err)
		}
		netns <- fmt.Sprintf("/proc/1/task/%d/ns/net", unix.Gettid())
		select {}
	}()
	path := <-netns
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for n := range 1 << 20 {
				work(fmt.Sprintf("c%d-%d", w, n), path)
				if n >= 10 && n%2 == 0 {
					del(fmt.Sprintf("c%d-%d", w, n-10), path)
				}
			}
		})
	}
	wg.Wait()
	return nil
}

func read(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

// work makes an entry of the plugin's, and one of the control's, which flushes
// nothing.
func work(id, netns string) {
	if err := call("ADD", id, netns); err != nil {
		fmt.Println("init:", err)
		return
	}
	fmt.Printf("added %s\n", id)
	if os.WriteFile("/disk/control/"+id, []byte(id), 0o600) == nil {
		fmt.Printf("control %s\n", id)
	}
}

// del says that it begins: from then on, the entry may be there or not.
func del(id, netns string) {
	fmt.Printf("deleting %s\n", id)
	if err := call("DEL", id, netns); err != nil {
		fmt.Println("init:", err)
	}
}

func call(command, id, netns string) error {
	cmd := exec.Command("/durable-args")
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + netns, "CNI_IFNAME=eth0", "CNI_PATH=/nowhere",
		"CNI_ARGS=TOKEN=" + id}
	cmd.Stdin = strings.NewReader(`{"type":"durable-args","name":"web","cniVersion":"1.0.0","dataDir":"/disk/data","confDir":"/conf","cacheDir":"/cache"}`)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return nil
}

// check says which attachments are in the journal, whole.
func check() error {
	store, err := journal.Open("/disk/data")
	if err != nil {
		return err
	}
	defer store.Close()
	keys, err := store.Keys("web")
	if err != nil {
		return err
	}
	for _, key := range keys {
		rec, err := store.Read(key)
		if err == nil && len(rec.Adds) == 1 && len(rec.Damaged) == 0 && string(rec.Newest().Args) == "TOKEN="+key.ContainerID {
			fmt.Printf("whole %s\n", key.ContainerID)
		}
	}
	fmt.Println("checked")
	return nil
}
