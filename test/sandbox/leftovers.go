package sandbox

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// JournalFiles lists the attachments' files in a store.
func JournalFiles(dir string) []string {
	files, _ := filepath.Glob(dir + "/[^.]*/*")
	return files
}

// Leftovers lists the rules, chains, addresses, links and journal files that
// belong to an attachment. What plugins share among all of them (an empty
// CNI-HOSTPORT-DNAT chain, the bridge) is no leftover.
func Leftovers() []string {
	var found []string
	for _, line := range Output("iptables-save") {
		switch {
		case strings.Contains(line, "CNI-DN-"),
			strings.Contains(line, "-j CNI-") && strings.Contains(line, "-A POSTROUTING") && !strings.Contains(line, "CNI-HOSTPORT"),
			strings.HasPrefix(line, ":CNI-") && len(strings.Fields(line)[0]) > len(":CNI-")+20 && !strings.Contains(line, "HOSTPORT"),
			strings.HasPrefix(line, "-A CNI-FORWARD") && !strings.Contains(line, "CNI-ADMIN"):
			found = append(found, "iptables: "+line)
		}
	}
	for _, line := range Output("nft", "list", "ruleset") {
		if strings.Contains(line, "dnat to") || strings.Contains(line, "dnat ip to") {
			found = append(found, "nft: "+strings.TrimSpace(line))
		}
	}
	for _, line := range Output("ip", "-o", "link", "show", "type", "veth") {
		if line != "" {
			found = append(found, "link: "+line)
		}
	}
	addresses, _ := filepath.Glob("/var/lib/cni/networks/*/*.*.*.*")
	found = append(found, addresses...)
	return append(found, JournalFiles("/var/lib/durable-args")...)
}

// Output returns the lines that a command prints.
func Output(name string, args ...string) []string {
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		return []string{fmt.Sprintf("%s: %v", name, err)}
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
