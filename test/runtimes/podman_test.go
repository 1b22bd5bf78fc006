package runtimes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// podman has no daemon: conmon is what runs beside a container.
type podman struct {
	*node
	loaded bool // it has its image
}

func missingPodman(string) string {
	out, err := exec.Command("podman", "--version").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("podman 4.3 is missing (%v); on Debian 12: apt-get install podman", err)
	}
	// podman 5 is built without CNI.
	if !strings.Contains(string(out), " 4.") {
		return fmt.Sprintf("podman is not 4.3, as on Debian 12, but %s", out)
	}
	return missingCommon()
}

func newPodman(n *node) runtime { return &podman{node: n} }

// A user without CAP_SYS_RESOURCE cannot raise limits, and crun refuses cgroups
// in hybrid mode.
const containersConf = `[containers]
default_sysctls = []
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_backend = "cni"
cni_plugin_dirs = [%q]
network_config_dir = %q
default_network = %q
`

const storageConf = `[storage]
driver = "overlay"
graphroot = "/var/lib/containers/storage"
runroot = "/run/containers/storage"
`

func (p *podman) cniVersion() string { return "1.0.0" }
func (p *podman) plugins() string    { return debianPlugins }

func (p *podman) start() {
	conf := fmt.Sprintf(containersConf, p.pluginDir(), p.confDir(), network)
	p.must(os.WriteFile(filepath.Join(p.dir, "containers.conf"), []byte(conf), 0o644))
	p.must(os.WriteFile(filepath.Join(p.dir, "storage.conf"), []byte(storageConf), 0o644))
	if !p.loaded {
		p.must(p.podman("load", "--quiet", "--input", p.build(archive{boxImage, serve})).wait())
		p.loaded = true
	}
}

func (p *podman) podman(args ...string) *call { return p.podmanThen(nil, args...) }

func (p *podman) podmanThen(next func(string) error, args ...string) *call {
	env := p.env("CONTAINERS_CONF="+filepath.Join(p.dir, "containers.conf"), "CONTAINERS_STORAGE_CONF="+filepath.Join(p.dir, "storage.conf"))
	return p.then(env, next, "podman", args...)
}

// kill kills the waiting command with the plugins that it has called or, if
// there is none, conmon.
func (p *podman) kill(waiting *call) {
	if waiting != nil {
		killTree(waiting.cmd.Process.Pid)
		_ = waiting.wait()
	} else {
		for _, found := range processes() {
			if found.name == "conmon" {
				kill(found.pid)
			}
		}
	}
	p.must(os.RemoveAll(p.asleep()))
}

func (p *podman) run(pod *pod) *call {
	return p.podmanThen(func(id string) error {
		pod.id = id
		return nil
	}, "run", "--detach", "--name", pod.name, "--publish", fmt.Sprintf("%d:80", pod.port), "--cgroup-parent", p.cgroup, boxImage)
}

func (p *podman) remove(pod *pod) *call { return p.podman("rm", "--force", "--time", "0", pod.name) }

func (p *podman) knows(pod *pod) bool { return p.podman("container", "exists", pod.name).wait() == nil }

func (p *podman) forget() {
	p.must(os.RemoveAll("/var/lib/containers"))
	p.loaded = false
}
