package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/durable-args/durable-args/pkg/journal"
)

const (
	bareConflist = `{"cniVersion": "1.0.0", "name": "web", "plugins": [
	{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`
	ownConflist = `{"cniVersion": "1.0.0", "name": "web", "plugins": [
	{"type": "durable-args", "capabilities": {"portMappings": true}},
	{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}},
	{"type": "durable-args", "capabilities": {"portMappings": true}, "position": "last"},
	{"type": "tuning"}]}`
	wrappedConflist = `{"cniVersion": "1.0.0", "name": "web", "plugins": [
	{"type": "durable-args", "capabilities": {"portMappings": true}, "plugins": [
	{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}]}`
)

// importNode has a protected network, and cached attachments.
func importNode(t *testing.T, conflist string, containers ...string) *testNode {
	n := newTestNode(t)
	n.write(filepath.Join(n.confDir, "10-web.conflist"), conflist)
	for _, container := range containers {
		n.cache("web", container, "/run/netns/there-is-none", bareConflist)
	}
	return n
}

// cache writes a file as libcni does.
func (n *testNode) cache(network, container, netns, config string) string {
	n.Helper()
	path := filepath.Join(n.cacheDir, "results", network+"-"+container+"-eth0")
	n.write(path, fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"config":%q,"ifName":"eth0","networkName":%q,"netns":%q,`+
		`"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAME",%q]],`+
		`"capabilityArgs":{"portMappings":[{"hostPort":9007199254740993}],"dns":{"servers":[]}},`+
		`"result":{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.2/24"}],"dns":{}}}`,
		container, base64.StdEncoding.EncodeToString([]byte(config)), network, netns, container))
	return path
}

func TestImportJournalsWhatLibcniHasCached(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, conflist, cached, layout, chain string }{
		{"made before the installation", ownConflist, bareConflist, "first", `{"type":"bridge"} {"capabilities":{"portMappings":true},"type":"portmap"}`},
		{"of a network that is wrapped now", wrappedConflist, bareConflist, "wrapped", `{"type":"bridge"} {"capabilities":{"portMappings":true},"type":"portmap"}`},
		{"made since, its journal lost", ownConflist, ownConflist, "first", `{"type":"bridge"} {"capabilities":{"portMappings":true},"type":"portmap"}`},
		{"made since, its journal lost, wrapped", wrappedConflist, wrappedConflist, "wrapped", `{"type":"bridge"} {"capabilities":{"portMappings":true},"type":"portmap"}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := importNode(t, row.conflist)
			n.cache("web", "c1", "/run/netns/there-is-none", row.cached)
			n.cache("unprotected", "c2", "/run/netns/there-is-none", strings.ReplaceAll(bareConflist, `"web"`, `"unprotected"`))
			stdout, stderr, err := n.ctl("import", "--cni-path", "/opt/plugins")
			if err != nil || stdout != "" || !strings.Contains(stderr, "1 imported, 0 in the journal already, 0 could not be") {
				t.Fatalf("stdout %q, stderr %q, error %v", stdout, stderr, err)
			}
			add := n.read(web("c1")).Newest()
			if add == nil || n.left() != "c1" {
				t.Fatalf("left %q", n.left())
			}
			var chain []string
			for _, config := range add.Chain {
				chain = append(chain, string(config))
			}
			if got := strings.Join(chain, " "); got != row.chain {
				t.Errorf("chain %s, want %s", got, row.chain)
			}
			got := *add
			got.Chain, got.Time = nil, add.Time
			want := journal.Add{
				Layout:        row.layout,
				Args:          []byte("IgnoreUnknown=1;K8S_POD_NAME=c1"),
				RuntimeConfig: []byte(`{"portMappings":[{"hostPort":9007199254740993}]}`),
				CNIVersion:    "1.0.0",
				Path:          "/opt/plugins",
				NetNS:         journal.NetNS{Path: "/run/netns/there-is-none"},
				Conflist:      []byte(row.cached),
				Time:          add.Time,
				Result:        []byte(`{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.2/24"}]}`),
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("journaled %+v\nwant %+v", got, want)
			}
			if netnsOf(n.read(web("c1"))) != netnsGone {
				t.Error("it is not stale")
			}
			if _, stderr, err := n.ctl("import"); err != nil || len(n.read(web("c1")).Adds) != 1 || !strings.Contains(stderr, "0 imported, 1 in the journal already") {
				t.Errorf("a second time: stderr %q, error %v", stderr, err)
			}
		})
	}
}

