package e2e

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/durable-args/durable-args/test/sandbox"
)

// commands are those that scripts have beyond testscript's own.
var commands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"expand":   expand,
	"spoil":    spoil,
	"clean":    clean,
	"left":     left,
	"journal":  journal,
	"cmpcalls": cmpcalls,
	"protect":  protect,
	"state":    state,
	"add-dead": addDead,
	"runtime":  runtimeCall,
}

// expand FILE... replaces ${VARIABLES} in files by their values.
func expand(ts *testscript.TestScript, neg bool, args []string) {
	for _, file := range args {
		text := os.Expand(ts.ReadFile(file), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(file), []byte(text), 0o644))
	}
}

// spoil FAULT [NETNS] damages every file in libcni's cache, or that of the
// container in NETNS, in one of the ways in which a power cut does.
func spoil(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 && len(args) != 2 {
		ts.Fatalf("usage: spoil intact|empty|nul|truncated|brace|null|gone [netns]")
	}
	pattern := "*"
	if len(args) == 2 {
		pattern = "*" + containerID(args[1]) + "*"
	}
	files, _ := filepath.Glob("/var/lib/cni/results/" + pattern)
	if len(files) == 0 {
		ts.Fatalf("libcni has cached nothing that could be spoiled")
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		ts.Check(err)
		switch args[0] {
		case "intact":
			continue
		case "gone":
			ts.Check(os.Remove(file))
			continue
		case "empty":
			data = nil
		case "nul":
			data = bytes.Repeat([]byte{0}, len(data))
		case "truncated":
			data = data[:min(200, len(data)/2)]
		case "brace":
			data = []byte("{}")
		case "null":
			data = []byte("null")
		default:
			ts.Fatalf("unknown fault %q", args[0])
		}
		ts.Check(os.WriteFile(file, data, 0o600))
	}
}

// containerID is the one that cnitool makes of a network namespace's path.
func containerID(netns string) string {
	return fmt.Sprintf("cnitool-%x", sha512.Sum512([]byte(netns)))[:len("cnitool-")+20]
}

// protect LAYOUT FILE... puts our stanzas into conflists, with the union of the
// plugins' capabilities.
func protect(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: protect first|first-last|wrapped file...")
	}
	for _, file := range args[1:] {
		var conflist map[string]any
		ts.Check(json.Unmarshal([]byte(ts.ReadFile(file)), &conflist))
		plugins := conflist["plugins"].([]any)
		capabilities := make(map[string]any)
		for _, p := range plugins {
			declared, _ := p.(map[string]any)["capabilities"].(map[string]any)
			for name, value := range declared {
				if value == true {
					capabilities[name] = true
				}
			}
		}
		first := map[string]any{"type": "durable-args", "capabilities": capabilities}
		last := map[string]any{"type": "durable-args", "capabilities": capabilities, "position": "last"}
		switch args[0] {
		case "first":
			plugins = append([]any{first}, plugins...)
		case "first-last":
			plugins = append(append([]any{first}, plugins...), last)
		case "wrapped":
			first["plugins"] = plugins
			plugins = []any{first}
		default:
			ts.Fatalf("unknown layout %q", args[0])
		}
		conflist["plugins"] = plugins
		text, err := json.MarshalIndent(conflist, "", "  ")
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(file), text, 0o644))
	}
}

// state NETNS... prints what can be seen of the machine and of containers:
// links, addresses, routes, rules, queueing disciplines, sysctls and
// reservations. What is chosen at random reads the same each time.
func state(ts *testscript.TestScript, neg bool, args []string) {
	var lines []string
	for _, netns := range append([]string{""}, args...) {
		run := func(name string, args ...string) {
			if netns != "" {
				args = append([]string{"netns", "exec", netns, name}, args...)
				name = "ip"
			}
			lines = append(lines, "# "+name+" "+strings.Join(args, " "))
			lines = append(lines, sandbox.Output(name, args...)...)
		}
		run("ip", "-4", "-o", "addr")
		run("ip", "-o", "link")
		run("ip", "route", "show", "table", "all")
		run("ip", "rule")
		run("tc", "qdisc")
		run("iptables-save")
		run("sysctl", "net.ipv4.ip_forward", "net.core.somaxconn")
	}
	lines = append(lines, sandbox.Leftovers()...)
	text := strings.Join(lines, "\n")
	for _, random := range []struct{ pattern, same string }{
		{`veth[0-9a-f]{8}`, "veth"},
		{`([0-9a-f]{2}:){5}[0-9a-f]{2}`, "MAC"},
		{`(?m)^(link: )?\d+: `, "$1"}, // interface indexes
		{`(@if|link-netnsid |ifb|ifindex |(tbf|clsact|ingress|noqueue) )[0-9a-f.:]+`, "$1"},
		{`(?m)^# (Generated|Completed).*\n`, ""},
		{`\[\d+:\d+\]`, "[]"},                                                           // packet counters
		{`tentative|dadfailed|LOWERLAYERDOWN|DOWN|UNKNOWN|UP|NO-CARRIER,|linkdown`, ""}, // takes its time
		{`(?m)^.*(fe80|ff00::|/var/lib/durable-args/).*$`, ""},                          // the kernel's own time; ours
		{` *\n+`, "\n"},
	} {
		text = regexp.MustCompile(random.pattern).ReplaceAllString(text, random.same)
	}
	_, err := fmt.Fprintln(ts.Stdout(), strings.TrimSpace(text))
	ts.Check(err)
}

// add-dead N adds N containers to the network web, and then takes their network
// namespaces away without a DEL, as a reboot does.
func addDead(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(strings.Join(args, ""))
	ts.Check(err)
	for i := range n {
		netns := fmt.Sprintf("dead%d", i)
		ts.Check(ts.Exec("ip", "netns", "add", netns))
		ts.Check(ts.Exec("cnitool", "add", "web", "/run/netns/"+netns))
		ts.Check(ts.Exec("ip", "netns", "del", netns))
	}
}

// cmpcalls FILE asserts that the recorder was called as FILE says, line by
// line, each without the container's ID and interface.
func cmpcalls(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: cmpcalls file")
	}
	calls := regexp.MustCompile(` container=\S* ifname=\S*`).ReplaceAllString(ts.ReadFile(ts.Getenv("RECORDER")), "")
	if want := ts.ReadFile(args[0]); calls != want {
		ts.Fatalf("the recorder was called otherwise:\n%s\nwant:\n%s", calls, want)
	}
}

// clean asserts that nothing of any attachment is left on the machine; ! clean
// asserts that something is.
func clean(ts *testscript.TestScript, neg bool, args []string) {
	found := sandbox.Leftovers()
	switch {
	case neg && len(found) == 0:
		ts.Fatalf("nothing is left, though something should be")
	case !neg && len(found) > 0:
		ts.Fatalf("left behind:\n%s", strings.Join(found, "\n"))
	}
}

// left prints what is left of attachments, a line each.
func left(ts *testscript.TestScript, neg bool, args []string) {
	_, err := fmt.Fprintln(ts.Stdout(), strings.Join(sandbox.Leftovers(), "\n"))
	ts.Check(err)
}

// journal prints the names of the journal's files, a line each.
func journal(ts *testscript.TestScript, neg bool, args []string) {
	_, err := fmt.Fprintln(ts.Stdout(), strings.Join(sandbox.JournalFiles(ts.Getenv("JOURNAL")), "\n"))
	ts.Check(err)
}
