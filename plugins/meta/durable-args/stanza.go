package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/pkg/journal"
)

const (
	defaultDataDir  = "/var/lib/durable-args"
	defaultConfDir  = "/etc/cni/net.d"
	defaultAttempts = 3
)

// stanza is our configuration in a conflist, with what libcni injects.
type stanza struct {
	Type           string          `json:"type"`
	Name           string          `json:"name"`
	CNIVersion     string          `json:"cniVersion"`
	DataDir        string          `json:"dataDir"`
	ConfDir        string          `json:"confDir"`
	ReplayAttempts *int            `json:"replayAttempts"`
	Capabilities   map[string]bool `json:"capabilities"`
	RuntimeConfig  json.RawMessage `json:"runtimeConfig"`
	PrevResult     json.RawMessage `json:"prevResult"`
}

// parseStanza reads standard input. Its errors are *types.Error.
func parseStanza(stdin []byte) (*stanza, error) {
	var s stanza
	if err := json.Unmarshal(stdin, &s); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("reading the durable-args stanza: %v", err), "")
	}
	s.DataDir = cmp.Or(s.DataDir, defaultDataDir)
	s.ConfDir = cmp.Or(s.ConfDir, os.Getenv("NETCONFPATH"), defaultConfDir)
	if s.ReplayAttempts == nil {
		s.ReplayAttempts = new(int)
		*s.ReplayAttempts = defaultAttempts
	}
	if bytes.Equal(s.PrevResult, []byte("null")) {
		s.PrevResult = nil
	}
	if bytes.Equal(s.RuntimeConfig, []byte("null")) {
		s.RuntimeConfig = nil
	}
	for field, dir := range map[string]string{"dataDir": s.DataDir, "confDir": s.ConfDir} {
		if !filepath.IsAbs(dir) {
			return nil, invalidStanza("%s %q must be an absolute path", field, dir)
		}
	}
	s.DataDir = filepath.Clean(s.DataDir)
	if *s.ReplayAttempts < 0 {
		return nil, invalidStanza("replayAttempts must not be negative")
	}
	return &s, nil
}

func invalidStanza(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "durable-args stanza: "+fmt.Sprintf(format, args...), "")
}

func (s *stanza) key(args *skel.CmdArgs) journal.Key {
	return journal.Key{Network: s.Name, ContainerID: args.ContainerID, IfName: args.IfName}
}

// call is what the runtime gives to the chain now.
func (s *stanza) call(args *skel.CmdArgs) (chain.Call, error) {
	c := chain.Call{
		Network:     s.Name,
		CNIVersion:  s.CNIVersion,
		ContainerID: args.ContainerID,
		IfName:      args.IfName,
		NetNS:       args.Netns,
		Args:        args.Args,
		Path:        args.Path,
		PrevResult:  s.PrevResult,
	}
	if len(s.RuntimeConfig) > 0 {
		if err := json.Unmarshal(s.RuntimeConfig, &c.RuntimeConfig); err != nil {
			return c, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("reading runtimeConfig: %v", err), "")
		}
	}
	return c, nil
}

// conflist finds the chain that the stanza stands in.
func (s *stanza) conflist() (*chain.Conflist, []chain.Plugin, error) {
	list, err := chain.Load(s.ConfDir, s.Name)
	if err != nil {
		return nil, nil, invalidStanza("finding the conflist of network %q: %v; if it is elsewhere, say so with confDir", s.Name, err)
	}
	plugins := chain.Without(list.Plugins, s.Type)
	if len(plugins) == len(list.Plugins) {
		return nil, nil, invalidStanza("the conflist of network %q in %s has no %s stanza, so it is not the one that the runtime uses; name that one's directory with confDir",
			s.Name, s.ConfDir, s.Type)
	}
	return list, plugins, nil
}

// covers returns an error unless we are shown every capability arg of plugins.
func (s *stanza) covers(plugins []chain.Plugin) error {
	for _, p := range plugins {
		for _, capability := range p.Capabilities {
			if !s.Capabilities[capability] {
				return invalidStanza("plugin %s declares the capability %q, but the %s stanza does not, so its value would not be journaled; add \"capabilities\": {%q: true} to the stanza",
					p.Type, capability, s.Type, capability)
			}
		}
	}
	return nil
}

// configs returns the configurations of plugins, as a journal entry holds them.
func configs(plugins []chain.Plugin) []json.RawMessage {
	return slices.Collect(func(yield func(json.RawMessage) bool) {
		for _, p := range plugins {
			if !yield(p.Config) {
				return
			}
		}
	})
}
