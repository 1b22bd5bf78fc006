package main

import (
	"encoding/json"
	"slices"

	"github.com/durable-args/durable-args/pkg/chain"
)

// network is the chain that a stanza stands in, or holds.
type network struct {
	// conflist is the configuration file as found; nil if a wrapped chain is
	// not on disk, as with a Multus NetworkAttachmentDefinition.
	conflist []byte
	// protected are the plugins that we journal: those between a first and a
	// last stanza, those of a wrapped one, else all.
	protected []chain.Plugin
	// plugins are all but our own stanzas.
	plugins []chain.Plugin
	// extended says that plugins stand behind the last stanza.
	extended bool
	// capabilities are those of each of our stanzas: libcni shows a stanza only
	// the capability args that it declares.
	capabilities []map[string]bool
}

// network finds the chain. Its errors are *types.Error.
func (s *stanza) network() (*network, error) {
	list, err := chain.Load(s.ConfDir, s.Name)
	if s.layout() == wrapped {
		n, wrappedErr := s.wrapped()
		if err == nil && wrappedErr == nil {
			n.conflist = list.Bytes
		}
		return n, wrappedErr
	}
	if err != nil {
		return nil, invalidStanza("finding the conflist of network %q: %v; if it is elsewhere, say so with confDir", s.Name, err)
	}
	n := &network{conflist: list.Bytes}
	firstAt, lastAt := -1, -1
	for i, p := range list.Plugins {
		if p.Type != s.Type {
			n.plugins = append(n.plugins, p)
			continue
		}
		var own stanza
		if err := json.Unmarshal(p.Config, &own); err != nil {
			return nil, invalidStanza("reading it in the conflist of network %q: %v", s.Name, err)
		}
		n.capabilities = append(n.capabilities, own.Capabilities)
		if own.Position == last {
			lastAt = i
		} else if firstAt < 0 {
			firstAt = i
		}
	}
	if firstAt < 0 && lastAt < 0 {
		return nil, invalidStanza("the conflist of network %q in %s has no %s stanza, so it is not the one that the runtime uses; name that one's directory with confDir",
			s.Name, s.ConfDir, s.Type)
	}
	if firstAt < 0 {
		return nil, invalidStanza(`the conflist of network %q has a stanza with "position": "last" only; add one without a position, first in the list`, s.Name)
	}
	n.protected = n.plugins
	if lastAt > firstAt {
		n.protected = slices.DeleteFunc(slices.Clone(list.Plugins[firstAt:lastAt]), func(p chain.Plugin) bool { return p.Type == s.Type })
		n.extended = lastAt < len(list.Plugins)-1
	}
	return n, nil
}

// wrapped is the chain that the stanza holds.
func (s *stanza) wrapped() (*network, error) {
	plugins, err := chain.ParseAll(s.Plugins)
	if err != nil {
		return nil, invalidStanza(`reading "plugins": %v`, err)
	}
	for _, p := range plugins {
		if p.Type == s.Type {
			return nil, invalidStanza(`"plugins" must not hold another %s stanza; take it out`, s.Type)
		}
	}
	return &network{protected: plugins, plugins: plugins, capabilities: []map[string]bool{s.Capabilities}}, nil
}

// covered returns an error unless our stanzas are shown every capability arg of
// the chain. It is a *types.Error.
func (n *network) covered() error {
	for _, p := range n.protected {
		for _, capability := range p.Capabilities {
			for _, ours := range n.capabilities {
				if !ours[capability] {
					return invalidStanza("plugin %s declares the capability %q, but the stanza does not, so its value would not be journaled; add \"capabilities\": {%q: true} to it",
						p.Type, capability, capability)
				}
			}
		}
	}
	return nil
}
