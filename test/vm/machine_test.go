package vm

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// member adds a file to a cpio archive (newc).
func member(archive *bytes.Buffer, name string, mode int, content []byte) {
	fmt.Fprintf(archive, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		archive.Len(), mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
	pad := func() { archive.Write(make([]byte, -archive.Len()&3)) }
	archive.WriteString(name + "\x00")
	pad()
	archive.Write(content)
	pad()
}

// addModules adds to a cpio archive what the disk needs, named in the order in which
// it is loaded. root is where a kernel has been unpacked.
func addModules(archive *bytes.Buffer, root string) error {
	member(archive, "modules", 0o40755, nil)
	for i, module := range []string{"virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk"} {
		found, err := filepath.Glob(filepath.Join(root, "lib/modules/*/kernel/drivers/*", module+".ko"))
		if err != nil {
			return err
		}
		if len(found) != 1 {
			continue // it is built in
		}
		content, err := os.ReadFile(found[0])
		if err != nil {
			return err
		}
		member(archive, fmt.Sprintf("modules/%d", i), 0o100755, content)
	}
	return nil
}

// watch runs a machine. Each line on its console goes to line, until that returns
// false: then its power is cut. It is an error if it ends otherwise, or lives
// longer than limit.
func watch(cmd *exec.Cmd, limit time.Duration, line func(string) bool) error {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	watchdog := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	var console []string
	cut := false
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		text := strings.TrimRight(lines.Text(), "\r ")
		console = append(console, text)
		// What it has said before it died still counts.
		if !line(text) && !cut {
			cut = true
			_ = cmd.Process.Kill()
		}
	}
	watchdog.Stop()
	_ = cmd.Wait()
	if !cut {
		return fmt.Errorf("the machine has ended by itself, or was too slow: %s%s", stderr.Bytes(), strings.Join(console[max(0, len(console)-10):], "\n"))
	}
	return nil
}
