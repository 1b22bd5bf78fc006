package runtimes

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is one of those in the sandbox's PID namespace.
type process struct {
	pid, parent int
	name        string
}

// processes lists those that the sandbox itself does not consist of, and that
// have not ended.
func processes() []process {
	var found []process
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has just ended
		}
		// 4711 (name) S parent ..., and a name may hold anything.
		open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
		fields := strings.Fields(string(text[end+1:]))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text[:open])))
		parent, _ := strconv.Atoi(fields[1])
		if pid == 1 || pid == os.Getpid() || fields[0] == "Z" {
			continue
		}
		found = append(found, process{pid, parent, string(text[open+1 : end])})
	}
	return found
}

func kill(pid int) { _ = unix.Kill(pid, unix.SIGKILL) }

// killTree kills a process, then its children and theirs. It asks for them
// before, since they have another parent afterwards.
func killTree(pid int) {
	tree := []int{pid}
	all := processes()
	for i := 0; i < len(tree); i++ {
		for _, p := range all {
			if p.parent == tree[i] && !slices.Contains(tree, p.pid) {
				tree = append(tree, p.pid)
			}
		}
	}
	for _, pid := range tree {
		kill(pid)
	}
}
