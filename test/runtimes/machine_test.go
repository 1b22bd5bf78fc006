package runtimes

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const bootID = "/proc/sys/kernel/random/boot_id"

// podmanOverlay is mounted on itself by podman while it has something to do.
const podmanOverlay = "/var/lib/containers/storage/overlay"

// furnish gives the sandbox what runtimes need beyond what tests need: podman
// keeps its locks in /dev/shm.
func (n *node) furnish() {
	n.must(unix.Mount("tmpfs", "/dev/shm", "tmpfs", 0, ""))
}

// reboot does what a reboot does to everything outside of the kernel, and to
// its network: no process, mount, network namespace, link or rule is left, and
// /run is empty. What is on the disk stays. (A kernel cannot be given a new
// boot ID; so the old one's file is covered.)
func (n *node) reboot() {
	n.rebooted = true
	n.until("all processes have died", func() bool {
		all := processes()
		for _, p := range all {
			kill(p.pid)
		}
		return len(all) == 0
	})
	points := mountPoints()
	for _, point := range slices.Backward(sortedKeys(points)) {
		if !n.mounts[point] {
			_ = unix.Unmount(point, unix.MNT_DETACH)
		}
	}
	for _, dir := range []string{"/run", "/dev/shm"} {
		entries, err := os.ReadDir(dir)
		n.must(err)
		for _, entry := range entries {
			n.must(os.RemoveAll(filepath.Join(dir, entry.Name())))
		}
	}
	n.output("nft", "flush", "ruleset")
	for _, link := range links() {
		_ = exec.Command("ip", "link", "del", link).Run() // veths go with their namespaces, too
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random)
	id := fmt.Sprintf("%x-%x-%x-%x-%x\n", random[:4], random[4:6], random[6:8], random[8:10], random[10:])
	file := filepath.Join(n.dir, "boot_id")
	n.must(os.WriteFile(file, []byte(id), 0o444))
	n.must(unix.Mount(file, bootID, "", unix.MS_BIND, ""))
}

// mountPoints are where something is mounted.
func mountPoints() map[string]bool {
	points := make(map[string]bool)
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return points
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		points[strings.Fields(lines.Text())[4]] = true
	}
	return points
}

// links are the names of the network interfaces beside lo.
func links() []string {
	out, _ := exec.Command("ip", "-o", "link").Output()
	var names []string
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSuffix(strings.Fields(line)[1], ":"), "@")
		if name != "lo" {
			names = append(names, name)
		}
	}
	return names
}

// state is everything on the machine that can belong to a pod, a line each.
func state() map[string]bool {
	lines := make(map[string]bool)
	for _, save := range []string{"iptables-save", "ip6tables-save"} {
		out, _ := exec.Command(save).Output()
		table := ""
		for line := range strings.Lines(string(out)) {
			switch line = strings.TrimSpace(line); {
			case strings.HasPrefix(line, "*"):
				table = line[1:]
			case strings.HasPrefix(line, ":"):
				lines[save+" "+table+" "+strings.Fields(line)[0]] = true // without its counters
			case strings.HasPrefix(line, "-A"):
				lines[save+" "+table+" "+line] = true
			}
		}
	}
	for _, link := range links() {
		lines["link "+link] = true
	}
	for _, dir := range []string{cache, ipam, journal, netns} {
		_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				lines["file "+path] = true
			}
			return nil
		})
	}
	for point := range mountPoints() {
		if point != bootID && point != podmanOverlay {
			lines["mount "+point] = true
		}
	}
	for _, p := range processes() {
		lines["process "+p.name] = true
	}
	return lines
}

// left lists what a pod has left behind, if it does not go in time.
func (n *node) left(wait time.Duration) []string {
	var found []string
	n.settle(wait, func() bool {
		found = nil
		for _, line := range sortedKeys(state()) {
			if !n.before[line] {
				found = append(found, line)
			}
		}
		return len(found) == 0
	})
	return found
}

// kindsOf says in a few words what the lines of state are about.
func kindsOf(lines []string) []string {
	kinds := make(map[string]bool)
	for _, line := range lines {
		kinds[kindOf(line)] = true
	}
	return sortedKeys(kinds)
}

func kindOf(line string) string {
	has := func(s string) bool { return strings.Contains(line, s) }
	switch {
	case has("CNI-DN-") || has("CNI-HOSTPORT"):
		return "DNAT"
	case has("CNI-FORWARD"):
		return "firewall"
	case has("tables-save nat"):
		return "masquerade"
	case has("link veth"):
		return "veth"
	case has("link bwp"):
		return "ifb"
	case has(ipam):
		return "IP"
	case has(cache):
		return "cache file"
	case has(journal):
		return "journal"
	case has(netns):
		return "netns"
	}
	return line
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// removeCgroups removes what a runtime leaves of its cgroups, which no
// namespace takes away.
func removeCgroups(name string) {
	tops, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	for _, top := range append(tops, "/sys/fs/cgroup/"+name) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			_ = unix.Rmdir(dir)
		}
	}
}
