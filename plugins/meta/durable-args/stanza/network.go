package stanza

import (
	"encoding/json"
	"slices"

	"github.com/durable-args/durable-args/pkg/chain"
)

// Network is the chain that a stanza stands in, or holds.
type Network struct {
	// Conflist is the configuration file as found; nil if a wrapped chain is
	// not on disk, as with a Multus NetworkAttachmentDefinition.
	Conflist []byte
	// Protected are the plugins that we journal: those between a first and a
	// last stanza, those of a wrapped one, else all.
	Protected []chain.Plugin
	// Plugins are all but our own stanzas.
	Plugins []chain.Plugin
	// Extended says that plugins stand behind the last stanza.
	Extended bool
	// Capabilities are those of each of our stanzas: libcni shows a stanza only
	// the capability args that it declares.
	Capabilities []map[string]bool
}

// Network finds the chain. Its errors are *types.Error.
func (s *Stanza) Network() (*Network, error) {
	list, err := chain.Load(s.ConfDir, s.Name)
	if s.Layout() == Wrapped {
		n, wrappedErr := s.Nested()
		if err == nil && wrappedErr == nil {
			n.Conflist = list.Bytes
		}
		return n, wrappedErr
	}
	if err != nil {
		return nil, invalid("finding the conflist of network %q: %v; if it is elsewhere, say so with confDir", s.Name, err)
	}
	n, err := s.In(list.Plugins)
	if err != nil {
		return nil, err
	}
	n.Conflist = list.Bytes
	return n, nil
}

// In is the chain that a stanza stands in, if it does not hold one: plugins are
// all of the conflist. Its errors are *types.Error.
func (s *Stanza) In(plugins []chain.Plugin) (*Network, error) {
	n := new(Network)
	firstAt, lastAt := -1, -1
	for i, p := range plugins {
		if p.Type != s.Type {
			n.Plugins = append(n.Plugins, p)
			continue
		}
		var own Stanza
		if err := json.Unmarshal(p.Config, &own); err != nil {
			return nil, invalid("reading it in the conflist of network %q: %v", s.Name, err)
		}
		n.Capabilities = append(n.Capabilities, own.Capabilities)
		if own.Position == Last {
			lastAt = i
		} else if firstAt < 0 {
			firstAt = i
		}
	}
	if firstAt < 0 && lastAt < 0 {
		return nil, invalid("the conflist of network %q in %s has no %s stanza, so it is not the one that the runtime uses; name that one's directory with confDir",
			s.Name, s.ConfDir, s.Type)
	}
	if firstAt < 0 {
		return nil, invalid(`the conflist of network %q has a stanza with "position": "last" only; add one without a position, first in the list`, s.Name)
	}
	n.Protected = n.Plugins
	if lastAt > firstAt {
		n.Protected = slices.DeleteFunc(slices.Clone(plugins[firstAt:lastAt]), func(p chain.Plugin) bool { return p.Type == s.Type })
		n.Extended = lastAt < len(plugins)-1
	}
	return n, nil
}

// Nested is the chain that a wrapped stanza holds. Its errors are *types.Error.
func (s *Stanza) Nested() (*Network, error) {
	plugins, err := chain.ParseAll(s.Plugins)
	if err != nil {
		return nil, invalid(`reading "plugins": %v`, err)
	}
	for _, p := range plugins {
		if p.Type == s.Type {
			return nil, invalid(`"plugins" must not hold another %s stanza; take it out`, s.Type)
		}
	}
	return &Network{Protected: plugins, Plugins: plugins, Capabilities: []map[string]bool{s.Capabilities}}, nil
}

// Covered returns an error unless our stanzas are shown every capability arg of
// the chain. It is a *types.Error.
func (n *Network) Covered() error {
	for _, p := range n.Protected {
		for _, capability := range p.Capabilities {
			for _, ours := range n.Capabilities {
				if !ours[capability] {
					return invalid("plugin %s declares the capability %q, but the durable-args stanza does not, so its value would not be journaled; add \"capabilities\": {%q: true} to the stanza",
						p.Type, capability, capability)
				}
			}
		}
	}
	return nil
}
