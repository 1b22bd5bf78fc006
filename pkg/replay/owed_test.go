package replay

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
)

const (
	bridgeConf  = `{"type":"bridge","mtu":1500}`
	portmapConf = `{"type":"portmap","capabilities":{"portMappings":true}}`
	tuningConf  = `{"type":"tuning","capabilities":{"mac":true,"aliases":false}}`

	hostPort = `[{"hostPort":8080,"containerPort":80}]`
	mac      = `"02:00:00:00:00:01"`

	oneResult   = `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"},{"address":"fd00::2/64"}]}`
	otherResult = `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.3/24"}]}`
	moreResult  = `{"cniVersion":"1.0.0","ips":[{"address":"fd00::2/64"},{"address":"10.9.9.9/24"},{"address":"10.0.0.2/24"}],"dns":{}}`
	bareResult  = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}]}`
)

func configs(texts ...string) []json.RawMessage {
	var raw []json.RawMessage
	for _, text := range texts {
		raw = append(raw, json.RawMessage(text))
	}
	return raw
}

func parsed(t testing.TB, texts ...string) []chain.Plugin {
	t.Helper()
	plugins, err := chain.ParseAll(configs(texts...))
	if err != nil {
		t.Fatal(err)
	}
	return plugins
}

func capabilityArgs(portMappings, mac string) map[string]json.RawMessage {
	return map[string]json.RawMessage{"portMappings": json.RawMessage(portMappings), "mac": json.RawMessage(mac), "nobodys": json.RawMessage(`1`)}
}

// situation is what the journal holds and what the runtime gives.
type situation struct {
	testing.TB
	rec journal.Record
	d   Delivery
}

// add is the newest ADD.
func (s *situation) add() *journal.Add { return s.rec.Newest() }

// today sets the plugins that the runtime's DEL reaches.
func (s *situation) today(texts ...string) { s.d.Plugins = parsed(s.TB, texts...) }

// version sets the version of the network, on ADD and today.
func (s *situation) version(v string) { s.add().CNIVersion, s.d.Call.CNIVersion = v, v }

// delivered is a situation in which nothing has been lost.
func delivered(t testing.TB) *situation {
	t.Helper()
	s := &situation{
		TB: t,
		rec: journal.Record{Key: attachment("c1"), Adds: []journal.Add{{
			Args:          []byte("IgnoreUnknown=1;K8S_POD_NAME=p"),
			RuntimeConfig: json.RawMessage(`{"portMappings":` + hostPort + `,"mac":` + mac + `,"nobodys":1}`),
			CNIVersion:    "1.0.0",
			Path:          "/new",
			NetNS:         journal.NetNS{Path: "/run/netns/c1", Inode: 1, BootID: "now"},
			Chain:         configs(bridgeConf, portmapConf, tuningConf),
			Result:        json.RawMessage(oneResult),
		}}},
		d: Delivery{Call: chain.Call{
			Network:       "web",
			CNIVersion:    "1.0.0",
			ContainerID:   "c1",
			IfName:        "eth0",
			NetNS:         "/run/netns/c1",
			Args:          "IgnoreUnknown=1;K8S_POD_NAME=p",
			RuntimeConfig: capabilityArgs(hostPort, mac),
			PrevResult:    json.RawMessage(oneResult),
		}},
	}
	s.today(bridgeConf, portmapConf, tuningConf)
	return s
}

// older is delivered with an ADD before, the same but for its CNI_PATH and what
// change does to it.
func older(t testing.TB, change func(*journal.Add)) *situation {
	s := delivered(t)
	old := *s.add()
	old.Chain = slices.Clone(old.Chain)
	old.Path = "/old"
	change(&old)
	s.rec.Adds = append([]journal.Add{old}, s.rec.Adds...)
	return s
}

// told is the plugins of steps, in order, each with the ADD that it is of:
// its CNI_PATH.
func told(steps []step) string {
	var words []string
	for _, s := range steps {
		words = append(words, s.plugin.Type+s.call.Path)
	}
	return strings.Join(words, " ")
}

func TestWhatADELOwesIsWhatTheRuntimeDidNotDeliver(t *testing.T) {
	t.Parallel()
	const all = "tuning/new portmap/new bridge/new"
	for _, row := range []struct {
		name string
		when func(s *situation)
		want string
	}{
		{"everything is delivered", func(*situation) {}, ""},
		{"args come in another order", func(s *situation) { s.d.Call.Args = "K8S_POD_NAME=p;IgnoreUnknown=1" }, ""},
		{"the network namespace is gone", func(s *situation) { s.d.Call.NetNS = "" }, ""},
		{"CNI_PATH is another", func(s *situation) { s.d.Call.Path = "/today" }, ""},
		{"the journal owes nothing", func(s *situation) { s.rec.Adds = nil; s.d = Delivery{} }, ""},
		{"args are lost", func(s *situation) { s.d.Call.Args = "" }, all},
		{"one of the args is lost", func(s *situation) { s.d.Call.Args = "IgnoreUnknown=1" }, all},
		{"an arg has another value", func(s *situation) { s.d.Call.Args = "IgnoreUnknown=1;K8S_POD_NAME=q" }, all},
		{"there are args where ADD had none", func(s *situation) { s.add().Args = nil }, all},

		{"all capability args are lost", func(s *situation) { s.d.Call.RuntimeConfig = nil }, "tuning/new portmap/new"},
		{"one plugin's capability args are lost", func(s *situation) { delete(s.d.Call.RuntimeConfig, "portMappings") }, "portmap/new"},
		{"one plugin's capability args are others", func(s *situation) { s.d.Call.RuntimeConfig = capabilityArgs(`[]`, mac) }, "portmap/new"},
		{"one plugin's capability args are null", func(s *situation) { s.d.Call.RuntimeConfig = capabilityArgs(hostPort, `null`) }, "tuning/new"},
		{"one plugin's capability args are written otherwise", func(s *situation) {
			s.d.Call.RuntimeConfig = capabilityArgs(`[ {"containerPort":80.0, "hostPort":808e1} ]`, mac)
		}, ""},
		{"capability args differ beyond 2^53", func(s *situation) {
			s.add().RuntimeConfig = json.RawMessage(`{"mac":9007199254740993,"portMappings":` + hostPort + `}`)
			s.d.Call.RuntimeConfig = capabilityArgs(hostPort, `9007199254740992`)
		}, "tuning/new"},
		{"capability args that no plugin declares are lost", func(s *situation) { delete(s.d.Call.RuntimeConfig, "nobodys") }, ""},
		{"a plugin is given capability args that it had not on ADD", func(s *situation) {
			s.add().RuntimeConfig = json.RawMessage(`{"mac":` + mac + `}`)
		}, "portmap/new"},
		{"there were no capability args on ADD", func(s *situation) { s.add().RuntimeConfig, s.d.Call.RuntimeConfig = nil, nil }, ""},
		{"the capability args were null on ADD", func(s *situation) {
			s.add().RuntimeConfig, s.d.Call.RuntimeConfig = json.RawMessage(`null`), nil
		}, ""},

		{"the conflist has the keys in another order", func(s *situation) { s.today(`{"mtu":1500.0, "type":"bridge"}`, portmapConf, tuningConf) }, ""},
		{"the conflist has the plugins in another order", func(s *situation) { s.today(tuningConf, bridgeConf, portmapConf) }, ""},
		{"the conflist has one more plugin", func(s *situation) { s.today(bridgeConf, portmapConf, `{"type":"sbr"}`, tuningConf) }, ""},
		{"a plugin is configured otherwise", func(s *situation) { s.today(`{"type":"bridge","mtu":9000}`, portmapConf, tuningConf) }, "bridge/new"},
		{"a plugin no longer declares its capability", func(s *situation) { s.today(bridgeConf, `{"type":"portmap"}`, tuningConf) }, "portmap/new"},
		{"a plugin is no longer in the conflist", func(s *situation) { s.today(bridgeConf, tuningConf) }, "portmap/new"},
		{"a plugin is no longer in the conflist, another has lost its capability args", func(s *situation) {
			s.today(portmapConf, tuningConf)
			delete(s.d.Call.RuntimeConfig, "mac")
		}, "tuning/new bridge/new"},
		{"the conflist has no plugins but ours", func(s *situation) { s.d.Plugins = []chain.Plugin{} }, all},
		{"the conflist is not known", func(s *situation) { s.d.Plugins = nil }, all},

		{"the result is absent", func(s *situation) { s.d.Call.PrevResult = nil }, all},
		{"the result is null", func(s *situation) { s.d.Call.PrevResult = json.RawMessage(`null`) }, all},
		{"the result is another", func(s *situation) { s.d.Call.PrevResult = json.RawMessage(otherResult) }, all},
		{"the result is written otherwise", func(s *situation) {
			s.d.Call.PrevResult = json.RawMessage(`{ "ips":[{"address":"10.0.0.2\/24"},{"address":"fd00::2/64"}], "cniVersion":"1.0.0" }`)
		}, ""},
		{"the result has more in it", func(s *situation) { s.d.Call.PrevResult = json.RawMessage(moreResult) }, all},
		{"the result is absent at 0.4.0", func(s *situation) { s.version("0.4.0"); s.d.Call.PrevResult = nil }, all},
		{"the result is absent at 1.1.0", func(s *situation) { s.version("1.1.0"); s.d.Call.PrevResult = nil }, all},
		{"the result is absent below 0.4.0, where it is never sent", func(s *situation) { s.version("0.3.1"); s.d.Call.PrevResult = nil }, ""},
		{"the result is absent where no version is given", func(s *situation) { s.version(""); s.d.Call.PrevResult = nil }, ""},
		{"args are lost below 0.4.0", func(s *situation) { s.version("0.2.0"); s.d.Call.PrevResult, s.d.Call.Args = nil, "" }, all},

		{"no result is journaled, and none comes", func(s *situation) { s.add().Result, s.d.Call.PrevResult = nil, nil }, ""},
		{"no result is journaled, but one comes", func(s *situation) { s.add().Result = nil }, ""},
		{"no result is journaled, and args are lost", func(s *situation) { s.add().Result = nil; s.d.Call.Args = "" }, all},

		{"plugins come after the last stanza, the result has more in it", func(s *situation) {
			s.d.Extended, s.d.Call.PrevResult = true, json.RawMessage(moreResult)
		}, ""},
		{"plugins come after the last stanza, the result is the same", func(s *situation) { s.d.Extended = true }, ""},
		{"plugins come after the last stanza, the result lacks an address", func(s *situation) {
			s.d.Extended, s.d.Call.PrevResult = true, json.RawMessage(`{"ips":[{"address":"10.0.0.2/24"}]}`)
		}, all},
		{"plugins come after the last stanza, the result is absent", func(s *situation) { s.d.Extended, s.d.Call.PrevResult = true, nil }, all},
		{"plugins come after the last stanza, there are no addresses to tell by", func(s *situation) {
			s.add().Result = json.RawMessage(bareResult)
			s.d.Extended, s.d.Call.PrevResult = true, json.RawMessage(moreResult)
		}, all},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := delivered(t)
			row.when(s)
			steps, err := owed(s.rec, s.d)
			if got := told(steps); err != nil || got != row.want {
				t.Errorf("owed: %q, %v; want %q", got, err, row.want)
			}
		})
	}
}

// The newest ADD is the one that the runtime's DEL is about.
func TestWhatADELOwesAfterTwoADDs(t *testing.T) {
	t.Parallel()
	const (
		newest = "tuning/new portmap/new bridge/new"
		oldest = "tuning/old portmap/old bridge/old"
	)
	for _, row := range []struct {
		name    string
		older   func(*journal.Add)
		when    func(*situation) // nil if everything is delivered
		owed    string
		planned string // whatever is delivered
	}{
		{"they are the same", func(*journal.Add) {}, nil, "", newest},
		{"they are the same, and args are lost", func(*journal.Add) {}, func(s *situation) { s.d.Call.Args = "" }, newest, newest},
		{"the args are the same in another order", func(a *journal.Add) { a.Args = []byte("K8S_POD_NAME=p;IgnoreUnknown=1") }, nil, "", newest},
		{"only the network namespace is another", func(a *journal.Add) { a.NetNS = journal.NetNS{Path: "/run/netns/c0", Inode: 2, BootID: "now"} }, nil, "", newest},
		{"only the result is another", func(a *journal.Add) { a.Result = json.RawMessage(otherResult) }, nil, "", newest},
		{"only the boot and the result are others", func(a *journal.Add) {
			a.Result = json.RawMessage(otherResult)
			a.NetNS.BootID = "before"
		}, nil, "", newest},
		{"only CNI_ARGS are others", func(a *journal.Add) { a.Args = []byte("K8S_POD_NAME=o") }, nil, oldest, newest + " " + oldest},
		{"CNI_ARGS are others, and the newest are lost", func(a *journal.Add) { a.Args = []byte("K8S_POD_NAME=o") },
			func(s *situation) { s.d.Call.Args = "" }, newest + " " + oldest, newest + " " + oldest},
		{"CNI_ARGS are others, and the runtime gives the older ones", func(a *journal.Add) { a.Args = []byte("K8S_POD_NAME=o") },
			func(s *situation) { s.d.Call.Args = "K8S_POD_NAME=o" }, newest, newest + " " + oldest},
		{"one plugin's capability args are others", func(a *journal.Add) {
			a.RuntimeConfig = json.RawMessage(`{"portMappings":[],"mac":` + mac + `}`)
		}, nil, "portmap/old", newest + " portmap/old"},
		{"there were no capability args before", func(a *journal.Add) { a.RuntimeConfig = nil }, nil, "tuning/old portmap/old", newest + " tuning/old portmap/old"},
		{"one plugin's capability args and the result are others", func(a *journal.Add) {
			a.RuntimeConfig = json.RawMessage(`{"portMappings":[],"mac":` + mac + `}`)
			a.Result = json.RawMessage(otherResult)
		}, nil, oldest, newest + " " + oldest},
		{"a plugin was configured otherwise", func(a *journal.Add) { a.Chain[0] = json.RawMessage(`{"type":"bridge","mtu":9000}`) }, nil,
			"bridge/old", newest + " bridge/old"},
		{"a plugin has been taken out since", func(a *journal.Add) { a.Chain = append(a.Chain, json.RawMessage(`{"type":"sbr"}`)) }, nil,
			"sbr/old", newest + " sbr/old"},
		{"a plugin has come in since", func(a *journal.Add) { a.Chain = a.Chain[:2] }, nil, "", newest},
		{"one plugin's capability args are others, and the newest result has more in it", func(a *journal.Add) {
			a.RuntimeConfig = json.RawMessage(`{"portMappings":[],"mac":` + mac + `}`)
		}, func(s *situation) { s.add().Result = json.RawMessage(moreResult); s.d.Call.PrevResult = s.add().Result }, oldest, newest + " " + oldest},
		{"only the result is another, and there never were capability args", func(a *journal.Add) {
			a.RuntimeConfig, a.Result = nil, json.RawMessage(otherResult)
		}, func(s *situation) { s.add().RuntimeConfig, s.d.Call.RuntimeConfig = nil, nil }, "", newest},
		{"the version and the result were others", func(a *journal.Add) {
			a.CNIVersion, a.Result = "0.4.0", json.RawMessage(otherResult)
		}, nil, oldest, newest + " " + oldest},
		{"the version was another", func(a *journal.Add) { a.CNIVersion = "0.4.0" }, nil, "", newest},
		{"the newest has no result, the older one has, and it comes", func(*journal.Add) {},
			func(s *situation) { s.add().Result = nil }, "", newest},
		{"the newest has no result, the older one has, and none comes", func(*journal.Add) {},
			func(s *situation) { s.add().Result, s.d.Call.PrevResult = nil, nil }, newest, newest},
		{"the newest has no result, the older one is of another boot, and none comes", func(a *journal.Add) { a.NetNS.BootID = "before" },
			func(s *situation) { s.add().Result, s.d.Call.PrevResult = nil, nil }, "", newest},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := older(t, row.older)
			if row.when != nil {
				row.when(s)
			}
			steps, err := owed(s.rec, s.d)
			if got := told(steps); err != nil || got != row.owed {
				t.Errorf("owed: %q, %v; want %q", got, err, row.owed)
			}
			steps, err = plan(s.rec, s.d.Call)
			if got := told(steps); err != nil || got != row.planned {
				t.Errorf("planned: %q, %v; want %q", got, err, row.planned)
			}
		})
	}
}

func TestTheNewestADDComesFirstAndItsPluginsInReverse(t *testing.T) {
	t.Parallel()
	s := delivered(t)
	adds := make([]journal.Add, 3)
	for i, path := range []string{"/1st", "/2nd", "/3rd"} {
		adds[i] = *s.add()
		adds[i].Args, adds[i].Path = []byte("N="+path), path
		adds[i].NetNS.Path = path
	}
	steps, err := plan(journal.Record{Key: s.rec.Key, Adds: adds}, chain.Call{})
	const want = "tuning/3rd portmap/3rd bridge/3rd tuning/2nd portmap/2nd bridge/2nd tuning/1st portmap/1st bridge/1st"
	if got := told(steps); err != nil || got != want {
		t.Errorf("planned: %q, %v; want %q", got, err, want)
	}
	for _, step := range steps {
		if step.call.Args != "N="+step.call.Path || step.netns.Path != step.call.Path {
			t.Errorf("%s%s has args %q and network namespace %s", step.plugin.Type, step.call.Path, step.call.Args, step.netns.Path)
		}
	}
}

func TestWhoseResultAStepIsTold(t *testing.T) {
	t.Parallel()
	otherArgs := func(a *journal.Add) { a.Args = nil }
	for _, row := range []struct {
		name           string
		when           func(*testing.T) *situation
		newest, oldest string // "-" if that ADD has no step
		mustMatch      bool   // what the runtime sends is compared
	}{
		{"the journaled one", func(t *testing.T) *situation { return delivered(t) }, oneResult, "-", true},
		{"the journaled one, whatever the runtime sends", func(t *testing.T) *situation {
			s := delivered(t)
			s.d.Call.PrevResult = json.RawMessage(otherResult)
			return s
		}, oneResult, "-", true},
		{"the runtime's, where none is journaled", func(t *testing.T) *situation {
			s := delivered(t)
			s.add().Result = nil
			return s
		}, oneResult, "-", false},
		{"none, where there is none", func(t *testing.T) *situation {
			s := delivered(t)
			s.add().Result, s.d.Call.PrevResult = nil, nil
			return s
		}, "", "-", false},
		{"none below 0.4.0", func(t *testing.T) *situation {
			s := delivered(t)
			s.version("0.3.1")
			return s
		}, "", "-", false},
		{"none below 0.4.0, even if the runtime sends one", func(t *testing.T) *situation {
			s := delivered(t)
			s.version("0.3.1")
			s.add().Result = nil
			return s
		}, "", "-", false},
		{"each ADD its own", func(t *testing.T) *situation {
			s := older(t, otherArgs)
			s.rec.Adds[0].Result = json.RawMessage(otherResult)
			return s
		}, oneResult, otherResult, true},
		{"the runtime's goes to the newest ADD only", func(t *testing.T) *situation {
			s := older(t, otherArgs)
			s.rec.Adds[0].Result, s.rec.Adds[1].Result = nil, nil
			return s
		}, oneResult, "", false},
		{"an ADD's own is not lent to another kind of ADD", func(t *testing.T) *situation {
			s := older(t, otherArgs)
			s.rec.Adds[1].Result, s.d.Call.PrevResult = nil, nil
			return s
		}, "", oneResult, false},
		{"an older one of the same kind and boot", func(t *testing.T) *situation {
			s := older(t, func(a *journal.Add) { a.Result = json.RawMessage(otherResult) })
			s.add().Result = nil
			return s
		}, otherResult, "-", true},
		{"not an older one of another boot", func(t *testing.T) *situation {
			s := older(t, func(a *journal.Add) { a.NetNS.BootID = "before" })
			s.add().Result = nil
			s.d.Call.PrevResult = json.RawMessage(otherResult)
			return s
		}, otherResult, "-", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			s := row.when(t)
			steps, err := plan(s.rec, s.d.Call)
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]string{"/new": "-", "/old": "-"}
			for _, step := range steps {
				got[step.call.Path] = string(step.call.PrevResult)
				if matches := step.result != nil; step.call.Path == "/new" && matches != row.mustMatch {
					t.Errorf("step %s has result %s to be compared", step.plugin.Type, step.result)
				}
			}
			if got["/new"] != row.newest || got["/old"] != row.oldest {
				t.Errorf("the newest is told %q, the older %q; want %q, %q", got["/new"], got["/old"], row.newest, row.oldest)
			}
		})
	}
}

func TestBinariesAreLookedForWhereTheyWereAndWhereTheyAre(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ name, onADD, today, want string }{
		{"CNI_PATH is the same", "/opt/cni/bin:/usr/lib/cni", "/opt/cni/bin:/usr/lib/cni", "/opt/cni/bin:/usr/lib/cni"},
		{"CNI_PATH is another", "/opt/cni/bin", "/usr/lib/cni", "/opt/cni/bin:/usr/lib/cni"},
		{"CNI_PATH is not known today", "/opt/cni/bin", "", "/opt/cni/bin"},
	} {
		s := delivered(t)
		s.add().Path = row.onADD
		plugins, call, err := Journaled(s.rec.Key, *s.add(), row.today)
		if err != nil || len(plugins) != 3 || call.Path != row.want {
			t.Errorf("%s: %d plugins in %q, %v; want 3 in %q", row.name, len(plugins), call.Path, err, row.want)
		}
	}
}

func TestWhatWasJournaledIsCalledAsOnADD(t *testing.T) {
	t.Parallel()
	s := delivered(t)
	s.add().Args = []byte("A=\xff")
	_, call, err := Journaled(s.rec.Key, *s.add(), "")
	if err != nil || call.Network != "web" || call.ContainerID != "c1" || call.IfName != "eth0" || call.CNIVersion != "1.0.0" ||
		call.Args != "A=\xff" || string(call.RuntimeConfig["mac"]) != mac || string(call.PrevResult) != oneResult || call.NetNS != "" {
		t.Errorf("the call is %+v, %v", call, err)
	}
}

func TestAnEntryThatMakesNoSenseIsAnError(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		change func(*journal.Add)
	}{
		{"capability args that are a list", func(a *journal.Add) { a.RuntimeConfig = json.RawMessage(`[]`) }},
		{"a plugin without a type", func(a *journal.Add) { a.Chain[1] = json.RawMessage(`{}`) }},
	} {
		s := delivered(t)
		row.change(s.add())
		if steps, err := owed(s.rec, s.d); err == nil || steps != nil || !strings.Contains(err.Error(), "web/c1@eth0") {
			t.Errorf("%s: owed %q, %v; want an error that names the attachment", row.name, told(steps), err)
		}
	}
}

// Some chains have a plugin twice, tuning say, with the same configuration.
func TestAPluginThatIsTwiceInTheChainIsCalledTwice(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		older func(*journal.Add)
		want  string
	}{
		{"one ADD", nil, "bridge/new tuning/new bridge/new"},
		{"two ADDs of a kind", func(*journal.Add) {}, "bridge/new tuning/new bridge/new"},
		{"two ADDs with other args", func(a *journal.Add) { a.Args = nil }, "bridge/new tuning/new bridge/new bridge/old tuning/old bridge/old"},
	} {
		s := delivered(t)
		s.add().Chain = configs(bridgeConf, tuningConf, bridgeConf)
		if row.older != nil {
			s = older(t, row.older)
			for i := range s.rec.Adds {
				s.rec.Adds[i].Chain = configs(bridgeConf, tuningConf, bridgeConf)
			}
		}
		steps, err := plan(s.rec, s.d.Call)
		if got := told(steps); err != nil || got != row.want {
			t.Errorf("%s: planned: %q, %v; want %q", row.name, got, err, row.want)
		}
	}
}
