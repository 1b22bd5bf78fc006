package runtimes

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
)

const (
	socket     = "/run/containerd/containerd.sock"
	pauseImage = "localhost/test/pause:1"
	boxImage   = "localhost/test/box:1"
)

// containerd is driven over CRI with crictl, as a kubelet drives it.
type containerd struct {
	*node
	version string // of its CNI
	dir     string // of its binaries, with a slash; empty for those in PATH
	set     string // of reference plugins
	config  string
	daemon  *exec.Cmd
	loaded  bool // it has its images
}

func missingContainerd16(bin string) string {
	out, err := exec.Command("containerd", "--version").CombinedOutput()
	if err != nil {
		return fmt.Sprintf("containerd 1.6 is missing (%v); on Debian 12: apt-get install containerd", err)
	}
	if !strings.Contains(string(out), " 1.6.") {
		return fmt.Sprintf("containerd is not 1.6, as on Debian 12, but %s", out)
	}
	return missingCrictl(bin)
}

func missingContainerd24(bin string) string {
	if _, err := os.Stat(filepath.Join(bin, "runtimes", "containerd")); err != nil {
		return fmt.Sprintf("containerd 2.4 has not been built (%v); run: make test-runtimes", err)
	}
	return missingCrictl(bin)
}

func missingCrictl(bin string) string {
	if _, err := os.Stat(filepath.Join(bin, "runtimes", "crictl")); err != nil {
		return fmt.Sprintf("crictl has not been built (%v); run: make test-runtimes", err)
	}
	return missingCommon()
}

func missingCommon() string {
	for _, name := range []string{"runc", "busybox"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Sprintf("%v; on Debian 12: apt-get install runc busybox-static", err)
		}
	}
	if _, err := os.Stat(debianPlugins + "/bridge"); err != nil {
		return fmt.Sprintf("%v; on Debian 12: apt-get install containernetworking-plugins", err)
	}
	return ""
}

// debianPlugins is where Debian's package puts plugins. They are of the time of
// containerd 1.6 and podman 4.3.
const debianPlugins = "/usr/lib/cni"

func newContainerd16(n *node) runtime {
	return &containerd{node: n, version: "1.0.0", set: debianPlugins, config: config16}
}

func newContainerd24(n *node) runtime {
	return &containerd{node: n, version: "1.1.0", dir: filepath.Join(n.bin, "runtimes") + "/", set: filepath.Join(n.bin, "cni"), config: config24}
}

// What both leave out (btrfs and the like) would only be told of in the log. A
// user without CAP_SYS_RESOURCE cannot lower oom_score_adj.
const config16 = `version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[plugins."io.containerd.internal.v1.opt"]
  path = "{{.Dir}}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{{.Pause}}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{{.Plugins}}"
    conf_dir = "{{.Conf}}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
`

const config24 = `version = 3
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs", "io.containerd.differ.v1.erofs", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing", "io.containerd.nri.v1.nri"]
[plugins."io.containerd.internal.v1.opt"]
  path = "{{.Dir}}/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{{.Pause}}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{{.Plugins}}"]
    conf_dir = "{{.Conf}}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
`

func (c *containerd) cniVersion() string { return c.version }
func (c *containerd) plugins() string    { return c.set }

func (c *containerd) path() string {
	if c.dir == "" {
		return os.Getenv("PATH")
	}
	return c.dir + ":" + os.Getenv("PATH") // its shim
}

func (c *containerd) start() {
	c.Helper()
	file := filepath.Join(c.node.dir, "config.toml")
	var text strings.Builder
	c.must(template.Must(template.New("").Parse(c.config)).Execute(&text, map[string]string{
		"Dir": c.node.dir, "Pause": pauseImage, "Plugins": c.pluginDir(), "Conf": c.confDir(),
	}))
	c.must(os.WriteFile(file, []byte(text.String()), 0o644))
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	c.must(err)
	defer log.Close()
	c.daemon = exec.Command(c.dir+"containerd", "-c", file)
	c.daemon.Env = c.env("PATH=" + c.path())
	c.daemon.Stdout, c.daemon.Stderr = log, log
	c.must(c.daemon.Start())
	go func(daemon *exec.Cmd) { _ = daemon.Wait() }(c.daemon)
	c.until("containerd answers", func() bool { return c.crictl("version").wait() == nil })
	if !c.loaded {
		for _, image := range []archive{{pauseImage, []string{"/bin/busybox", "sleep", "2147483647"}}, {boxImage, serve}} {
			file := c.build(image)
			c.must(c.call(os.Environ(), c.dir+"ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", file).wait())
		}
		c.loaded = true
	}
}

// kill kills containerd with the plugins that it has called, and starts it
// again. Its shims, and so its containers, live on.
func (c *containerd) kill(waiting *call) {
	killTree(c.daemon.Process.Pid)
	c.until("it has died", func() bool { return len(c.daemons()) == 0 })
	if waiting != nil {
		_ = waiting.wait()
	}
	c.must(os.RemoveAll(c.asleep()))
	c.start()
}

func (c *containerd) crictl(args ...string) *call { return c.crictlThen(nil, args...) }

func (c *containerd) crictlThen(next func(string) error, args ...string) *call {
	return c.then(os.Environ(), next, filepath.Join(c.bin, "runtimes", "crictl"),
		append([]string{"--runtime-endpoint=unix://" + socket, "--image-endpoint=unix://" + socket, "--timeout=30s"}, args...)...)
}

// write puts a CRI request into a file.
func (c *containerd) write(name string, request any) string {
	text, err := json.Marshal(request)
	c.must(err)
	file := filepath.Join(c.node.dir, name)
	c.must(os.WriteFile(file, text, 0o644))
	return file
}

func (c *containerd) run(p *pod) *call {
	podFile := c.write(p.name+".json", stanza{
		"metadata":      stanza{"name": p.name, "namespace": "default", "uid": "uid-" + p.name, "attempt": 1},
		"hostname":      p.name,
		"log_directory": c.node.dir,
		"port_mappings": []stanza{{"protocol": 0, "container_port": 80, "host_port": p.port}},
		"annotations": stanza{
			"kubernetes.io/ingress-bandwidth": "10M",
			"kubernetes.io/egress-bandwidth":  "20M",
		},
		"linux": stanza{"cgroup_parent": c.cgroup},
	})
	boxFile := c.write("box.json", stanza{
		"metadata": stanza{"name": "box"},
		"image":    stanza{"image": boxImage},
		"log_path": p.name + ".log",
		"linux":    stanza{},
	})
	return c.crictlThen(func(id string) error {
		p.id = id
		return c.crictlThen(func(box string) error {
			return c.crictl("start", box).wait()
		}, "create", p.id, boxFile, podFile).wait()
	}, "runp", podFile)
}

func (c *containerd) remove(p *pod) *call {
	return c.crictlThen(func(string) error {
		return c.crictl("rmp", p.id).wait()
	}, "stopp", p.id)
}

func (c *containerd) knows(p *pod) bool {
	return c.crictlThen(func(id string) error {
		if id == "" {
			return os.ErrNotExist
		}
		p.id = id
		return nil
	}, "pods", "--quiet", "--no-trunc", "--name", "^"+p.name+"$").wait() == nil
}

// forget removes containerd's own database, with the images.
func (c *containerd) forget() {
	c.must(os.RemoveAll("/var/lib/containerd"))
	c.loaded = false
}
