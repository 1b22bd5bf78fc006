package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/durable-args/durable-args/test/sandbox"
)

// TestRepairedAsWritten loses every file in libcni's cache, and compares those
// that durable-argsctl repair writes with those that libcni had written: as JSON,
// and by what libcni reads.
func TestRepairedAsWritten(t *testing.T) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for name, stanzas := range map[string][2]string{
			"first-last": {`{"type": "durable-args", "capabilities": {"portMappings": true}}, `, `, {"type": "durable-args", "position": "last", "capabilities": {"portMappings": true}}`},
			"wrapped":    {`{"type": "durable-args", "capabilities": {"portMappings": true}, "plugins": [`, `]}`},
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				t.Parallel()
				if sandbox.Enter(t) {
					repairAsWritten(t, fmt.Sprintf(`{
  "cniVersion": %q,   "name": "web",
  "plugins": [%s{"type": "bridge", "bridge": "web0", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "iptables"}%s]
}`, version, stanzas[0], stanzas[1]))
				}
			})
		}
	}
}

func repairAsWritten(t *testing.T, conflist string) {
	work := t.TempDir()
	bin := sandbox.Bin(t)
	plugins, err := install(work, bin, "v1.10.0")
	if err != nil {
		t.Fatal(err)
	}
	// A sandbox is a process of its own, so this reaches no other test.
	if err := os.Setenv("NETCONFPATH", work); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(work, "10-web.conflist")
	if err := os.WriteFile(file, []byte(conflist), 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfig([]string{plugins}, nil)
	var pods []*libcni.RuntimeConf
	for i := range 3 {
		name := fmt.Sprintf("pod%d", i)
		sandbox.Output("ip", "netns", "add", name)
		rt := &libcni.RuntimeConf{ContainerID: name, NetNS: "/run/netns/" + name, IfName: "eth0"}
		if i > 0 { // one has nothing
			rt.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", name}, {"K8S_POD_UID", ""}}
			rt.CapabilityArgs = map[string]any{"portMappings": []any{map[string]any{"hostPort": 8080 + i, "containerPort": 80, "protocol": "tcp"}}}
		}
		if _, err := cni.AddNetworkList(t.Context(), list, rt); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, rt)
	}
	wrote, read := cacheFiles(t), cacheRead(t, cni, list, pods)
	if len(wrote) != len(pods) {
		t.Fatalf("libcni has written %d files", len(wrote))
	}

	if err := os.RemoveAll(libcni.CacheDir + "/results"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "durable-argsctl"), "repair", "-o", "json")
	if out, err := cmd.CombinedOutput(); err != nil || bytes.Count(out, []byte(`"action": "repaired"`)) != len(pods) {
		t.Fatalf("repair: %v\n%s", err, out)
	}
	if got := cacheFiles(t); !reflect.DeepEqual(got, wrote) {
		t.Errorf("repaired are\n%v\nlibcni had written\n%v", got, wrote)
	}
	if got := cacheRead(t, cni, list, pods); !reflect.DeepEqual(got, read) {
		t.Errorf("libcni reads\n%s\nof its own\n%s", got, read)
	}
	for _, rt := range pods {
		if err := cni.DelNetworkList(t.Context(), list, rt); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	if found := append(sandbox.Leftovers(), sandbox.JournalFiles("/var/lib/durable-args")...); len(found) > 0 {
		t.Errorf("left behind: %q", found)
	}
}

// cacheFiles returns what libcni's cache holds by the names of the files, as JSON values.
func cacheFiles(t *testing.T) map[string]any {
	t.Helper()
	files := make(map[string]any)
	paths, err := filepath.Glob(libcni.CacheDir + "/results/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		var value any
		if err := dec.Decode(&value); err != nil {
			t.Fatal(err)
		}
		files[path] = value
	}
	return files
}

