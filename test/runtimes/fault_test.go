package runtimes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// fault is what goes wrong while a pod lives.
type fault struct {
	name string
	// happen runs a pod, and lets it go wrong up to where it is to be removed.
	happen func(n *node) *pod
	// losesResult says that the runtime does not give the result on DEL, unless
	// the cache is repaired, which takes a journaled result.
	losesResult bool
	// only is the runtime that it is for, empty for all.
	only string
	// protected says that it makes no sense without us.
	protected bool
	// needs is a command of durable-argsctl.
	needs string
	// kubelet says that a kubelet gets it, too.
	kubelet bool
}

func (f fault) applies(kind, layout string) bool {
	if strings.HasPrefix(kind, "kubelet") && !f.kubelet {
		return false
	}
	return strings.HasPrefix(kind, f.only) && (layout != none || !f.protected)
}

var faults = []fault{
	{name: "none", happen: (*node).runPod, kubelet: true},
	{name: "cache emptied", losesResult: true, happen: spoiled(emptied), kubelet: true},
	{name: "cache cut off", losesResult: true, happen: spoiled(cutOff)},
	{name: "cache deleted", losesResult: true, happen: spoiled(deleted), kubelet: true},
	{name: "cache emptied, then `repair`", losesResult: true, happen: repairedBefore(emptied), protected: true, needs: "repair"},
	{name: "cache deleted, then `repair`", losesResult: true, happen: repairedBefore(deleted), protected: true, needs: "repair"},
	{name: "runtime killed and restarted", happen: killed, kubelet: true},
	{name: "ADD killed half-way", losesResult: true, happen: addKilled},
	{name: "DEL killed half-way", happen: delKilled},
	{name: "portmap taken out of the conflist", happen: edited},
	{name: "our stanzas taken out of the conflist", happen: unprotected, protected: true, kubelet: true},
	{name: "reboot", happen: rebooted(intact)},
	{name: "reboot, cache emptied", losesResult: true, happen: rebooted(emptied), kubelet: true},
	{name: "reboot, cache deleted", losesResult: true, happen: rebooted(deleted)},
	{name: "started again after a reboot", only: "podman", happen: startedAgain(intact)},
	{name: "started again after a reboot, cache emptied", only: "podman", happen: startedAgain(emptied)},
}

// The ways in which a power cut leaves a file in libcni's cache.
func intact(string) error { return nil }

func emptied(file string) error { return os.Truncate(file, 0) }

func cutOff(file string) error { return os.Truncate(file, 200) }

func deleted(file string) error { return os.Remove(file) }

// spoil damages every file in libcni's cache.
func (n *node) spoil(damage func(file string) error) {
	n.Helper()
	files, _ := filepath.Glob(cache + "/*")
	if len(files) == 0 {
		n.Fatal("libcni has cached nothing that could be damaged")
	}
	for _, file := range files {
		n.must(damage(file))
	}
}

func spoiled(damage func(string) error) func(n *node) *pod {
	return func(n *node) *pod {
		p := n.runPod()
		n.spoil(damage)
		return p
	}
}

// repairedBefore has the cache repaired before the pod is removed, as after a
// boot.
func repairedBefore(damage func(string) error) func(n *node) *pod {
	return func(n *node) *pod {
		p := spoiled(damage)(n)
		n.ctl("repair")
		return p
	}
}

func killed(n *node) *pod {
	p := n.runPod()
	n.runtime.kill(nil)
	return p
}

func addKilled(n *node) *pod {
	p := n.newPod()
	n.killHalfway("ADD", p, n.runtime.run)
	return p
}

func delKilled(n *node) *pod {
	p := n.runPod()
	n.killHalfway("DEL", p, n.runtime.remove)
	return p
}

// killHalfway kills runtime and plugins when half of the chain has been called
// with verb.
func (n *node) killHalfway(verb string, p *pod, start func(p *pod) *call) {
	n.Helper()
	n.must(os.WriteFile(n.asleep(), nil, 0o644))
	_ = os.Remove(n.calls())
	c := start(p)
	n.until("the plugin in the middle is called with "+verb, func() bool { return n.called(verb) })
	n.runtime.kill(c)
}

