// Command durable-args is a CNI chained meta-plugin. Inserted first in a
// conflist, it journals on ADD what the chain's DEL will need, and replays on
// DEL what the runtime has lost since. The README says how to install it.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
	"github.com/durable-args/durable-args/pkg/replay"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/repair"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

// version is set by the Makefile.
var version = "unknown"

const about = "durable-args %s: a CNI plugin, to be called by a container runtime.\n" +
	"To use it, put its stanzas into a conflist: durable-argsctl insert CONFLIST"

// plugin is the verbs, and where their output goes.
type plugin struct {
	stdout, stderr io.Writer
}

func main() {
	p := plugin{os.Stdout, os.Stderr}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    p.add,
		Del:    p.del,
		Check:  p.check,
		GC:     p.gc,
		Status: p.status,
	}, cniversion.All, fmt.Sprintf(about, version))
}

// runner calls the chain.
func (p plugin) runner() chain.Runner { return chain.Runner{Stderr: p.stderr} }

func (p plugin) replayer(s *stanza.Stanza, store *journal.Store) replay.Replayer {
	return replay.Replayer{
		Store: store, Runner: p.runner(), Attempts: *s.ReplayAttempts, Stderr: p.stderr,
		Released: repair.Released(store, s.CacheDir, p.say),
	}
}

// begin reads the stanza. At the first call after a boot, whatever the verb, it
// also repairs libcni's cache: after a power cut some runtimes send no DEL before
// that is done, and then nothing but another container's calls can do it.
func (p plugin) begin(args *skel.CmdArgs) (*stanza.Stanza, error) {
	s, err := stanza.Parse(args.StdinData)
	if err != nil {
		return nil, err
	}
	repair.AfterBoot(s.DataDir, s.CacheDir, p.say)
	return s, nil
}

// key names the attachment that the call is about.
func key(s *stanza.Stanza, args *skel.CmdArgs) journal.Key {
	return journal.Key{Network: s.Name, ContainerID: args.ContainerID, IfName: args.IfName}
}

// call is what the runtime gives to the chain now.
func call(s *stanza.Stanza, args *skel.CmdArgs) (chain.Call, error) {
	c := chain.Call{
		Network:     s.Name,
		CNIVersion:  s.CNIVersion,
		ContainerID: args.ContainerID,
		IfName:      args.IfName,
		NetNS:       args.Netns,
		Args:        args.Args,
		Path:        args.Path,
		PrevResult:  s.PrevResult,
	}
	if len(s.RuntimeConfig) > 0 {
		if err := json.Unmarshal(s.RuntimeConfig, &c.RuntimeConfig); err != nil {
			return c, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("reading runtimeConfig: %v", err), "")
		}
	}
	return c, nil
}

// say writes a line for the operator; a full stderr is no reason to fail.
func (p plugin) say(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stderr, "durable-args: "+format+"\n", args...)
}
