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
	// Extended says that plugins outside the protected chain come after it, so
	// that the runtime's result may hold more than the journaled one.
	Extended bool
}

// step is one DEL of one plugin.
type step struct {
	plugin chain.Plugin
	call   chain.Call
	// netns is the identity of the namespace that the call goes to, if that
	// is still there when the step runs.
	netns journal.NetNS
	// result is the result that the journal holds, nil if it holds none.
	// Where it holds none, call.PrevResult is the runtime's.
	result json.RawMessage
}

// owed returns the DELs that rec owes beyond what was delivered, in the order
// in which they have to run: the newest ADD first, its plugins in reverse.
func owed(rec journal.Record, d Delivery) ([]step, error) {
	var steps []step
	all, err := plan(rec, d.Call)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if !slices.ContainsFunc(d.Plugins, func(p chain.Plugin) bool { return s.coveredBy(p, d.Call, d.Extended) }) {
			steps = append(steps, s)
		}
	}
	return steps, nil
}

// plan returns every DEL that rec holds, in the order of owed. today is what
// the runtime gives now: what the journal lacks is taken from there.
func plan(rec journal.Record, today chain.Call) ([]step, error) {
	var steps []step
	for i, add := range distinct(rec.Adds) {
		planned, err := planAdd(rec.Key, add, today.Path)
		if err != nil {
			return nil, err
		}
		newer := steps
		for _, s := range planned {
			// What the runtime knows belongs to the newest ADD.
			if i == 0 && s.result == nil && hasPrevResult(s.call.CNIVersion) {
				s.call.PrevResult = today.PrevResult
			}
			// An ADD that differs in one plugin's share is no reason to
			// call the others again. What stands twice in one ADD ran twice.
			if !slices.ContainsFunc(newer, func(t step) bool { return s.coveredBy(t.plugin, t.call, false) }) {
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

// planAdd returns every DEL of one ADD.
func planAdd(key journal.Key, add journal.Add, todaysPath string) ([]step, error) {
	plugins, call, err := Journaled(key, add, todaysPath)
	if err != nil {
		return nil, err
	}
	var steps []step
	for _, p := range slices.Backward(plugins) {
		steps = append(steps, step{plugin: p, call: call, netns: add.NetNS, result: call.PrevResult})
	}
	return steps, nil
}

// Journaled returns the chain that add was made on, in ADD order, and what it
// gave to it, with the final result but without the network namespace. A binary
// that is no longer where it was on ADD is looked for in todaysPath, too.
func Journaled(key journal.Key, add journal.Add, todaysPath string) ([]chain.Plugin, chain.Call, error) {
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
			return nil, call, fmt.Errorf("reading the journaled capability args of %s: %w", key, err)
		}
	}
	if hasPrevResult(add.CNIVersion) {
		call.PrevResult = add.Result
	}
	plugins, err := chain.ParseAll(add.Chain)
	if err != nil {
		return nil, call, fmt.Errorf("reading the journaled chain of %s: %w", key, err)
	}
	return plugins, call, nil
}

// coveredBy reports whether a DEL of p for c tells the plugin all that s would.
// A result that the journal does not hold is not compared, so that an absent
// prevResult alone is never taken for a loss. If c's result is extended, it
// need only hold the journaled addresses.
func (s step) coveredBy(p chain.Plugin, c chain.Call, extended bool) bool {
	return sameJSON(s.plugin.Config, p.Config) &&
		SameArgs(s.call.Args, c.Args) &&
		maps.EqualFunc(s.call.RuntimeConfigFor(s.plugin), c.RuntimeConfigFor(p), sameJSON) &&
		(s.result == nil || sameJSON(s.result, c.PrevResult) || extended && containsAll(Addresses(c.PrevResult), Addresses(s.result)))
}

// hasPrevResult reports whether DEL carries a prevResult at all: libcni's
// DelNetworkList sends none below 0.4.0.
func hasPrevResult(cniVersion string) bool {
	ok, err := version.GreaterThanOrEqualTo(cniVersion, "0.4.0")
	return err == nil && ok
}
