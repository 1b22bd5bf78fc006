package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

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

// The places that a stanza can have.
const (
	first   = "first"
	last    = "last"
	wrapped = "wrapped" // one stanza that holds the chain
)

// stanza is our configuration in a conflist, with what libcni injects.
type stanza struct {
	Type           string            `json:"type"`
	Position       string            `json:"position"`
	DataDir        string            `json:"dataDir"`
	ConfDir        string            `json:"confDir"`
	ReplayAttempts *int              `json:"replayAttempts"`
	AllowVolatile  bool              `json:"allowVolatile"`
	Capabilities   map[string]bool   `json:"capabilities"`
	Plugins        []json.RawMessage `json:"plugins"`

	Name             string          `json:"name"`
	CNIVersion       string          `json:"cniVersion"`
	RuntimeConfig    json.RawMessage `json:"runtimeConfig"`
	PrevResult       json.RawMessage `json:"prevResult"`
	ValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
	Attachments      json.RawMessage `json:"cni.dev/attachments"`
}

// parseStanza reads standard input. Its errors are *types.Error.
func parseStanza(stdin []byte) (*stanza, error) {
	var s stanza
	if err := json.Unmarshal(stdin, &s); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("reading the durable-args stanza: %v", err), "")
	}
	s.Position = cmp.Or(s.Position, first)
	s.DataDir = cmp.Or(s.DataDir, defaultDataDir)
	s.ConfDir = cmp.Or(s.ConfDir, os.Getenv("NETCONFPATH"), defaultConfDir)
	if s.ReplayAttempts == nil {
		s.ReplayAttempts = new(int)
		*s.ReplayAttempts = defaultAttempts
	}
	for _, raw := range []*json.RawMessage{&s.PrevResult, &s.RuntimeConfig} {
		if bytes.Equal(*raw, []byte("null")) {
			*raw = nil
		}
	}
	switch {
	case s.Position != first && s.Position != last:
		return nil, invalidStanza(`position %q is neither "first" nor "last"`, s.Position)
	case s.Position == last && len(s.Plugins) > 0:
		return nil, invalidStanza(`a stanza with "plugins" holds the whole chain and cannot have "position": "last"`)
	case !filepath.IsAbs(s.DataDir):
		return nil, invalidStanza("dataDir %q must be an absolute path", s.DataDir)
	case !filepath.IsAbs(s.ConfDir):
		return nil, invalidStanza("confDir %q must be an absolute path", s.ConfDir)
	case *s.ReplayAttempts < 0:
		return nil, invalidStanza("replayAttempts must not be negative")
	}
	s.DataDir = filepath.Clean(s.DataDir)
	return &s, nil
}

func invalidStanza(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "durable-args stanza: "+fmt.Sprintf(format, args...), "")
}

func (s *stanza) layout() string {
	if len(s.Plugins) > 0 {
		return wrapped
	}
	return s.Position
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
