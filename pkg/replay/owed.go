package replay

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
)

// Delivery is what the runtime's own DEL gives to a chain.
type Delivery struct {
	Call chain.Call
	// Plugins are those that it reaches: the conflist of today, nil if that
	// is not known.
	Plugins []chain.Plugin
}

// step is one DEL of one plugin.
type step struct {
	plugin chain.Plugin
	call   chain.Call
	// netns is the identity of the namespace that call goes to, if that is
	// still there when the step runs.
	netns journal.NetNS
	// result is the result that the journal holds, nil if it holds none.
	// Where it holds none, call.PrevResult is the runtime's.
	result json.RawMessage
}

// owed returns the DELs that rec owes beyond what was delivered, in the order
// in which they have to run: the newest ADD first, its plugins in reverse.
func owed(rec journal.Record, d Delivery) ([]step, error) {
	var done []step // what no plugin needs to be told again
	for _, p := range d.Plugins {
		done = append(done, step{plugin: p, call: d.Call})
	}
	var steps []step
	for i, add := range distinct(rec.Adds) {
		planned, err := plan(rec.Key, add, d.Call.Path)
		if err != nil {
			return nil, err
		}
		for _, s := range planned {
			// What the runtime knows belongs to the newest ADD.
			if i == 0 && s.result == nil && hasPrevResult(s.call.CNIVersion) {
				s.call.PrevResult = d.Call.PrevResult
			}
			if !slices.ContainsFunc(done, s.coveredBy) {
				done = append(done, s)
				steps = append(steps, s)
			}
		}
	}
	return steps, nil
}

// distinct returns the newest of each kind of ADD, newest first. Those that
// differ in the network namespace alone, or in the result, are of one kind: a
// runtime has started the same container again (podman after a reboot). If the
// newest one has no result, an older one of the same boot still tells what was
// set up on this host.
func distinct(adds []journal.Add) []journal.Add {
	var kinds []journal.Add
	for _, add := range slices.Backward(adds) {
		i := slices.IndexFunc(kinds, func(k journal.Add) bool { return sameAdd(k, add) })
		switch {
		case i < 0:
			kinds = append(kinds, add)
		case kinds[i].Result == nil && kinds[i].NetNS.BootID == add.NetNS.BootID:
			kinds[i].Result = add.Result
		}
	}
	return kinds
}

func sameAdd(a, b journal.Add) bool {
	return SameArgs(string(a.Args), string(b.Args)) &&
		(len(a.RuntimeConfig) == 0 && len(b.RuntimeConfig) == 0 || sameJSON(a.RuntimeConfig, b.RuntimeConfig)) &&
		a.CNIVersion == b.CNIVersion &&
		slices.EqualFunc(a.Chain, b.Chain, sameJSON)
}

// plan returns every DEL of one ADD. A binary that is no longer where it was
// on ADD is looked for in todaysPath, too.
func plan(key journal.Key, add journal.Add, todaysPath string) ([]step, error) {
	call := chain.Call{
		Network:     key.Network,
		CNIVersion:  add.CNIVersion,
		ContainerID: key.ContainerID,
		IfName:      key.IfName,
		Args:        string(add.Args),
		Path:        add.Path,
	}
	if todaysPath != "" && todaysPath != add.Path {
		call.Path += ":" + todaysPath
	}
	if len(add.RuntimeConfig) > 0 {
		if err := json.Unmarshal(add.RuntimeConfig, &call.RuntimeConfig); err != nil {
			return nil, fmt.Errorf("reading the journaled capability args of %s: %w", key, err)
		}
	}
	if hasPrevResult(add.CNIVersion) {
		call.PrevResult = add.Result
	}
	var steps []step
	for _, config := range slices.Backward(add.Chain) {
		p, err := chain.Parse(config)
		if err != nil {
			return nil, fmt.Errorf("reading the journaled chain of %s: %w", key, err)
		}
		steps = append(steps, step{plugin: p, call: call, netns: add.NetNS, result: call.PrevResult})
	}
	return steps, nil
}

// coveredBy reports whether done has already told the plugin all that s would.
// A result that the journal does not hold is not compared, so that an absent
// prevResult alone is never taken for a loss.
func (s step) coveredBy(done step) bool {
	return sameJSON(s.plugin.Config, done.plugin.Config) &&
		SameArgs(s.call.Args, done.call.Args) &&
		maps.EqualFunc(s.call.RuntimeConfigFor(s.plugin), done.call.RuntimeConfigFor(done.plugin), sameJSON) &&
		(s.result == nil || sameJSON(s.result, done.call.PrevResult))
}

// hasPrevResult reports whether DEL carries a prevResult at all: libcni's
// DelNetworkList sends none below 0.4.0.
func hasPrevResult(cniVersion string) bool {
	ok, err := version.GreaterThanOrEqualTo(cniVersion, "0.4.0")
	return err == nil && ok
}
