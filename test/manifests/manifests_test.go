// Package manifests tests conf-examples/kubernetes without a cluster: what
// kustomize makes of it, whether Kubernetes' own types take it, and whether it
// fits the program that it runs.
package manifests

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/durable-args/durable-args/test/sandbox"
)

const examples = "../../conf-examples/kubernetes"

// overlays say where each kind of node keeps CNI.
var overlays = map[string]struct{ binDir, confDir string }{
	"base":       {"/opt/cni/bin", "/etc/cni/net.d"},
	"containerd": {"/opt/cni/bin", "/etc/cni/net.d"},
	"crio":       {"/opt/cni/bin", "/etc/cni/net.d"},
	"rke2":       {"/opt/cni/bin", "/etc/cni/net.d"},
	"k3s":        {"/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/agent/etc/cni/net.d"},
}

func TestEveryOverlayIsTested(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(examples + "/*/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := filepath.Base(filepath.Dir(file)); overlays[name].binDir == "" {
			t.Errorf("overlay %s is not in the table", name)
		}
	}
	if len(files) != len(overlays) {
		t.Errorf("there are %d overlays, want %d", len(files), len(overlays))
	}
}

func TestTheAgentGetsTheDirectoriesOfItsNode(t *testing.T) {
	t.Parallel()
	for name, want := range overlays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, _ := build(t, name)
			_, container := agent(t, set)
			flags := flags(t, container)
			for flag, value := range map[string]string{
				"--bin-dir":   want.binDir,
				"--conf-dir":  want.confDir,
				"--data-dir":  "/var/lib/durable-args",
				"--cache-dir": "/var/lib/cni",
				"--plugin":    "/durable-args",
			} {
				if flags[flag] != value {
					t.Errorf("%s is %q, want %q", flag, flags[flag], value)
				}
			}
		})
	}
}

func TestThePodReachesTheNodeAndNoFurtherThanItMust(t *testing.T) {
	t.Parallel()
	for name := range overlays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, account := build(t, name)
			pod, container := agent(t, set)

			// Every volume is mounted, every mount has its volume, and the node's
			// root is where the agent makes it its own.
			mounted := make(map[string]corev1.VolumeMount)
			for _, mount := range container.VolumeMounts {
				mounted[mount.Name] = mount
			}
			for _, volume := range pod.Volumes {
				mount, ok := mounted[volume.Name]
				delete(mounted, volume.Name)
				switch {
				case !ok:
					t.Errorf("volume %s is mounted nowhere", volume.Name)
				case volume.HostPath == nil || volume.HostPath.Path != "/":
					t.Errorf("volume %s is not the node's root", volume.Name)
				case mount.MountPath != flags(t, container)["--host-root"]:
					t.Errorf("the node's root is at %s, and the agent looks at %s", mount.MountPath, flags(t, container)["--host-root"])
				case mount.ReadOnly:
					t.Error("the node's root is read-only, so nothing can be installed")
				case mount.MountPropagation == nil || *mount.MountPropagation != corev1.MountPropagationHostToContainer:
					t.Error("network namespaces that are made later are not seen: no mount propagation")
				}
			}
			if len(mounted) > 0 {
				t.Errorf("mounts without a volume: %v", mounted)
			}

			context := container.SecurityContext
			if context == nil || context.Privileged == nil || *context.Privileged ||
				context.ReadOnlyRootFilesystem == nil || !*context.ReadOnlyRootFilesystem ||
				context.SeccompProfile == nil || context.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("more rights than needed: %+v", context)
			}
			if drop := context.Capabilities.Drop; !slices.Equal(drop, []corev1.Capability{"ALL"}) {
				t.Errorf("dropped capabilities: %q, want ALL", drop)
			}
			add := context.Capabilities.Add
			want := []corev1.Capability{"DAC_OVERRIDE", "NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_CHROOT"}
			if slices.Sort(add); !slices.Equal(add, want) {
				t.Errorf("capabilities: %q, want %q", add, want)
			}
			if !pod.HostNetwork || !pod.HostPID || pod.HostIPC {
				t.Errorf("host namespaces: network %v, PID %v, IPC %v; want the first two", pod.HostNetwork, pod.HostPID, pod.HostIPC)
			}
			for _, token := range []*bool{pod.AutomountServiceAccountToken, account.AutomountServiceAccountToken} {
				if token == nil || *token {
					t.Error("a service account token is mounted, for which there is no use")
				}
			}
			if pod.ServiceAccountName != account.Name {
				t.Errorf("the pod's service account is %q, and there is one %q", pod.ServiceAccountName, account.Name)
			}
		})
	}
}

