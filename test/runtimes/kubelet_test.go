package runtimes

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kubelet is one without an API server, on containerd 2.4: its pods are files.
// It tries everything again until it has succeeded, and it is the kubelet that
// removes sandboxes, once a minute.
type kubelet struct {
	*containerd
	daemon *exec.Cmd
}

const nodeName = "node"

func missingKubelet(bin string) string {
	if _, err := os.Stat(filepath.Join(bin, "runtimes", "kubelet")); err != nil {
		return fmt.Sprintf("kubelet 1.34 has not been built (%v); run: make test-kubelet, which takes ten minutes the first time", err)
	}
	return missingContainerd24(bin)
}

func newKubelet(n *node) runtime {
	return &kubelet{containerd: newContainerd24(n).(*containerd)}
}

func (k *kubelet) manifest(p *pod) string {
	return filepath.Join(k.node.dir, "manifests", p.name+".yaml")
}

func (k *kubelet) start() {
	k.Helper()
	k.containerd.start()
	k.startKubelet()
}

func (k *kubelet) startKubelet() {
	k.Helper()
	k.coverSysctls()
	for _, controller := range append(controllers(), "/sys/fs/cgroup") {
		_ = os.MkdirAll(controller+k.cgroup, 0o755) // where there is one
	}
	for _, dir := range []string{"manifests", "kubelet", "logs"} {
		k.must(os.MkdirAll(filepath.Join(k.node.dir, dir), 0o755))
	}
	config := k.write("kubelet.json", stanza{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": "127.0.0.1", "healthzBindAddress": "127.0.0.1",
		"authentication":           stanza{"anonymous": stanza{"enabled": true}, "webhook": stanza{"enabled": false}},
		"authorization":            stanza{"mode": "AlwaysAllow"},
		"staticPodPath":            filepath.Join(k.node.dir, "manifests"),
		"podLogsDir":               filepath.Join(k.node.dir, "logs"),
		"containerRuntimeEndpoint": "unix://" + socket,
		"cgroupDriver":             "cgroupfs", "cgroupRoot": k.cgroup, "cgroupsPerQOS": false, "enforceNodeAllocatable": []string{},
		"failSwapOn": false, "oomScoreAdj": 0,
		"makeIPTablesUtilChains": false, "localStorageCapacityIsolation": false,
		"evictionHard":       stanza{"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
		"fileCheckFrequency": "1s",
	})
	log, err := os.OpenFile(filepath.Join(k.node.dir, "kubelet.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	k.must(err)
	defer log.Close()
	k.daemon = exec.Command(filepath.Join(k.bin, "runtimes", "kubelet"), "--config", config, "--hostname-override", nodeName,
		"--root-dir", filepath.Join(k.node.dir, "kubelet"), "--cert-dir", filepath.Join(k.node.dir, "kubelet", "pki"))
	k.daemon.Env = k.env("PATH=" + k.path())
	k.daemon.Stdout, k.daemon.Stderr = log, log
	k.must(k.daemon.Start())
	go func(daemon *exec.Cmd) { _ = daemon.Wait() }(k.daemon)
}

// controllers are the mount points of cgroups v1.
func controllers() []string {
	found, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	for i, file := range found {
		found[i] = filepath.Dir(file)
	}
	return found
}

// coverSysctls gives the kubelet files of its own to write to instead of sysctls:
// those that it sets are the whole machine's.
func (k *kubelet) coverSysctls() {
	k.Helper()
	mounted := mountPoints()
	for _, name := range []string{"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"} {
		sysctl := filepath.Join("/proc/sys", name)
		value, err := os.ReadFile(sysctl)
		if os.IsNotExist(err) || mounted[sysctl] {
			continue
		}
		k.must(err)
		file := filepath.Join(k.node.dir, strings.ReplaceAll(name, "/", "."))
		k.must(os.WriteFile(file, value, 0o644))
		k.must(unix.Mount(file, sysctl, "", unix.MS_BIND, ""))
	}
}

// kill kills containerd and the kubelet. Containers live on.
func (k *kubelet) kill(waiting *call) {
	killTree(k.daemon.Process.Pid)
	k.containerd.kill(waiting)
	k.startKubelet()
}

// patience is how long a kubelet may take until it has done what it was told: it
// looks once a minute for sandboxes to remove.
const patience = 3 * time.Minute

// eventually is a call that ends when what it asks for has come.
func (k *kubelet) eventually(what string, done func() bool) *call {
	return k.then(os.Environ(), func(string) error {
		if k.settle(patience, done) {
			return nil
		}
		log, _ := os.ReadFile(filepath.Join(k.node.dir, "kubelet.log"))
		return fmt.Errorf("not within %s: %s; the end of the kubelet's log:\n%s", patience, what, log[max(0, len(log)-4000):])
	}, "true")
}

// ids are what crictl prints with --quiet.
func (k *kubelet) ids(args ...string) []string {
	var ids []string
	err := k.crictlThen(func(out string) error {
		ids = strings.Fields(out)
		return nil
	}, args...).wait()
	if err != nil {
		return []string{"unknown"}
	}
	return ids
}

func (k *kubelet) sandboxes(p *pod, more ...string) []string {
	return k.ids(append([]string{"pods", "--quiet", "--no-trunc", "--name", "^" + p.name + "-" + nodeName + "$"}, more...)...)
}

func (k *kubelet) run(p *pod) *call {
	text, err := json.Marshal(stanza{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": stanza{"name": p.name, "namespace": "default", "annotations": stanza{
			"kubernetes.io/ingress-bandwidth": "10M",
			"kubernetes.io/egress-bandwidth":  "20M",
		}},
		"spec": stanza{
			"terminationGracePeriodSeconds": 1,
			"containers": []stanza{{
				"name": "box", "image": boxImage, "imagePullPolicy": "Never",
				"ports": []stanza{{"containerPort": 80, "hostPort": p.port}},
			}},
		},
	})
	k.must(err)
	// The kubelet reads what has another name, too.
	k.must(os.WriteFile(filepath.Join(k.node.dir, "manifest"), text, 0o644))
	k.must(os.Rename(filepath.Join(k.node.dir, "manifest"), k.manifest(p)))
	return k.eventually("the pod runs", func() bool {
		ready := k.sandboxes(p, "--state", "ready")
		if len(ready) != 1 {
			return false
		}
		p.id = ready[0]
		return len(k.ids("ps", "--quiet", "--state", "running", "--pod", p.id)) == 1
	})
}

// remove waits until the pod's last sandbox has been removed, and not only
// stopped: only then has the runtime sent its last DEL.
func (k *kubelet) remove(p *pod) *call {
	k.must(os.RemoveAll(k.manifest(p)))
	return k.eventually("the pod is gone", func() bool { return len(k.sandboxes(p)) == 0 })
}

func (k *kubelet) knows(p *pod) bool { return len(k.sandboxes(p)) > 0 || exists(k.manifest(p)) }

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func (k *kubelet) forget() {
	k.must(os.RemoveAll(filepath.Join(k.node.dir, "manifests")))
	k.must(os.RemoveAll(filepath.Join(k.node.dir, "kubelet")))
	k.containerd.forget()
}
