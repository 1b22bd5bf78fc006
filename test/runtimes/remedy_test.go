package runtimes

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// remedy is what an operator does about a pod that is stuck, or has left
// something.
type remedy struct {
	name string
	mend func(n *node, p *pod) bool // false if it does not apply
}

// remedies are in the order in which they are tried, until all is well. Those
// of ours are left out without us.
var remedies = []remedy{
	{"another pod", startedAnother},
	{"`repair`", repaired},
	{"removing the damaged file", removedDamaged},
	{"`replay --force`", forced},
	{"removing the netns", removedNetns},
	{"`replay --stale`", replayed},
	{"GC", collected},
}

// has reports whether durable-argsctl has a command.
func (n *node) has(command string) bool {
	n.Helper()
	if n.help == "" {
		n.help = n.output(filepath.Join(n.bin, "durable-argsctl"), "--help")
	}
	return strings.Contains(n.help, "\n  "+command+" ")
}

// ctl runs durable-argsctl, and reports false if that is no use.
func (n *node) ctl(command string, args ...string) bool {
	n.Helper()
	if n.layout == none || !n.has(command) {
		return false
	}
	cmd := exec.Command(filepath.Join(n.bin, "durable-argsctl"), append([]string{command, "--conf-dir", n.confDir()}, args...)...)
	cmd.Env = n.env("CNI_PATH=" + n.pluginDir())
	out, err := cmd.CombinedOutput()
	n.Logf("%s: %v\n%s", cmd, err, out)
	return err == nil
}

// startedAnother starts another pod after a reboot, and removes it: with the
// first call the plugin repairs libcni's cache.
func startedAnother(n *node, _ *pod) bool {
	if n.layout == none || !n.rebooted || len(damaged()) == 0 || !n.has("repair") {
		return false
	}
	n.must(n.runtime.remove(n.runPod()).wait())
	return len(damaged()) == 0
}

// repaired has libcni's cache repaired from the journal.
func repaired(n *node, _ *pod) bool {
	return len(damaged()) > 0 && n.ctl("repair") && len(damaged()) == 0
}

// forced replays a pod that the runtime has forgotten, though its network
// namespace lives.
func forced(n *node, p *pod) bool {
	live, _ := filepath.Glob(netns + "/*")
	owed, _ := filepath.Glob(journal + "/" + network + "/*@*")
	if len(live) != 1 || len(owed) != 1 || n.runtime.knows(p) {
		return false
	}
	id, _, _ := strings.Cut(filepath.Base(owed[0]), "@")
	return n.ctl("replay", id, "--force")
}

// removedDamaged removes the files of libcni's cache that it cannot read.
func removedDamaged(n *node, _ *pod) bool {
	files := damaged()
	for _, file := range files {
		n.must(os.Remove(file))
	}
	return len(files) > 0
}

func damaged() []string {
	var found []string
	files, _ := filepath.Glob(cache + "/*")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && !json.Valid(text) {
			found = append(found, file)
		}
	}
	return found
}

// removedNetns removes network namespaces that belong to nobody: a runtime that
// was killed before it had noted its pod has forgotten them, too. While they
// live, nothing that belongs to them is stale.
func removedNetns(n *node, p *pod) bool {
	files, _ := filepath.Glob(netns + "/*")
	if n.runtime.knows(p) || len(files) == 0 {
		return false
	}
	for _, file := range files {
		_ = unix.Unmount(file, unix.MNT_DETACH)
		n.must(os.Remove(file))
	}
	return true
}

// replayed replays from the journal what is stale.
func replayed(n *node, _ *pod) bool { return n.ctl("replay", "--stale") }

// collected lets the plugin collect garbage. No runtime here does.
func collected(n *node, _ *pod) bool {
	if n.layout == none {
		return false
	}
	request, err := json.Marshal(stanza{
		"cniVersion": "1.1.0", "name": network, "type": "durable-args", "confDir": n.confDir(),
		"cni.dev/valid-attachments": []any{},
	})
	n.must(err)
	cmd := exec.Command(filepath.Join(n.bin, "durable-args"))
	cmd.Env = n.env("CNI_COMMAND=GC", "CNI_PATH="+n.pluginDir())
	cmd.Stdin = strings.NewReader(string(request))
	out, err := cmd.CombinedOutput()
	n.Logf("GC: %v\n%s", err, out)
	return true
}

// scrub makes the machine fit for the next fault. What is left has a name of its
// own, and does not disturb; only a runtime that has gone wrong is made anew.
func (n *node) scrub() {
	if !n.Failed() {
		for line := range state() {
			n.before[line] = true
		}
		n.writeConflist(n.layout, chain)
		n.reloaded()
		return
	}
	n.reboot()
	for _, dir := range []string{cache, ipam, journal} {
		n.must(os.RemoveAll(dir))
	}
	n.writeConflist(n.layout, chain)
	n.runtime.forget()
	n.runtime.start()
	n.warmUp()
}