// cacheRead returns all that libcni reads from its cache.
func cacheRead(t *testing.T, cni *libcni.CNIConfig, list *libcni.NetworkConfigList, pods []*libcni.RuntimeConf) []string {
	t.Helper()
	var all []any
	for _, rt := range pods {
		known := &libcni.RuntimeConf{ContainerID: rt.ContainerID, IfName: rt.IfName}
		config, cached, err := cni.GetNetworkListCachedConfig(list, known)
		if err != nil || cached == nil {
			t.Fatalf("GetNetworkListCachedConfig: %v, %v", cached, err)
		}
		result, err := cni.GetNetworkListCachedResult(list, known)
		if err != nil || result == nil {
			t.Fatalf("GetNetworkListCachedResult: %v, %v", result, err)
		}
		attachments, err := cni.GetCachedAttachments(rt.ContainerID)
		if err != nil || len(attachments) != 1 {
			t.Fatalf("GetCachedAttachments: %v, %v", attachments, err)
		}
		all = append(all, string(config), cached, result, attachments)
	}
	attachments, err := cni.GetCachedAttachments("")
	if err != nil || len(attachments) != len(pods) {
		t.Fatalf("GetCachedAttachments: %v, %v", attachments, err)
	}
	var lines []string
	for _, v := range append(all, attachments) {
		line, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	return lines
}

// TestRepairInterrupted kills durable-argsctl repair at each of its system calls
// that touch a disk, or has it fail, and looks at what libcni would find.
func TestRepairInterrupted(t *testing.T) {
	for _, fault := range []string{"signal=KILL", "error=ENOSPC", "error=EIO"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			if sandbox.Enter(t) {
				interruptRepair(t, fault)
			}
		})
	}
}

func interruptRepair(t *testing.T, fault string) {
	work := t.TempDir()
	bin := sandbox.Bin(t)
	plugins, err := install(work, bin, "v1.10.0")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"NETCONFPATH": work, "RECORDER": filepath.Join(work, "calls")} {
		if err := os.Setenv(name, value); err != nil {
			t.Fatal(err)
		}
	}
	conflist := `{"cniVersion": "1.0.0", "name": "web", "plugins": [{"type": "durable-args"}, {"type": "recorder"}, {"type": "durable-args", "position": "last"}]}`
	list, err := libcni.NetworkConfFromBytes([]byte(conflist))
	if err == nil {
		err = os.WriteFile(filepath.Join(work, "10-web.conflist"), []byte(conflist), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	cni := libcni.NewCNIConfig([]string{plugins}, nil)
	sandbox.Output("ip", "netns", "add", "pod")
	for _, container := range []string{"c1", "c2"} {
		rt := &libcni.RuntimeConf{ContainerID: container, NetNS: "/run/netns/pod", IfName: "eth0"}
		if _, err := cni.AddNetworkList(t.Context(), list, rt); err != nil {
			t.Fatal(err)
		}
	}
	spoilt := libcni.CacheDir + "/results/web-c1-eth0"
	want := cacheFiles(t)
	argsctl := filepath.Join(bin, "durable-argsctl")

	for _, call := range []string{"openat", "flock", "write", "fsync", "renameat", "unlinkat"} {
		hits := 0
		for n := 1; n <= 30; n++ {
			if err := os.WriteFile(spoilt, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			point := fmt.Sprintf("%s at %s %d", fault, call, n)
			out, err := exec.Command("strace", "-f", "-o", filepath.Join(work, "trace"), "-e", "trace="+call,
				"-e", fmt.Sprintf("inject=%s:%s:when=%d", call, fault, n), argsctl, "repair").CombinedOutput()
			trace, _ := os.ReadFile(filepath.Join(work, "trace"))
			hit := bytes.Contains(trace, []byte("INJECTED")) || bytes.Contains(trace, []byte("killed by SIGKILL"))
			if hit {
				hits++
			}
			attachments, listErr := cni.GetCachedAttachments("")
			data, readErr := os.ReadFile(spoilt)
			switch {
			case listErr != nil || readErr != nil:
				t.Errorf("%s: %v, %v", point, listErr, readErr)
			case len(data) == 0 && err == nil:
				t.Errorf("%s: nothing is repaired, and nobody told of it\n%s", point, out)
			case len(attachments) != 1 && len(data) == 0 || len(attachments) != 2 && len(data) > 0:
				t.Errorf("%s: libcni finds %d attachments, and %d bytes", point, len(attachments), len(data))
			case len(data) > 0 && !reflect.DeepEqual(cacheFiles(t), want):
				t.Errorf("%s: %s", point, data)
			}
			// The next run finds no trace of it.
			if out, err := exec.Command(argsctl, "repair").CombinedOutput(); err != nil {
				t.Errorf("%s: the next run: %v\n%s", point, err, out)
			}
			if got := cacheFiles(t); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: the next run leaves %v", point, got)
			}
			if found, err := filepath.Glob(libcni.CacheDir + "/.*"); err != nil || len(found) > 0 {
				t.Errorf("%s: the next run leaves %q, %v", point, found, err)
			}
			if !hit {
				break
			}
		}
		if hits == 0 {
			t.Errorf("%s: repair makes no such call: %s", fault, call)
		}
	}
}
