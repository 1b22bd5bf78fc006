package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"golang.org/x/sys/unix"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
)

// sweep sweeps with a list of the attachments that the runtime knows.
func (n *node) sweep(valid ...string) error {
	n.Helper()
	isValid := func(key journal.Key) bool { return slices.Contains(valid, key.ContainerID) }
	return n.replayer(3).Sweep(n.Context(), "web", isValid, chain.Call{Path: n.bin})
}

// swept returns the containers whose plugins were called, in order.
func (n *node) swept() string {
	n.Helper()
	var containers []string
	for _, call := range n.calls() {
		containers = append(containers, call.container)
	}
	return strings.Join(slices.Compact(containers), " ")
}

func TestWhatASweepReplays(t *testing.T) {
	t.Parallel()
	const one, two, six = "10.0.0.1/24", "10.0.0.2/24", "fd00::1/64"
	// in adds an attachment, in the network namespace ns, with an address if
	// it is not empty.
	in := func(n *node, container string, ns journal.NetNS, address string) {
		add := n.add("bridge", "portmap")
		add.NetNS = ns
		n.journal(container, add)
		if address != "" {
			n.journal(container, result(address))
		}
	}
	for _, row := range []struct {
		name  string
		given func(n *node)
		valid []string
		swept string
		left  string
		errs  []string // what the error mentions, nil if there is none
	}{
		{"nothing is journaled", func(*node) {}, nil, "", "", nil},
		{"one that is gone", func(n *node) { in(n, "c1", n.gone(), one) }, nil, "c1", "", nil},
		{"one without a result", func(n *node) { in(n, "c1", n.gone(), "") }, nil, "c1", "", nil},
		{"one that was added twice at the same address", func(n *node) {
			in(n, "c1", n.gone(), one)
			in(n, "c1", n.gone(), one)
		}, nil, "c1", "", nil},
		{"one from before the boot, though its path is there", func(n *node) {
			ns := n.alive()
			ns.BootID = "before"
			in(n, "c1", ns, one)
		}, nil, "c1", "", nil},
		{"not one that is valid, though it is gone", func(n *node) {
			in(n, "c1", n.gone(), one)
			in(n, "c2", n.gone(), two)
		}, []string{"c2"}, "c1", "c2", nil},
		{"not one that is alive, though it is not valid", func(n *node) {
			in(n, "c1", n.alive(), one)
			in(n, "c2", n.gone(), two)
		}, nil, "c2", "c1", nil},
		{"not one with an ADD that is alive, though a later one is gone", func(n *node) {
			in(n, "c1", n.alive(), one)
			in(n, "c1", n.gone(), one)
		}, nil, "", "c1", nil},
		{"not one of which nobody can tell whether it is alive", func(n *node) {
			in(n, "c1", n.untold(), one)
			in(n, "c2", n.gone(), two)
		}, nil, "c2", "c1", []string{unix.ELOOP.Error()}},
		{"one of which nobody can tell is no error if it is valid", func(n *node) { in(n, "c1", n.untold(), one) }, []string{"c1"}, "", "c1", nil},

		{"not one whose address a newer one has", func(n *node) {
			in(n, "c1", n.gone(), one)
			in(n, "c2", n.gone(), one)
			in(n, "c3", n.gone(), two)
		}, []string{"c2"}, "c3", "c1 c2", []string{"web/c1@eth0", "10.0.0.1", "web/c2@eth0"}},
		{"not one whose IPv6 address a newer one has", func(n *node) {
			in(n, "c1", n.gone(), six)
			in(n, "c2", n.gone(), "fd00:0:0::1/120")
		}, []string{"c2"}, "", "c1 c2", []string{"web/c1@eth0", "fd00::1", "web/c2@eth0"}},
		{"not one whose address a living one has, though that is older by the clock", func(n *node) {
			in(n, "c1", n.alive(), one)
			in(n, "c2", n.gone(), one)
		}, nil, "", "c1 c2", []string{"web/c2@eth0", "10.0.0.1", "web/c1@eth0"}},
		{"not one whose address a living one has that is just being added again", func(n *node) {
			in(n, "c1", n.gone(), one)
			in(n, "c2", n.alive(), one)
			in(n, "c2", n.alive(), "")
		}, nil, "", "c1 c2", []string{"web/c1@eth0", "10.0.0.1", "web/c2@eth0"}},
		{"one whose address another had before it was added again", func(n *node) {
			in(n, "c1", n.gone(), one)
			in(n, "c2", n.alive(), one)
			in(n, "c2", n.alive(), two)
		}, nil, "c1", "c2", nil},
		{"not one whose address somebody has of whom nobody can tell whether he lives", func(n *node) {
			in(n, "c1", n.untold(), one)
			in(n, "c2", n.gone(), one)
		}, []string{"c1"}, "", "c1 c2", []string{"web/c2@eth0", "web/c1@eth0"}},
		{"not one of two ADDs, if a newer one has the address of the first", func(n *node) {
			in(n, "c1", n.gone(), one)
			in(n, "c2", n.gone(), one)
			in(n, "c1", n.gone(), two)
		}, []string{"c2"}, "", "c1 c2", []string{"web/c1@eth0", "web/c2@eth0"}},
		{"one whose address an older one had that is gone", func(n *node) {
			in(n, "c1", n.gone(), one)
			in(n, "c2", n.gone(), one)
		}, []string{"c1"}, "c2", "c1", nil},
		{"one whose address another has in another network", func(n *node) {
			in(n, "c1", n.gone(), one)
			add := n.add("bridge")
			add.NetNS = n.alive()
			other := journal.Key{Network: "db", ContainerID: "c2", IfName: "eth0"}
			if err := errors.Join(n.store.Append(other, add), n.store.Append(other, result(one))); err != nil {
				n.Fatal(err)
			}
		}, nil, "c1", "", nil},
		{"all through whose hands an address has passed, the last one first", func(n *node) {
			in(n, "c2", n.gone(), one)
			in(n, "c4", n.gone(), two)
			in(n, "c1", n.gone(), one)
			in(n, "c3", n.gone(), one)
		}, nil, "c3 c1 c4 c2", "", nil},

		{"all others if one fails", func(n *node) {
			in(n, "c1", n.gone(), one)
			in(n, "c2", n.gone(), two)
			in(n, "c3", n.gone(), six)
			n.fails("c2", "two is busy")
			n.fails("c3", "three is busy")
		}, nil, "c3 c2 c1", "c2 c3", []string{"two is busy", "three is busy", "web/c2@eth0", "web/c3@eth0", `"portmap"`}},
		{"not one whose address another has that fails", func(n *node) {
			in(n, "c1", n.gone(), one)
			in(n, "c2", n.gone(), one)
			n.fails("c2", "two is busy")
		}, nil, "c2", "c1 c2", []string{"two is busy", "web/c1@eth0", "10.0.0.1 belongs to web/c2@eth0"}},
		{"all others if one has a plugin that is missing", func(n *node) {
			n.journal("c1", n.add("gone"))
			in(n, "c2", n.gone(), two)
		}, nil, "c2", "c1", []string{`"gone"`, "web/c1@eth0"}},
		{"all others if one makes no sense", func(n *node) {
			add := n.add("bridge")
			add.RuntimeConfig = []byte(`[]`)
			n.journal("c1", add)
			in(n, "c2", n.gone(), two)
		}, nil, "c2", "c1", []string{"web/c1@eth0"}},

		{"nothing of what owes nothing, which is removed", func(n *node) {
			in(n, "c1", n.gone(), one)
			n.journal("c1", journal.Replayed{})
		}, nil, "", "", nil},
		{"nothing of what owes nothing, though a living one has the address", func(n *node) {
			in(n, "c1", n.gone(), one)
			n.journal("c1", journal.Replayed{})
			in(n, "c2", n.alive(), one)
		}, nil, "", "c2", nil},
		{"an ADD after what owes nothing", func(n *node) {
			in(n, "c1", n.alive(), one)
			n.journal("c1", journal.Replayed{})
			in(n, "c1", n.gone(), one)
		}, nil, "c1", "", nil},
		{"nothing of what only a later version can read", func(n *node) { n.write("c1", later()) }, nil, "", "c1", nil},
		{"what it can read, but the rest stays", func(n *node) {
			in(n, "c1", n.gone(), one)
			n.write("c1", later())
		}, nil, "c1", "c1", nil},
		{"what is whole of a file with a torn line", func(n *node) {
			in(n, "c1", n.gone(), one)
			n.write("c1", `0badc0de {"version":1,"ki`)
		}, nil, "c1", "", nil},
		{"nothing of what is no attachment", func(n *node) {
			in(n, "c1", n.gone(), one)
			if err := os.WriteFile(filepath.Join(n.dir, "web", ".new"), nil, 0o600); err != nil {
				n.Fatal(err)
			}
		}, nil, "c1", "", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "bridge", "portmap")
			row.given(n)
			err := n.sweep(row.valid...)
			if (err != nil) != (row.errs != nil) {
				t.Errorf("the error is %v", err)
			}
			for _, words := range row.errs {
				if err != nil && !strings.Contains(err.Error(), words) {
					t.Errorf("the error does not mention %q: %v", words, err)
				}
			}
			if swept := n.swept(); swept != row.swept {
				t.Errorf("replayed: %q, want %q", swept, row.swept)
			}
			if left := n.left(); left != row.left {
				t.Errorf("left: %q, want %q", left, row.left)
			}
		})
	}
}

