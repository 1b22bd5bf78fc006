package crash

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/durable-args/durable-args/test/sandbox"
)

// The node that the plugin runs on. Only its dataDir is on the file system
// whose power is cut.
const (
	confDir = "/run/net.d"
	cniBin  = "/run/cnibin"
	netns   = "/run/netns/pod"
)

var networks = []string{"web", "db"}

// conflist is a chain of one plugin, between our stanzas.
func conflist(network string) []byte {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "plugins": [
		{"type": "durable-args", "capabilities": {"portMappings": true}},
		{"type": "noop", "capabilities": {"portMappings": true}},
		{"type": "durable-args", "position": "last", "capabilities": {"portMappings": true}}]}`, network)
}

// furnish makes the node, in the sandbox. It returns the directory
// of the binaries.
func furnish(t *testing.T) (bin string) {
	t.Helper()
	succeed := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{confDir, cniBin} {
		succeed(os.Mkdir(dir, 0o755))
	}
	for _, network := range networks {
		succeed(os.WriteFile(filepath.Join(confDir, network+".conflist"), conflist(network), 0o644))
	}
	noop, err := exec.LookPath("true")
	succeed(err)
	succeed(os.Symlink(noop, filepath.Join(cniBin, "noop")))
	succeed(exec.Command("ip", "netns", "add", filepath.Base(netns)).Run())
	return sandbox.Bin(t)
}

// What a runtime gives on ADD can all be told from a token, so that a reader
// can tell whether it is whole.

func argsOf(token string) string {
	if token == "" {
		return ""
	}
	sum := fnv.New32()
	sum.Write([]byte(token))
	// A small entry, or one of several blocks.
	length := []int{0, 200, 3000, 9000}[sum.Sum32()%4]
	return "IgnoreUnknown=1;TOKEN=" + token + ";PAD=" + strings.Repeat(token, length/len(token))
}

func tokenOf(args string) string {
	_, token, _ := strings.Cut(args, "TOKEN=")
	token, _, _ = strings.Cut(token, ";")
	return token
}

func portsOf(token string) json.RawMessage {
	return fmt.Appendf(nil, `{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp","token":%q}]}`, token)
}

func resultOf(token string) json.RawMessage {
	return fmt.Appendf(nil, `{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.2/16"}],"dns":{"domain":%q}}`, token)
}