// edited takes a plugin out of the conflist that has something to undo.
func edited(n *node) *pod {
	p := n.runPod()
	n.writeConflist(n.layout, withoutPortmap)
	n.reloaded()
	return p
}

// unprotected takes us out.
func unprotected(n *node) *pod {
	p := n.runPod()
	n.writeConflist(none, chain)
	n.reloaded()
	return p
}

func rebooted(damage func(string) error) func(n *node) *pod {
	return func(n *node) *pod {
		p := n.runPod()
		n.spoil(damage)
		n.reboot()
		n.runtime.start()
		if c, ok := n.runtime.(*containerd); ok {
			n.must(c.crictl("info").wait()) // as a kubelet does, all the time
		}
		return p
	}
}

// startedAgain is podman's ADD for a container that has had one before.
func startedAgain(damage func(string) error) func(n *node) *pod {
	return func(n *node) *pod {
		p := rebooted(damage)(n)
		// As its package's tmpfiles.d does at boot. Otherwise host-local refuses.
		n.must(os.RemoveAll(ipam))
		n.must(n.runtime.(*podman).podman("start", p.name).wait())
		n.reach(p)
		return p
	}
}

// tries is how often the runtime is asked to remove a pod before it counts as
// stuck. A kubelet never ceases, and so would be stuck for ever.
const tries = 2

// removed removes a pod, as often as need be.
func (n *node) removed(p *pod) error {
	var errs []error
	for range tries {
		err := n.runtime.remove(p).wait()
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// notes say why something may be left though we are there.
var notes = []string{
	"Without a last stanza nobody has journaled the result, and without it firewall does nothing.",
	"bridge finds out from the interface in the network namespace which addresses to stop masquerading; once that is gone, no DEL can tell it.",
}

// note returns the number of the note on what is left, 0 if it must not be.
func (n *node) note(f fault, kind string, netnsGone bool) int {
	switch {
	case n.layout == none:
	case kind == "firewall" && n.layout == first && f.losesResult:
		return 1
	case kind == "masquerade" && netnsGone:
		return 2
	}
	return 0
}

// cell lets a fault happen, has the pod removed, and mends what is wrong then.
// It returns what is to be said of it in the table.
func (n *node) cell(f fault) string {
	defer n.scrub()
	n.rebooted = false
	p := f.happen(n)
	var said []string
	var stuck error
	if n.runtime.knows(p) {
		if stuck = n.removed(p); stuck != nil {
			said = append(said, "pod stuck;")
			n.Logf("stuck: %v", stuck)
		}
	} else {
		said = append(said, "pod forgotten;")
	}
	found := n.left(afterwards)
	var did []string
	netnsGone := false
	for _, r := range remedies {
		if stuck == nil && len(found) == 0 {
			break
		}
		netnsGone = !slices.Contains(kindsOf(found), "netns")
		if !r.mend(n, p) {
			continue
		}
		wait := time.Duration(0) // remedies are done when they return
		was := fmt.Sprint(stuck != nil, found)
		if stuck != nil {
			stuck = n.removed(p)
			wait = afterwards
		}
		found = n.left(wait)
		if fmt.Sprint(stuck != nil, found) != was {
			did = append(did, r.name)
		}
	}
	if stuck != nil {
		said = append(said, "stuck for ever;")
		n.Errorf("the pod is stuck: %v", stuck)
	}
	if len(did) > 0 {
		said = append(said, "after "+strings.Join(did, ", ")+":")
	}
	if len(found) == 0 {
		return strings.Join(append(said, "clean"), " ")
	}
	var kinds []string
	for _, kind := range kindsOf(found) {
		if note := n.note(f, kind, netnsGone); note > 0 {
			kind += fmt.Sprintf(" (%d)", note)
		} else if n.layout != none {
			n.Errorf("%s is left behind:\n%s", kind, strings.Join(found, "\n"))
		}
		kinds = append(kinds, kind)
	}
	return strings.Join(append(said, "**left: "+strings.Join(kinds, ", ")+"**"), " ")
}
