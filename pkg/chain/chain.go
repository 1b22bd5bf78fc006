// Package chain finds the plugins of a network and calls them as libcni would.
//
// A chained plugin is shown its own stanza only. To call the others, the
// conflist has to be found on disk by the network's name, with libcni's own
// loader, and each plugin's request derived as libcni derives it
// (libcni/api.go: buildOneConfig, injectRuntimeConfig). What differs is that
// everything that came as JSON is handed on as it came: libcni's maps would
// round integers beyond 2^53.
package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/containernetworking/cni/libcni"
)

// Plugin is one plugin of a chain.
type Plugin struct {
	// Type is the name of its binary.
	Type string
	// Capabilities are those that it declares, sorted.
	Capabilities []string
	// Config is its configuration as libcni resolved it, without what is
	// injected for a request.
	Config json.RawMessage
}

// Conflist is a network's configuration as found on disk.
type Conflist struct {
	// Plugins are all of them, in ADD order, with those that libcni adds
	// from <confDir>/<network>/*.conf.
	Plugins []Plugin
	// Bytes is what libcni would keep in its cache: the file as found.
	Bytes []byte
}

// Load finds the conflist of a network in confDir as libcni's LoadNetworkConf
// does: the first *.conflist by name, else the first *.conf or *.json. Unlike
// it, Load passes over files that cannot be read, as the runtimes do: a broken
// file of another network must not keep pods from starting. If nothing is
// found, the error tells of them.
func Load(confDir, network string) (*Conflist, error) {
	var passed []error
	for _, kind := range []struct {
		extensions []string
		load       func(path string) (*libcni.NetworkConfigList, error)
	}{
		{[]string{".conflist"}, libcni.NetworkConfFromFile},
		{[]string{".conf", ".json"}, loadSingle},
	} {
		files, err := libcni.ConfFiles(confDir, kind.extensions)
		if err != nil {
			return nil, err
		}
		sort.Strings(files)
		for _, file := range files {
			list, err := kind.load(file)
			if err != nil {
				passed = append(passed, fmt.Errorf("%s: %w", file, err))
				continue
			}
			if list.Name == network {
				return fromLibcni(list)
			}
		}
	}
	return nil, errors.Join(append([]error{libcni.NotFoundError{Dir: confDir, Name: network}}, passed...)...)
}

// loadSingle reads a configuration from before conflists, which libcni and the
// runtimes still take for a chain of one plugin.
func loadSingle(path string) (*libcni.NetworkConfigList, error) {
	//lint:ignore SA1019 deprecated, but runtimes call it
	conf, err := libcni.ConfFromFile(path)
	if err != nil {
		return nil, err
	}
	//lint:ignore SA1019 the same
	return libcni.ConfListFromConf(conf)
}

func fromLibcni(list *libcni.NetworkConfigList) (*Conflist, error) {
	var configs []json.RawMessage
	for _, conf := range list.Plugins {
		configs = append(configs, conf.Bytes)
	}
	plugins, err := ParseAll(configs)
	return &Conflist{Plugins: plugins, Bytes: list.Bytes}, err
}

// Parse reads one plugin's configuration.
func Parse(config json.RawMessage) (Plugin, error) {
	conf, err := libcni.NetworkPluginConfFromBytes(config)
	if err != nil {
		return Plugin{}, err
	}
	p := Plugin{Type: conf.Network.Type, Config: config}
	for name, declared := range conf.Network.Capabilities {
		if declared {
			p.Capabilities = append(p.Capabilities, name)
		}
	}
	slices.Sort(p.Capabilities)
	return p, nil
}

// ParseAll reads the configurations of a chain.
func ParseAll(configs []json.RawMessage) ([]Plugin, error) {
	var plugins []Plugin
	for _, config := range configs {
		p, err := Parse(config)
		if err != nil {
			return nil, err
		}
		plugins = append(plugins, p)
	}
	return plugins, nil
}

// Configs returns the configurations of plugins.
func Configs(plugins []Plugin) []json.RawMessage {
	var configs []json.RawMessage
	for _, p := range plugins {
		configs = append(configs, p.Config)
	}
	return configs
}

// Call is what one call of a chain gives to every plugin of it.
type Call struct {
	Network     string
	CNIVersion  string
	ContainerID string
	IfName      string
	// NetNS is the path of the network namespace, empty if it is gone.
	NetNS string
	// Args is CNI_ARGS, byte for byte.
	Args string
	// Path is CNI_PATH.
	Path string
	// RuntimeConfig is the capability args of the whole chain.
	RuntimeConfig map[string]json.RawMessage
	// PrevResult is nil if there is none.
	PrevResult json.RawMessage
}

// RuntimeConfigFor returns the capability args that p declares, nil if c has
// none of them.
func (c Call) RuntimeConfigFor(p Plugin) map[string]json.RawMessage {
	var share map[string]json.RawMessage
	for _, capability := range p.Capabilities {
		if value, ok := c.RuntimeConfig[capability]; ok {
			if share == nil {
				share = make(map[string]json.RawMessage)
			}
			share[capability] = value
		}
	}
	return share
}

// Request returns p's standard input for c, as libcni's buildOneConfig and
// injectRuntimeConfig make it.
func (c Call) Request(p Plugin) ([]byte, error) { return c.request(p, nil) }

// request is Request with more keys.
func (c Call) request(p Plugin, more map[string]json.RawMessage) ([]byte, error) {
	conf := make(map[string]json.RawMessage)
	if err := json.Unmarshal(p.Config, &conf); err != nil {
		return nil, fmt.Errorf("reading the configuration of plugin %s: %w", p.Type, err)
	}
	inject := map[string]any{"name": c.Network, "cniVersion": c.CNIVersion}
	if c.PrevResult != nil {
		inject["prevResult"] = c.PrevResult
	}
	if share := c.RuntimeConfigFor(p); share != nil {
		inject["runtimeConfig"] = share
	}
	for key, value := range inject {
		raw, err := marshal(value)
		if err != nil {
			return nil, fmt.Errorf("deriving the request of plugin %s: %w", p.Type, err)
		}
		conf[key] = raw
	}
	maps.Copy(conf, more)
	return marshal(conf)
}

// marshal is json.Marshal, but leaves raw JSON as it came.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}