func TestASweepCallsAPluginAsItWasCalledOnADD(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge", "portmap")
	add := n.add("bridge", "portmap")
	add.Path = "/nonexistent" // it has moved since
	n.journal("c1", add, result("10.0.0.1/24"))
	if err := n.sweep(); err != nil {
		t.Fatal(err)
	}
	for _, call := range n.calls() {
		if call.args != "A=1" || call.netns != "" || call.prevResult(t) != string(result("10.0.0.1/24")) {
			t.Errorf("called: %+v", call)
		}
	}
	if called := n.called(); called != "portmap bridge" {
		t.Errorf("called: %q", called)
	}
}

func TestASweepStopsAtAPluginThatFails(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge", "portmap")
	n.journal("c1", n.add("bridge", "portmap"))
	n.fails("portmap", "busy")
	for range 5 {
		if err := n.sweep(); err == nil {
			t.Error("no error")
		}
		if called := n.called(); called != "portmap" {
			t.Errorf("called: %q", called)
		}
	}
	// Three tries are a DEL's; a debt's same failure is written down once.
	if attempts := n.record("c1").Attempts; len(attempts) != 3 || attempts[0].Plugin != "portmap" || !strings.Contains(attempts[0].Error, "busy") {
		t.Errorf("the attempts are %+v", attempts)
	}
	n.succeeds("portmap")
	if err := n.sweep(); err != nil || n.left() != "" {
		t.Errorf("once it succeeds: %v, left: %q", err, n.left())
	}
}