func TestImportSaysWhatItCouldNotRead(t *testing.T) {
	t.Parallel()
	n := importNode(t, ownConflist, "c1", "c2")
	results := filepath.Join(n.cacheDir, "results")
	for name, text := range map[string]string{
		"web-empty-eth0":   "",
		"web-nul-eth0":     "\x00\x00\x00\x00",
		"web-torn-eth0":    `{"kind":"cniCacheV1","containerId":`,
		"web-brace-eth0":   `{}`,
		"web-legacy-eth0":  `{"cniVersion":"0.3.1","ips":[]}`,
		"web-noname-eth0":  `{"kind":"cniCacheV1","networkName":"web","ifName":"eth0"}`,
		"web-noconf-eth0":  `{"kind":"cniCacheV1","networkName":"web","containerId":"noconf","ifName":"eth0"}`,
		"web-badkey-eth0":  `{"kind":"cniCacheV1","networkName":"../web","containerId":"x","ifName":"eth0"}`,
		"web-result2-eth0": `{"kind":"cniCacheV1","networkName":"web","containerId":"r","ifName":"eth0","config":"e30="}`,
	} {
		n.write(filepath.Join(results, name), text)
	}
	_, stderr, err := n.ctl("import")
	if !errors.Is(err, errFinding) || n.left() != "c1 c2" || !strings.Contains(stderr, "2 imported, 0 in the journal already, 9 could not be") {
		t.Errorf("stderr %s, error %v, left %q", stderr, err, n.left())
	}
	for _, name := range []string{"empty", "nul", "torn", "brace", "legacy", "noname", "noconf", "badkey", "result2"} {
		if !strings.Contains(stderr, "cannot be imported: "+results+"/web-"+name+"-eth0: ") {
			t.Errorf("%s is not in\n%s", name, stderr)
		}
	}
}

// Of a namespace that is another's, test/e2e has a case.
func TestImportRefusesItsOwnNamespace(t *testing.T) {
	t.Parallel()
	n := importNode(t, ownConflist)
	n.cache("web", "c1", "/proc/self/ns/net", bareConflist)
	_, stderr, err := n.ctl("import")
	if !errors.Is(err, errFinding) || !strings.Contains(stderr, "is this process's own") || n.left() != "" {
		t.Errorf("stderr %q, error %v, left %q", stderr, err, n.left())
	}
}

func TestImportNeedsAProtectedNetwork(t *testing.T) {
	t.Parallel()
	n := importNode(t, bareConflist, "c1")
	if _, _, err := n.ctl("import"); err == nil || !strings.Contains(err.Error(), "no conflist in "+n.confDir) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(n.dataDir); !errors.Is(err, os.ErrNotExist) {
		t.Error("a journal has been made for nothing")
	}
}

func TestImportNeedsTheChainsCapabilities(t *testing.T) {
	t.Parallel()
	n := importNode(t, `{"cniVersion": "1.0.0", "name": "web", "plugins": [{"type": "durable-args"}, {"type": "bridge"}]}`, "c1")
	_, stderr, err := n.ctl("import")
	if !errors.Is(err, errFinding) || n.left() != "" || !strings.Contains(stderr, `plugin portmap declares the capability "portMappings"`) {
		t.Errorf("stderr %q, error %v, left %q", stderr, err, n.left())
	}
}

func TestImportWithoutACache(t *testing.T) {
	t.Parallel()
	n := importNode(t, ownConflist)
	if stdout, stderr, err := n.ctl("import"); err != nil || stdout != "" || !strings.Contains(stderr, "libcni has cached nothing") {
		t.Errorf("stdout %q, stderr %q, error %v", stdout, stderr, err)
	}
}
