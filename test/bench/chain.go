package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// The variants of a whole chain. The second without shows what the machine's
// noise alone makes of two that are the same.
const again = "without, a second time"

var variants = append([]string{"without", again}, layouts...)

// wholeChain is a network as a runtime has it.
type wholeChain struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

func (r rig) wholeChain(variant string) (wholeChain, error) {
	name := variant
	if variant == again {
		name = "without"
	}
	list, err := libcni.LoadNetworkConf(r.confDir(name), network)
	path := []string{filepath.Join(bin, "cni"), bin}
	return wholeChain{libcni.NewCNIConfigWithCacheDir(path, r.path(variant, "cache"), nil), list}, err
}

// pod is a network namespace, and what the runtime says of it.
func pod(n int) (*libcni.RuntimeConf, error) {
	name := fmt.Sprintf("pod%d", n)
	return &libcni.RuntimeConf{
		ContainerID: id(n), NetNS: "/run/netns/" + name, IfName: "eth0",
		Args:           [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", name}},
		CapabilityArgs: map[string]any{"portMappings": []any{object{"hostPort": 20000 + n%10000, "containerPort": 80, "protocol": "tcp"}}},
	}, run("ip", "netns", "add", name)
}

// addDel takes the times of ADD and DEL of as many pods at once.
func (c wholeChain) addDel(pods []*libcni.RuntimeConf) (add, del sample, err error) {
	ctx := context.Background()
	add, err = together(len(pods), func(i int) error {
		_, err := c.cni.AddNetworkList(ctx, c.list, pods[i])
		return err
	})
	if err != nil {
		return add, del, fmt.Errorf("ADD: %w", err)
	}
	del, err = together(len(pods), func(i int) error { return c.cni.DelNetworkList(ctx, c.list, pods[i]) })
	if err != nil {
		return add, del, fmt.Errorf("DEL: %w", err)
	}
	return add, del, nil
}

// together calls f n times at once, and returns what this took in all.
func together(n int, f func(i int) error) (sample, error) {
	before, err := cpuOfChildren()
	if err != nil {
		return sample{}, err
	}
	errs := make([]error, n)
	start := time.Now()
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	took := time.Since(start)
	after, err := cpuOfChildren()
	for _, e := range errs {
		if e != nil {
			err = e
		}
	}
	return sample{took, after - before}, err
}

// chainContest runs ADD and DEL of n pods at once down every variant.
func chainContest(r rig, n, rounds int) (results, error) {
	res := results{make(map[string]series), make(map[string]series)}
	chains := make(map[string]wholeChain)
	for _, variant := range variants {
		var err error
		if chains[variant], err = r.wholeChain(variant); err != nil {
			return res, err
		}
	}
	const warmup = 1
	for round := -warmup; round < rounds; round++ {
		for _, i := range rand.Perm(len(variants)) {
			variant := variants[i]
			pods := make([]*libcni.RuntimeConf, n)
			for i := range pods {
				var err error
				if pods[i], err = pod(i); err != nil {
					return res, err
				}
			}
			if err := r.flushDisk(); err != nil {
				return res, err
			}
			runtime.GC()
			add, del, err := chains[variant].addDel(pods)
			if err != nil {
				return res, fmt.Errorf("%s: %w", variant, err)
			}
			if round >= 0 {
				res.add[variant] = append(res.add[variant], add)
				res.del[variant] = append(res.del[variant], del)
			}
			for _, pod := range pods {
				if variant != "without" && variant != again && r.journaled(variant, pod.ContainerID) {
					return res, fmt.Errorf("%s: %s is still in the journal", variant, pod.ContainerID)
				}
				if err := run("ip", "netns", "del", filepath.Base(pod.NetNS)); err != nil {
					return res, err
				}
			}
		}
	}
	return res, nil
}

// measureChain compares a whole chain with and without us, through libcni.
func measureChain(b budget, rep *report) error {
	r, err := newRig("/var/lib/chain")
	if err != nil {
		return err
	}
	res, err := chainContest(r, 1, b.chainRounds)
	if err != nil {
		return err
	}
	limits := map[string]float64{"first": 1.10, "first and last": 1.15, "wrapped": 1.10}
	for _, verb := range []struct {
		name string
		of   map[string]series
	}{{"ADD", res.add}, {"DEL", res.del}} {
		t := chainTable(verb.name, verb.of)
		for _, variant := range variants {
			quotients := pairs(verb.of[variant].of(wall), verb.of["without"].of(wall), quotient)
			if limit, ok := limits[variant]; ok {
				rep.target(fmt.Sprintf("%s of the whole chain, %s: at most %.2f times without", verb.name, variant, limit), limit, quotients)
			}
			name := variant
			if limits[variant] != 0 {
				name = "durable-args, " + variant
			}
			if variant != again {
				rep.bar(verb.name+" of the whole chain", name, verb.of[variant].of(wall))
			}
		}
		rep.add(verb.name+" of bridge, portmap and firewall, one at a time",
			"Through libcni, as containerd calls it.", t)
	}
	return nil
}

// chainTable shows what every variant adds.
func chainTable(verb string, of map[string]series) table {
	t := table{head: []string{verb, "wall ms", "CPU ms", "added wall ms", "added wall %", "added CPU %"}}
	for _, variant := range variants {
		s, without := of[variant], of["without"]
		row := []string{variant, spread(s.of(wall)), spread(s.of(cpu)), "", "", ""}
		if variant != "without" {
			percent := func(a, b float64) float64 { return 100 * (a/b - 1) }
			row[3] = times(pairs(s.of(wall), without.of(wall), difference))
			row[4] = times(pairs(s.of(wall), without.of(wall), percent))
			row[5] = times(pairs(s.of(cpu), without.of(cpu), percent))
		}
		t.rows = append(t.rows, row)
	}
	return t
}
