package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	network    = "web"
	cniVersion = "1.1.0"
	args       = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=4d2a9f0c-5b1e-4c67-8a53-6f1d2c8be915"
)

// object is a JSON object.
type object = map[string]any

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

var (
	portMappings = object{"portMappings": []any{object{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}

	// chain is what the whole-chain figures run on, and what the conflists of
	// the others hold.
	chain = []any{
		object{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
			"ipam": object{"type": "host-local", "dataDir": "/var/lib/host-local", "ranges": []any{[]any{object{"subnet": "10.244.0.0/16"}}}}},
		object{"type": "portmap", "capabilities": object{"portMappings": true}},
		object{"type": "firewall"},
	}

	// result is what such a chain returns.
	result = object{
		"cniVersion": cniVersion,
		"interfaces": []any{
			object{"name": "cni0", "mac": "f2:3e:29:c0:d5:c0", "mtu": 1500},
			object{"name": "veth8f3a2c11", "mac": "6a:7c:5f:21:0b:9e", "mtu": 1500},
			object{"name": "eth0", "mac": "be:1d:6f:3c:42:a7", "mtu": 1500, "sandbox": "/run/netns/bench"},
		},
		"ips":    []any{object{"interface": 2, "address": "10.244.0.2/16", "gateway": "10.244.0.1"}},
		"routes": []any{object{"dst": "0.0.0.0/0"}},
		"dns":    object{},
	}
)

// layouts are the ways in which our stanzas stand in a conflist.
var layouts = []string{"first", "first and last", "wrapped"}

// rig is a directory on the disk that is measured, and what stands there: the
// plugins' stores, and a directory with a conflist for every layout.
type rig struct{ dir string }

// netns is the one that single verbs are called with.
const netns = "/run/netns/bench"

func newRig(dir string) (rig, error) {
	r := rig{dir}
	errs := []error{
		r.configure("known", "first", chain),
		r.configure("tuning alone", "wrapped", []any{object{"type": "tuning"}}),
		os.MkdirAll(filepath.Join(dir, "floor"), 0o755),
	}
	for _, layout := range append(layouts, "without") {
		errs = append(errs, r.configure(layout, layout, chain))
	}
	return r, errors.Join(errs...)
}

// configure makes a conflist under name, in which our stanzas stand as the
// layout has it.
func (r rig) configure(name, layout string, plugins []any) error {
	first := r.stanza(name, nil)
	switch layout {
	case "first":
		plugins = append([]any{first}, plugins...)
	case "first and last":
		plugins = append(append([]any{first}, plugins...), r.stanza(name, object{"position": "last"}))
	case "wrapped":
		plugins = []any{r.stanza(name, object{"plugins": plugins})}
	}
	if err := os.MkdirAll(r.confDir(name), 0o755); err != nil {
		return err
	}
	conflist := text(object{"cniVersion": cniVersion, "name": network, "plugins": plugins})
	return os.WriteFile(filepath.Join(r.confDir(name), "10-web.conflist"), []byte(conflist), 0o644)
}

// stanza is ours in the conflist under name.
func (r rig) stanza(name string, more object) object {
	s := object{"type": "durable-args", "confDir": r.confDir(name), "dataDir": r.dataDir(name),
		"cacheDir": r.path(name, "cache"), "allowVolatile": true, "capabilities": object{"portMappings": true}}
	maps.Copy(s, more)
	return s
}

func (r rig) path(name, what string) string {
	return filepath.Join(r.dir, strings.ReplaceAll(name, " ", "-"), what)
}

func (r rig) confDir(name string) string { return r.path(name, "net.d") }
func (r rig) dataDir(name string) string { return r.path(name, "journal") }

// journaled tells whether there is a file for the attachment.
func (r rig) journaled(name, id string) bool {
	_, err := os.Stat(filepath.Join(r.dataDir(name), network, id+"@eth0"))
	return err == nil
}

// ours is a call of durable-args with the stanza under name.
func (r rig) ours(verb, name, id string, more object) call {
	request := object{"runtimeConfig": portMappings}
	maps.Copy(request, more)
	return r.plugin(verb, filepath.Join(bin, "durable-args"), id, r.stanza(name, request))
}

// reference is a call of a reference plugin.
func (r rig) reference(verb, plugin, id string, conf object) call {
	conf = maps.Clone(conf)
	conf["type"] = plugin
	return r.plugin(verb, filepath.Join(bin, "cni", plugin), id, conf)
}

func (r rig) plugin(verb, path, id string, conf object) call {
	conf = maps.Clone(conf)
	conf["name"], conf["cniVersion"] = network, cniVersion
	return call{
		argv: []string{path},
		env: []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=" + netns,
			"CNI_PATH=" + filepath.Join(bin, "cni") + ":" + bin, "CNI_ARGS=" + fmt.Sprintf(args, id), "PATH=" + os.Getenv("PATH")},
		stdin: text(conf),
	}
}

// program is a call of a program of this directory.
func program(name string, args ...string) call {
	return call{argv: append([]string{bench(name)}, args...)}
}

// id is a container's, as long as they are.
func id(n int) string { return fmt.Sprintf("%064x", n) }

// flushDisk makes what earlier calls have left in memory durable, so that it
// does not fall to whoever flushes next.
func (r rig) flushDisk() error {
	fd, err := unix.Open(r.dir, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}
