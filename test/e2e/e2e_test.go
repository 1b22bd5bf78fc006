// Package e2e drives the plugin as a runtime does: with cnitool and libcni, on
// the reference plugins, on a machine of its own for every script.
//
// A script in testdata is a .txtar file that reads like a bug report. Its
// head may hold lines such as
//
//	# each FAULT: intact empty gone
//
// and the script is then run once for every combination of these values, with
// the environment variable set. [FAULT:gone] before a command keeps it to those
// runs that have this value.
package e2e

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/durable-args/durable-args/test/sandbox"
)

func TestMain(m *testing.M) { sandbox.Main(m) }

// pluginSets are the reference plugins that the scripts run on.
var pluginSets = []struct{ name, dir string }{
	{"v1.10.0", ""}, // bin/cni
	{"debian", "/usr/lib/cni"},
}

func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".txtar"), func(t *testing.T) {
			for _, c := range combinations(t, script) {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					if sandbox.Enter(t) {
						run(t, script, c)
					}
				})
			}
		})
	}
}

// combination is one way to run a script.
type combination struct {
	name string
	env  []string
}

func combinations(t *testing.T, script string) []combination {
	f, err := os.Open(script)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := []combination{{}}
	sets := []string{"v1.10.0"}
	lines := bufio.NewScanner(f)
	for lines.Scan() && strings.HasPrefix(lines.Text(), "#") {
		variable, values, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "# each "), ":")
		switch {
		case !ok || !strings.HasPrefix(lines.Text(), "# each "):
		case variable == "PLUGINS":
			sets = strings.Fields(values)
		default:
			all = product(all, variable, strings.Fields(values))
		}
	}
	return product(all, "PLUGINS", sets)
}

func product(all []combination, variable string, values []string) []combination {
	var more []combination
	for _, c := range all {
		for _, value := range values {
			more = append(more, combination{
				name: strings.TrimPrefix(c.name+","+value, ","),
				env:  append(c.env[:len(c.env):len(c.env)], variable+"="+value),
			})
		}
	}
	return more
}

func run(t *testing.T, script string, c combination) {
	bin := sandbox.Bin(t)
	testscript.Run(t, testscript.Params{
		Files:               []string{script},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                commands,
		Condition: func(cond string) (bool, error) {
			variable, value, ok := strings.Cut(cond, ":")
			if !ok || !slices.ContainsFunc(c.env, func(kv string) bool { return strings.HasPrefix(kv, variable+"=") }) {
				return false, fmt.Errorf("no variable of the script's head: %s", cond)
			}
			return slices.Contains(c.env, variable+"="+value), nil
		},
		Setup: func(env *testscript.Env) error {
			for _, kv := range c.env {
				name, value, _ := strings.Cut(kv, "=")
				env.Setenv(name, value)
			}
			plugins, err := install(env.WorkDir, bin, env.Getenv("PLUGINS"))
			if err != nil {
				return err
			}
			conf := filepath.Join(env.WorkDir, "net.d")
			env.Setenv("CNI_PATH", plugins)
			env.Setenv("NETCONFPATH", conf)
			env.Setenv("RECORDER", filepath.Join(env.WorkDir, "calls"))
			env.Setenv("PATH", filepath.Join(bin, "cni")+":"+bin+":"+os.Getenv("PATH"))
			env.Setenv("BIN", bin)
			env.Setenv("JOURNAL", "/var/lib/durable-args")
			return os.MkdirAll(conf, 0o755)
		},
	})
}

// install fills a CNI bin dir with the plugin, the recorder and a set of
// reference plugins.
func install(work, bin, set string) (string, error) {
	dir := filepath.Join(work, "cnibin")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	from := filepath.Join(bin, "cni")
	for _, s := range pluginSets {
		if s.name == set && s.dir != "" {
			from = s.dir
		}
	}
	names, err := filepath.Glob(filepath.Join(from, "*"))
	if err != nil || len(names) == 0 {
		return "", fmt.Errorf("no plugins in %s; for Debian's run: apt-get install containernetworking-plugins", from)
	}
	for _, name := range append(names, filepath.Join(bin, "cni", "recorder"), filepath.Join(bin, "durable-args")) {
		if err := os.Symlink(name, filepath.Join(dir, filepath.Base(name))); err != nil && !os.IsExist(err) {
			return "", err
		}
	}
	return dir, nil
}