func TestAConflictSaysWhoseTheAddressIs(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge")
	n.journal("c1", n.add("bridge"), journal.Result(`{"ip4":{"ip":"10.0.0.1/24"}}`)) // before 0.3.0
	n.journal("c2", n.add("bridge"), result("10.0.0.1/24"))
	var conflict *ConflictError
	if err := n.sweep("c2"); !errors.As(err, &conflict) ||
		*conflict != (ConflictError{attachment("c1"), netip.MustParseAddr("10.0.0.1"), attachment("c2")}) {
		t.Errorf("the error is %v", err)
	}
	if attempts := n.record("c1").Attempts; len(attempts) > 0 {
		t.Errorf("what was not tried is written down: %+v", attempts)
	}
}

func TestASweepSetsAsideWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge")
	n.write("c1", "\x00\x00\x00\x00")
	n.write("c2", "") // as a crash can leave it
	n.journal("c3", n.add("bridge"))
	if err := n.sweep(); err != nil {
		t.Error(err)
	}
	if swept, left := n.swept(), n.left(); swept != "c3" || left != "" {
		t.Errorf("replayed: %q, left: %q", swept, left)
	}
	kept, err := filepath.Glob(filepath.Join(n.dir, ".corrupt", "*", "*"))
	if err != nil || len(kept) != 2 {
		t.Errorf("kept: %q, %v; want both", kept, err)
	}
	for _, path := range kept {
		if !strings.Contains(n.stderr.String(), path) {
			t.Errorf("the operator is told %q, and not of %s", n.stderr.String(), path)
		}
	}
}

