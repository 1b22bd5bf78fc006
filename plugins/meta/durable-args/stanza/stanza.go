// Package stanza is our configuration in a conflist: what an operator writes, and
// the chain that it stands in.
package stanza

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/types"
)

// What a stanza leaves out.
const (
	DefaultDataDir  = "/var/lib/durable-args"
	DefaultConfDir  = "/etc/cni/net.d"
	DefaultCacheDir = "/var/lib/cni" // libcni.CacheDir
	DefaultAttempts = 3
)

// The layouts of a stanza.
const (
	First   = "first"
	Last    = "last"
	Wrapped = "wrapped" // it holds the chain
)

// Stanza is our configuration in a conflist, with what libcni injects. After
// Parse, what was left out has its default.
type Stanza struct {
	Type           string            `json:"type"`
	Position       string            `json:"position"`
	DataDir        string            `json:"dataDir"`
	ConfDir        string            `json:"confDir"`
	CacheDir       string            `json:"cacheDir"`
	ReplayAttempts *int              `json:"replayAttempts"` // never nil
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

// Parse reads a stanza. Its errors are *types.Error, code 6 if it cannot be
// decoded and 7 if it makes no sense.
func Parse(config []byte) (*Stanza, error) {
	var s Stanza
	if err := json.Unmarshal(config, &s); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("reading the durable-args stanza: %v", err), "")
	}
	s.Position = cmp.Or(s.Position, First)
	s.DataDir = cmp.Or(s.DataDir, DefaultDataDir)
	s.ConfDir = cmp.Or(s.ConfDir, os.Getenv("NETCONFPATH"), DefaultConfDir)
	s.CacheDir = cmp.Or(s.CacheDir, DefaultCacheDir)
	if s.ReplayAttempts == nil {
		s.ReplayAttempts = new(int)
		*s.ReplayAttempts = DefaultAttempts
	}
	for _, raw := range []*json.RawMessage{&s.PrevResult, &s.RuntimeConfig} {
		if bytes.Equal(*raw, []byte("null")) {
			*raw = nil
		}
	}
	switch {
	case s.Position != First && s.Position != Last:
		return nil, invalid(`position %q is neither "first" nor "last"`, s.Position)
	case s.Position == Last && len(s.Plugins) > 0:
		return nil, invalid(`a stanza with "plugins" holds the whole chain and cannot have "position": "last"`)
	case !filepath.IsAbs(s.DataDir):
		return nil, invalid("dataDir %q must be an absolute path", s.DataDir)
	case !filepath.IsAbs(s.ConfDir):
		return nil, invalid("confDir %q must be an absolute path", s.ConfDir)
	case !filepath.IsAbs(s.CacheDir):
		return nil, invalid("cacheDir %q must be an absolute path", s.CacheDir)
	case *s.ReplayAttempts < 0:
		return nil, invalid("replayAttempts must not be negative")
	}
	s.DataDir = filepath.Clean(s.DataDir)
	return &s, nil
}

func invalid(format string, args ...any) error {
	return types.NewError(types.ErrInvalidNetworkConfig, "durable-args stanza: "+fmt.Sprintf(format, args...), "")
}

// Layout returns First, Last or Wrapped.
func (s *Stanza) Layout() string {
	if len(s.Plugins) > 0 {
		return Wrapped
	}
	return s.Position
}
