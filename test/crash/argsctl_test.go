package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/durable-args/durable-args/pkg/journal"
)

// argsctl is durable-argsctl as a writer: of conflists, and of libcni's cache.
type argsctl struct{ binary, plugin string }

func (a argsctl) run(args ...string) error {
	out, err := exec.Command(a.binary, append(args, "--conf-dir", confDir)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// editing is what is done to a conflist. It is replaced in one step, so a power
// cut leaves nothing in between; but for the installer, which is ours.
var editing = []operation{
	{name: "install", fits: content.unwritten, effect: becomes("plain"), halfway: unreadable, durable: true, weight: 1},
	{name: "insert", fits: holds("plain"), effect: becomes("inserted"), durable: true, weight: 1},
	{name: "remove", fits: holds("inserted"), effect: becomes("plain"), durable: true, weight: 1},
}

// repairing spoils a file of libcni's cache and has it repaired.
var repairing = []operation{
	{name: "repair", fits: func(content) bool { return true }, effect: becomes("whole"), halfway: unreadable, durable: true, weight: 1},
}

func (c content) unwritten() bool { return !c.owed() }

func holds(line string) func(content) bool {
	return func(c content) bool { return c.owed() && c.last() == line }
}

func becomes(line string) func(content, string) content {
	return func(content, string) content { return content{}.with(line) }
}

// unreadable is a file that has gone, or is not whole.
func unreadable(content) []content { return []content{{}, {damaged: 1, exists: true}} }

// edit does e to the conflist of e's attachment in dir.
func (a argsctl) edit(dir string, e *event) error {
	path := filepath.Join(dir, conflistName(e.key))
	if e.name == "install" {
		return writeDurably(path, conflistWithoutUs(e.key))
	}
	return a.run(e.name, path)
}

func conflistName(key journal.Key) string {
	return key.ContainerID + "-" + key.Network + ".conflist"
}

func conflistWithoutUs(key journal.Key) []byte {
	return fmt.Appendf(nil, "{\n  \"cniVersion\": \"1.0.0\",\n  \"name\": %q,\n  \"plugins\": [\n"+
		"    {\"type\": \"noop\", \"capabilities\": {\"portMappings\": true}, \"pad\": %q}\n  ]\n}\n",
		key.Network, strings.Repeat(key.ContainerID, 1500))
}

// readConflists tells a conflist that was edited from one that was not. Whatever
// else a runtime would load is an error.
func (a argsctl) readConflists(dir string) (attachments, error) {
	found := make(attachments)
	names, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, name := range names {
		switch filepath.Ext(name.Name()) {
		case ".conflist":
		case ".conf", ".json":
			return nil, fmt.Errorf("%s is nobody's", name.Name())
		default:
			continue // what an edit that the power cut has ended left behind
		}
		id, network, _ := strings.Cut(strings.TrimSuffix(name.Name(), ".conflist"), "-")
		key := journal.Key{Network: network, ContainerID: id, IfName: "eth0"}
		inserted, err := a.inserted(key)
		if err != nil {
			return nil, err
		}
		found[key], err = compare(filepath.Join(dir, name.Name()),
			map[string][]byte{"plain": conflistWithoutUs(key), "inserted": inserted})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// twins are the files that ought to be, made where no power is cut.
var twins = struct {
	sync.Mutex
	made map[string][]byte
}{made: make(map[string][]byte)}

func twin(path string, produce func() error) ([]byte, error) {
	twins.Lock()
	defer twins.Unlock()
	if text := twins.made[path]; text != nil {
		return text, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := produce(); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	twins.made[path] = text
	return text, err
}

func (a argsctl) inserted(key journal.Key) ([]byte, error) {
	path := filepath.Join("/run/twins", conflistName(key))
	return twin(path, func() error {
		if err := os.WriteFile(path, conflistWithoutUs(key), 0o644); err != nil {
			return err
		}
		return a.run("insert", path)
	})
}

// repair spoils the cache file of e's attachment, and repairs it from a journal
// of its own, which no power cut takes.
func (a argsctl) repair(dir string, e *event) error {
	if _, err := a.cached(e.key); err != nil {
		return err
	}
	cacheDir := filepath.Join(dir, cacheOf(e.key))
	if err := spoil(resultFile(cacheDir, e.key)); err != nil {
		return err
	}
	return a.run("repair", "--data-dir", filepath.Join(journalsDir, cacheOf(e.key)), "--cache-dir", cacheDir)
}

// journalsDir holds a journal for each cache.
const journalsDir = "/run/journals"

func cacheOf(key journal.Key) string { return key.ContainerID + "-" + key.Network }

func resultFile(cacheDir string, key journal.Key) string {
	return filepath.Join(cacheDir, "results", strings.Join([]string{key.Network, key.ContainerID, key.IfName}, "-"))
}

// cached is what repair has to write for key: what it writes on a file system
// whose power is not cut.
func (a argsctl) cached(key journal.Key) ([]byte, error) {
	cacheDir, dataDir := filepath.Join("/run/twins", cacheOf(key)), filepath.Join(journalsDir, cacheOf(key))
	return twin(resultFile(cacheDir, key), func() error {
		if err := a.journal(dataDir, key); err != nil {
			return err
		}
		return a.run("repair", "--data-dir", dataDir, "--cache-dir", cacheDir)
	})
}

// journal has the plugin journal an attachment with its result.
func (a argsctl) journal(dataDir string, key journal.Key) error {
	stanza := map[string]any{
		"cniVersion": "1.0.0", "name": key.Network, "type": "durable-args", "dataDir": dataDir, "confDir": confDir,
		"allowVolatile": true, "runtimeConfig": portsOf(key.ContainerID),
	}
	for _, position := range []string{"first", "last"} {
		if position == "last" {
			stanza["position"], stanza["prevResult"] = position, resultOf(key.ContainerID)
		}
		stdin, err := json.Marshal(stanza)
		if err != nil {
			return err
		}
		cmd := exec.Command(a.plugin)
		cmd.Env = environment("ADD", key, key.ContainerID)
		cmd.Stdin = bytes.NewReader(stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ADD: %w: %s", err, out)
		}
	}
	return nil
}

// readCache tells the files that are as they ought to be from others.
func (a argsctl) readCache(dir string) (attachments, error) {
	found := make(attachments)
	paths, err := filepath.Glob(filepath.Join(dir, "*", "results", "*"))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		network, rest, _ := strings.Cut(filepath.Base(path), "-")
		id, ifName, _ := strings.Cut(rest, "-")
		key := journal.Key{Network: network, ContainerID: id, IfName: ifName}
		whole, err := a.cached(key)
		if err != nil {
			return nil, err
		}
		if found[key], err = compare(path, map[string][]byte{"whole": whole}); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// compare says which of the texts a file holds.
func compare(path string, texts map[string][]byte) (content, error) {
	got, err := os.ReadFile(path)
	if err != nil {
		return content{}, err
	}
	for line, text := range texts {
		if bytes.Equal(got, text) {
			return content{}.with(line), nil
		}
	}
	return content{damaged: 1, exists: true}, nil
}

// spoil does to a file what a power cut does to those that nobody flushes.
func spoil(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch rand.N(3) {
	case 0:
		return os.Remove(path)
	case 1:
		return os.Truncate(path, 0)
	default:
		return os.Truncate(path, info.Size()/2)
	}
}

// writeDurably is a careful installer.
func writeDurably(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		err = d.Sync()
		d.Close()
		if err != nil || filepath.Base(dir) == "run" {
			return err
		}
	}
}