// A corrupt file of a container that runs is left where CHECK finds it.
func TestASweepLeavesWhatIsValidEvenIfItCannotBeRead(t *testing.T) {
	t.Parallel()
	n := newNode(t, "bridge")
	n.write("c1", "\x00\x00\x00\x00")
	if err := n.sweep("c1"); err != nil || n.left() != "c1" {
		t.Errorf("%v, left: %q", err, n.left())
	}
}

func TestWhatIsAddedAgainBetweenLookAndLockIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name        string
		between     func(n *node)
		swept, left string
	}{
		{"nothing happens", func(*node) {}, "c2 c1", ""},
		{"it is added again, and lives", func(n *node) {
			add := n.add("bridge")
			add.NetNS = n.alive()
			n.journal("c1", add)
		}, "c2", "c1"},
		{"its DEL comes", func(n *node) {
			if err := os.Remove(n.file("c1")); err != nil {
				n.Error(err)
			}
		}, "c2", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "bridge")
			n.journal("c1", n.add("bridge"))
			n.journal("c2", n.add("bridge"))
			// c2 is newer, so its turn comes first: when its plugin runs, all
			// have been looked at.
			up, goOn := filepath.Join(n.bin, "up"), filepath.Join(n.bin, "go-on")
			n.on("c2", `touch "$here/up"; while [ ! -e "$here/go-on" ]; do sleep 0.01; done`)
			swept := make(chan error, 1)
			go func() { swept <- n.sweep() }()
			for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(time.Millisecond) {
				if _, err := os.Stat(up); err == nil {
					break
				}
			}
			row.between(n)
			if err := os.WriteFile(goOn, nil, 0o600); err != nil {
				t.Error(err)
			}
			if err := <-swept; err != nil {
				t.Error(err)
			}
			if got := n.swept(); got != row.swept || n.left() != row.left {
				t.Errorf("replayed: %q, left: %q; want %q, %q", got, n.left(), row.swept, row.left)
			}
		})
	}
}

func TestAStoreThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	for _, untrusted := range []string{"web", "web/c1@eth0"} {
		n := newNode(t, "bridge")
		n.journal("c1", n.add("bridge"))
		if err := os.Chmod(filepath.Join(n.dir, untrusted), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := n.sweep(); !errors.Is(err, journal.ErrUntrusted) || n.swept() != "" {
			t.Errorf("%s: %v, replayed: %q", untrusted, err, n.swept())
		}
	}
}

func TestTheAddressesOfAResult(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, result, want string }{
		{"of today", `{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1","interface":0},{"address":"fd00::2/64"}]}`, "10.0.0.2 fd00::2"},
		{"of 0.3.0", `{"cniVersion":"0.3.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}`, "10.0.0.2"},
		{"of 0.2.0", `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24","routes":[{"dst":"0.0.0.0/0"}]},"ip6":{"ip":"fd00::2/64"}}`, "10.0.0.2 fd00::2"},
		{"without any", `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}]}`, ""},
		{"with a list that is null", `{"ips":null}`, ""},
		{"with one that is none", `{"ips":[{"address":"here"},{"address":"10.0.0.2/24"},{},null]}`, "10.0.0.2"},
		{"of another shape", `{"ips":"10.0.0.2/24"}`, ""},
		{"that is null", `null`, ""},
		{"that is a list", `[]`, ""},
		{"that is no JSON", `{"ips":[{"address":"10.0.0.2/24"}]`, ""},
		{"that is absent", ``, ""},
	} {
		var got []string
		for _, address := range Addresses(json.RawMessage(row.result)) {
			got = append(got, address.String())
		}
		if got := strings.Join(got, " "); got != row.want {
			t.Errorf("a result %s: %q, want %q", row.name, got, row.want)
		}
	}
}