func TestTheAgentRunsOnEveryNodeAndIsWatched(t *testing.T) {
	t.Parallel()
	for name := range overlays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, account := build(t, name)
			pod, container := agent(t, set)
			if set.Namespace != "kube-system" || account.Namespace != "kube-system" {
				t.Errorf("namespaces are %q and %q, want kube-system", set.Namespace, account.Namespace)
			}
			for label, value := range set.Spec.Selector.MatchLabels {
				if set.Spec.Template.Labels[label] != value {
					t.Errorf("the selector's label %s=%s is not the pod's", label, value)
				}
			}
			if !slices.ContainsFunc(pod.Tolerations, func(t corev1.Toleration) bool {
				return t.Operator == corev1.TolerationOpExists && t.Key == "" && t.Effect == ""
			}) {
				t.Error("a taint keeps the agent from a node")
			}
			if pod.PriorityClassName != "system-node-critical" {
				t.Errorf("priority class %q", pod.PriorityClassName)
			}
			if set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
				t.Errorf("update strategy %q", set.Spec.UpdateStrategy.Type)
			}
			for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				request, limit := container.Resources.Requests[resource], container.Resources.Limits[resource]
				if request.IsZero() || limit.Cmp(request) < 0 {
					t.Errorf("%s: request %v, limit %v", resource, &request, &limit)
				}
			}
			host, port, _ := strings.Cut(flags(t, container)["--listen"], ":")
			for kind, probe := range map[string]*corev1.Probe{"liveness": container.LivenessProbe, "startup": container.StartupProbe} {
				if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/healthz" || probe.HTTPGet.Host != host {
					t.Errorf("%s probe does not ask %s/healthz: %+v", kind, host, probe)
					continue
				}
				found := slices.ContainsFunc(container.Ports, func(p corev1.ContainerPort) bool {
					return p.Name == probe.HTTPGet.Port.StrVal && p.HostIP == host &&
						strconv.Itoa(int(p.HostPort)) == port && p.ContainerPort == p.HostPort
				})
				if !found {
					t.Errorf("%s probe asks port %s, and the agent listens on %s", kind, probe.HTTPGet.Port.StrVal, port)
				}
			}
			if !strings.Contains(container.Image, "/") || !strings.Contains(path.Base(container.Image), ":") || strings.HasSuffix(container.Image, ":latest") {
				t.Errorf("image %q has no registry or no version", container.Image)
			}
		})
	}
}

// TestTheAgentKnowsEveryFlag asks the program.
func TestTheAgentKnowsEveryFlag(t *testing.T) {
	t.Parallel()
	help, err := exec.CommandContext(t.Context(), filepath.Join(sandbox.Bin(t), "durable-argsctl"), "agent", "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(help), "durable-argsctl agent") {
		t.Fatalf("asking for its flags: %v\n%s", err, help)
	}
	set, _ := build(t, "base")
	_, container := agent(t, set)
	for flag := range flags(t, container) {
		if !regexp.MustCompile(`(?m)(^|[\s,])` + flag + `\b`).Match(help) {
			t.Errorf("durable-argsctl agent does not know %s", flag)
		}
	}
}

// TestTheImagesProgramsNeedNothingElse runs them as the last stage of the
// Containerfile leaves them: in a root that holds nothing but the two.
func TestTheImagesProgramsNeedNothingElse(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{"durable-args", "durable-argsctl"} {
		content, err := os.ReadFile(filepath.Join(sandbox.Bin(t), name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	set, _ := build(t, "base")
	_, container := agent(t, set)
	for _, command := range [][]string{{container.Command[0], "--version"}, {flags(t, container)["--plugin"]}} {
		cmd := &exec.Cmd{Path: command[0], Args: command, Env: []string{}, Dir: "/"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), "durable-args") {
			t.Errorf("%q: %v\n%s", command, err, out)
		}
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) != 2 {
		t.Errorf("the root holds %v (%v)", entries, err)
	}
}

// build returns what an overlay holds, as strictly read as by an API server that
// validates fields.
func build(t *testing.T, overlay string) (appsv1.DaemonSet, corev1.ServiceAccount) {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(examples, overlay))
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	var account corev1.ServiceAccount
	kinds := map[string]any{"apps/v1 DaemonSet": &set, "v1 ServiceAccount": &account}
	for _, resource := range resources.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		kind := strings.TrimPrefix(resource.GetGvk().ApiVersion(), "/") + " " + resource.GetKind()
		into, ok := kinds[kind]
		if !ok {
			t.Fatalf("a %s that nobody expects", kind)
		}
		delete(kinds, kind)
		if err := yaml.UnmarshalStrict(text, into); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
	}
	if len(kinds) > 0 {
		t.Fatalf("missing: %v", kinds)
	}
	return set, account
}

func agent(t *testing.T, set appsv1.DaemonSet) (corev1.PodSpec, corev1.Container) {
	t.Helper()
	pod := set.Spec.Template.Spec
	if len(pod.Containers) != 1 || len(pod.InitContainers) != 0 {
		t.Fatalf("want one container, the agent: %+v", pod)
	}
	return pod, pod.Containers[0]
}

// flags are the container's arguments as the kubelet will have expanded them.
func flags(t *testing.T, container corev1.Container) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, arg := range container.Args {
		for _, env := range container.Env {
			arg = strings.ReplaceAll(arg, "$("+env.Name+")", env.Value)
		}
		flag, value, _ := strings.Cut(arg, "=")
		if strings.Contains(value, "$(") || !strings.HasPrefix(flag, "--") {
			t.Fatalf("argument %q", arg)
		}
		found[flag] = value
	}
	return found
}
