package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/rogpeppe/go-internal/testscript"
)

// runtime add|check|del NETWORK CONTAINER NETNS calls a chain as a container
// runtime does, for what cnitool cannot do: choose the container ID, give an
// empty NETNS, and print the code of an error. The rest is as with cnitool:
// $CNI_ARGS, $CAP_ARGS, $CNI_IFNAME, and an ADD prints the result.
func runtimeCall(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 4 {
		ts.Fatalf("usage: runtime add|check|del network container netns")
	}
	err := callChain(ts, args[0], args[1], args[2], args[3])
	var cniErr *types.Error
	switch {
	case errors.As(err, &cniErr):
		_, _ = fmt.Fprintf(ts.Stderr(), "code %d: %v\n", cniErr.Code, err)
	case err != nil:
		_, _ = fmt.Fprintf(ts.Stderr(), "no code: %v\n", err)
	}
	if neg != (err != nil) {
		ts.Fatalf("runtime %s: error %v", strings.Join(args, " "), err)
	}
}

func callChain(ts *testscript.TestScript, verb, network, container, netns string) error {
	list, err := libcni.LoadNetworkConf(ts.Getenv("NETCONFPATH"), network)
	if err != nil {
		return err
	}
	rt := &libcni.RuntimeConf{ContainerID: container, NetNS: netns, IfName: "eth0"}
	if name := ts.Getenv("CNI_IFNAME"); name != "" {
		rt.IfName = name
	}
	for pair := range strings.SplitSeq(ts.Getenv("CNI_ARGS"), ";") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			rt.Args = append(rt.Args, [2]string{name, value})
		}
	}
	if raw := ts.Getenv("CAP_ARGS"); raw != "" {
		if err := json.Unmarshal([]byte(raw), &rt.CapabilityArgs); err != nil {
			return err
		}
	}
	cni := newCNI(ts.Getenv("CNI_PATH"), ts.Stderr(), "NETCONFPATH="+ts.Getenv("NETCONFPATH"), "RECORDER="+ts.Getenv("RECORDER"))
	switch verb {
	case "add":
		result, err := cni.AddNetworkList(context.Background(), list, rt)
		if err != nil {
			return err
		}
		return result.PrintTo(ts.Stdout())
	case "check":
		return cni.CheckNetworkList(context.Background(), list, rt)
	case "del":
		return cni.DelNetworkList(context.Background(), list, rt)
	default:
		return fmt.Errorf("no such verb: %s", verb)
	}
}

// newCNI returns a libcni whose plugins find env in their environment, too.
func newCNI(path string, stderr io.Writer, env ...string) *libcni.CNIConfig {
	exec := &execWith{invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: stderr}}, env}
	return libcni.NewCNIConfig(filepath.SplitList(path), exec)
}

type execWith struct {
	invoke.DefaultExec
	env []string
}

func (e *execWith) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	return e.DefaultExec.ExecPlugin(ctx, plugin, stdin, append(environ, e.env...))
}