// A result is journaled as libcni writes it: whatever it can read, it writes in
// a form whose addresses we find, all of them.
func FuzzAddresses(f *testing.F) {
	for _, seed := range []string{
		`{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"},{"address":"fd00::2/64"}]}`,
		`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"},"ip6":{"ip":"fd00::2/64"}}`,
		`{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.0.0.2/24","gateway":"10.0.0.1"}]}`,
		`{"cniVersion":"1.1.0","ips":[{"address":"::ffff:10.0.0.2/120"}]}`,
		`{"ips":[{"address":"10.0.0.2/024"}]}`, `{"ips":[{"address":"fe80::1%eth0/64"}]}`, `{"ips":[null]}`, `{"ips":{}}`, `null`, `[`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, address := range Addresses(data) {
			if !address.IsValid() || address.Zone() != "" {
				t.Errorf("Addresses(%s) has %v", data, address)
			}
		}
		parsed, err := create.CreateFromBytes(data)
		if err != nil {
			return
		}
		written, err := json.Marshal(parsed)
		if err != nil {
			return
		}
		result, err := current.NewResultFromResult(parsed)
		if err != nil {
			return
		}
		var want, got []string
		for _, ip := range result.IPs {
			if address, ok := netip.AddrFromSlice(ip.Address.IP); ok {
				want = append(want, address.Unmap().String())
			}
		}
		for _, address := range Addresses(written) {
			got = append(got, fmt.Sprint(address))
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("libcni writes %s, with addresses %q; we find %q", written, want, got)
		}
	})
}

// A replay is refused if, and only if, an address of it belongs to another
// attachment that is alive or newer; so of two dead ones, the newer goes first.
func FuzzConflict(f *testing.F) {
	const one, both, old = `{"ips":[{"address":"10.0.0.2/24"}]}`, `{"ips":[{"address":"10.0.0.3/24"},{"address":"10.0.0.2/16"}]}`, `{"ip4":{"ip":"10.0.0.2/8"}}`
	for _, pair := range [][2]string{{one, one}, {one, both}, {both, old}, {one, `{"ips":[{"address":"10.0.0.4/24"}]}`}, {one, ``}, {`[`, one}} {
		for _, alive := range []bool{false, true} {
			f.Add([]byte(pair[0]), []byte(pair[1]), int64(1), int64(2), alive)
			f.Add([]byte(pair[0]), []byte(pair[1]), int64(2), int64(2), alive)
			f.Add([]byte(pair[0]), []byte(pair[1]), int64(3), int64(2), alive)
		}
	}
	f.Fuzz(func(t *testing.T, a, b []byte, whenA, whenB int64, aliveB bool) {
		record := func(id string, result []byte, when int64) journal.Record {
			return journal.Record{Key: attachment(id), Adds: []journal.Add{{Time: time.Unix(0, when), Result: result}}}
		}
		holders := func(owners map[netip.Addr][]owner, rec journal.Record, alive bool) map[netip.Addr][]owner {
			for _, address := range Addresses(rec.Newest().Result) {
				owners[address] = append(owners[address], owner{rec.Key, rec.Newest().Time, alive})
			}
			return owners
		}
		recA, recB := record("a", a, whenA), record("b", b, whenB)
		if err := conflict(recA, holders(make(map[netip.Addr][]owner), recA, true)); err != nil {
			t.Errorf("an attachment conflicts with itself: %v", err)
		}
		owners := holders(holders(make(map[netip.Addr][]owner), recA, false), recB, aliveB)
		shared := slices.ContainsFunc(Addresses(a), func(address netip.Addr) bool { return slices.Contains(Addresses(b), address) })
		errA, errB := conflict(recA, owners), conflict(recB, owners)
		if want := shared && (aliveB || whenB > whenA); (errA != nil) != want {
			t.Errorf("%s at %d against %s at %d, alive %v: %v", a, whenA, b, whenB, aliveB, errA)
		}
		if want := shared && whenA > whenB; (errB != nil) != want {
			t.Errorf("%s at %d against the dead %s at %d: %v", b, whenB, a, whenA, errB)
		}
		var refused *ConflictError
		if errA != nil && (!errors.As(errA, &refused) || refused.Key != recA.Key || refused.Owner != recB.Key || !slices.Contains(Addresses(b), refused.Address)) {
			t.Errorf("the refusal says %v", errA)
		}
	})
}
