package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/durable-args/durable-args/pkg/chain"
	"github.com/durable-args/durable-args/plugins/meta/durable-args/stanza"
)

// firstLast is the layout of two stanzas; for the others see [stanza.Stanza].
const firstLast = "first-last"

var layouts = []string{stanza.First, firstLast, stanza.Wrapped}

// conflistText is a conflist as its operator wrote it. It is edited as a text
// and never marshalled again, so that whatever is not ours stays as it is, byte
// for byte.
type conflistText struct {
	text []byte
	list *libcni.NetworkConfigList
	// array is the value of "plugins", with its brackets.
	array span
	// elements are where list.Plugins are.
	elements []span
	// stanzas are those of the elements that are ours, nil for the others.
	stanzas []*stanza.Stanza
}

// span is a piece of a text, from start up to but without end.
type span struct{ start, end int }

// edit is a piece of a text, and what is to stand there instead.
type edit struct {
	span
	text string
}

// apply returns the text with edits, which are in order and do not overlap.
func apply(text []byte, edits []edit) []byte {
	var out []byte
	at := 0
	for _, e := range edits {
		out = append(append(out, text[at:e.start]...), e.text...)
		at = e.end
	}
	return append(out, text[at:]...)
}

// parseConflist understands a conflist, or says what to do with what it does
// not understand.
func parseConflist(text []byte) (*conflistText, error) {
	if bytes.HasPrefix(text, []byte("\xef\xbb\xbf")) {
		return nil, errors.New("it begins with a byte order mark, which no runtime can read; save it without one")
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(text, &top); err != nil {
		if syntax := new(json.SyntaxError); errors.As(err, &syntax) {
			line := 1 + bytes.Count(text[:min(int(syntax.Offset), len(text))], []byte("\n"))
			return nil, fmt.Errorf("it is not JSON: line %d: %w; no runtime can read it before that is put right", line, err)
		}
		return nil, fmt.Errorf("it is not a JSON object: %w; is it a conflist?", err)
	}
	c := &conflistText{text: text}
	found := 0
	for _, m := range membersOf(text, span{0, len(text)}) {
		if m.key == "plugins" {
			c.array = m.value
			found++
		}
	}
	switch {
	case found > 1:
		return nil, errors.New(`it has "plugins" more than once, of which runtimes take the last; take the others out`)
	case found == 0 && top["type"] != nil:
		return nil, errors.New(`it is a single configuration, not a conflist; put it into the "plugins" of a conflist: {"cniVersion": …, "name": …, "plugins": [ … ]}`)
	case found == 0:
		return nil, errors.New(`it has no "plugins", so all of them are loaded from the directory named after the network; move them into "plugins": [ … ] of the conflist`)
	}
	var err error
	if c.list, err = libcni.NetworkConfFromBytes(text); err != nil {
		return nil, fmt.Errorf("libcni cannot load it, so no runtime can: %w", err)
	}
	if e := utils.ValidateNetworkName(c.list.Name); e != nil {
		return nil, fmt.Errorf("no runtime can use it: %w", e)
	}
	c.elements = elementsOf(text, c.array)
	for _, plugin := range c.list.Plugins {
		var s *stanza.Stanza
		if plugin.Network.Type == pluginType {
			if s, err = stanza.Parse(plugin.Bytes); err != nil {
				return nil, fmt.Errorf("%w; put that right by hand first", err)
			}
		}
		c.stanzas = append(c.stanzas, s)
	}
	return c, nil
}

// ours are the indexes of our stanzas among the elements.
func (c *conflistText) ours() []int {
	var found []int
	for i, s := range c.stanzas {
		if s != nil {
			found = append(found, i)
		}
	}
	return found
}

// layout returns the layout that our stanzas make, "" if there are none.
func (c *conflistText) layout() (string, error) {
	ours := c.ours()
	if len(ours) == 0 {
		return "", nil
	}
	first, last := c.stanzas[ours[0]].Layout(), c.stanzas[ours[len(ours)-1]].Layout()
	switch n := len(c.elements); {
	case n == 1 && first == stanza.Wrapped:
		return stanza.Wrapped, nil
	case len(ours) == 1 && ours[0] == 0 && first == stanza.First:
		return stanza.First, nil
	case len(ours) == 2 && ours[0] == 0 && ours[1] == n-1 && first == stanza.First && last == stanza.Last:
		return firstLast, nil
	}
	return "", errors.New("it holds durable-args stanzas, but not where they belong")
}

// plugins are those of the chain, whether wrapped or not, without our stanzas
// and without what libcni loads from the network's directory.
func (c *conflistText) plugins() ([]chain.Plugin, error) {
	var configs []json.RawMessage
	for i, plugin := range c.list.Plugins {
		if s := c.stanzas[i]; s != nil {
			configs = append(configs, s.Plugins...)
		} else {
			configs = append(configs, plugin.Bytes)
		}
	}
	return chain.ParseAll(configs)
}

// insertion returns the edits that put our stanzas in, none if they are in.
// capabilities are what they have to declare; confDir is what they say, if
// anything, of where the conflist is.
func (c *conflistText) insertion(layout string, capabilities []string, dirs directories) ([]edit, error) {
	if len(c.ours()) > 0 {
		return c.declare(capabilities)
	}
	first, last := c.elements[0], c.elements[len(c.elements)-1]
	style := styleOf(c.text, first)
	stanzaText := func(position, inner string) string {
		all := []string{"type", quote(pluginType)}
		if position != "" {
			all = append(all, "position", quote(position))
		}
		for _, m := range dirs.members() {
			all = append(all, m.key, quote(m.dir))
		}
		if len(capabilities) > 0 {
			all = append(all, "capabilities", style.flags(capabilities))
		}
		if inner != "" {
			all = append(all, "plugins", inner)
		}
		return style.object(all...)
	}
	if layout == stanza.Wrapped {
		// Around the array as it is, only further to the right.
		wrapper := stanzaText("", "[]")
		inner := strings.LastIndex(wrapper, "[]")
		before := string(c.text[c.array.start:first.start]) + wrapper[:inner]
		after := wrapper[inner+len("[]"):] + string(c.text[last.end:c.array.end])
		shift := shiftOf(c.text[:c.array.start], slices.Concat(c.text[:c.array.start], []byte(before)))
		return []edit{{c.array, before + indent(c.slice(c.array), shift) + after}}, nil
	}
	between := style.comma(string(c.text[c.array.start+1 : first.start]))
	if len(c.elements) > 1 {
		between = string(c.text[first.end:c.elements[1].start])
	}
	edits := []edit{{span{first.start, first.start}, stanzaText("", "") + between}}
	if layout == firstLast {
		edits = append(edits, edit{span{last.end, last.end}, between + stanzaText(stanza.Last, "")})
	}
	return edits, nil
}

// declare returns the edits that add to our stanzas the capabilities that they
// lack.
func (c *conflistText) declare(capabilities []string) ([]edit, error) {
	var edits []edit
	for _, i := range c.ours() {
		missing := slices.DeleteFunc(slices.Clone(capabilities), func(name string) bool { return c.stanzas[i].Capabilities[name] })
		if len(missing) == 0 {
			continue
		}
		style := styleOf(c.text, c.elements[i])
		value, err := c.valueOf(i, "capabilities")
		if err != nil {
			return nil, err
		}
		if value == nil {
			end := membersOf(c.text, c.elements[i])[0].value.end
			edits = append(edits, edit{span{end, end}, style.between + quote("capabilities") + style.colon + style.flags(missing)})
			continue
		}
		known := membersOf(c.text, *value)
		if len(known) == 0 {
			edits = append(edits, edit{*value, style.flags(missing)})
			continue
		}
		style = styleOf(c.text, *value)
		for _, m := range known {
			if slices.Contains(missing, m.key) {
				edits = append(edits, edit{m.value, "true"})
			}
		}
		var more string
		for _, name := range missing {
			if !slices.ContainsFunc(known, func(m member) bool { return m.key == name }) {
				more += style.between + quote(name) + style.colon + "true"
			}
		}
		if end := known[len(known)-1].value.end; more != "" {
			edits = append(edits, edit{span{end, end}, more})
		}
	}
	return edits, nil
}

// valueOf returns where a stanza has the value of a key, nil if it has not. Like
// its reader, it takes "Key" for "key".
func (c *conflistText) valueOf(i int, key string) (*span, error) {
	var found *span
	for _, m := range membersOf(c.text, c.elements[i]) {
		if !strings.EqualFold(m.key, key) {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("its durable-args stanza has %q more than once; take one out", key)
		}
		found = &m.value
	}
	return found, nil
}

// removal returns the edits that take our stanzas out, and that undo insertion
// exactly.
func (c *conflistText) removal() ([]edit, error) {
	ours := c.ours()
	if len(ours) == 0 {
		return nil, nil
	}
	if layout, _ := c.layout(); layout == stanza.Wrapped {
		inner, err := c.valueOf(0, "plugins")
		if err != nil {
			return nil, err
		}
		shift := shiftOf(c.text[:c.array.start], c.text[:inner.start])
		return []edit{{c.array, unindent(c.slice(*inner), shift)}}, nil
	}
	for _, i := range ours {
		if c.stanzas[i].Layout() == stanza.Wrapped {
			return nil, errors.New(`one of its durable-args stanzas holds "plugins" and is not alone; move them out by hand`)
		}
	}
	if len(ours) == len(c.elements) {
		return nil, errors.New("its durable-args stanza is the only plugin, and a conflist without plugins is none; remove the file")
	}
	// A stanza goes with what is between it and the next plugin; those that no
	// plugin follows go with what is before them.
	kept := len(c.elements) - 1
	for c.stanzas[kept] != nil {
		kept--
	}
	var edits []edit
	for _, i := range ours {
		if i < kept {
			edits = append(edits, edit{span{c.elements[i].start, c.elements[i+1].start}, ""})
		}
	}
	if end := c.elements[len(c.elements)-1].end; kept < len(c.elements)-1 {
		edits = append(edits, edit{span{c.elements[kept].end, end}, ""})
	}
	return edits, nil
}

// edited returns the conflist with edits, or an error if these would touch
// anything but our stanzas.
func (c *conflistText) edited(edits []edit) (*conflistText, error) {
	after, err := parseConflist(apply(c.text, edits))
	if err != nil {
		return nil, fmt.Errorf("what would be written cannot be read: %w", err)
	}
	return after, c.sameBut(after)
}

// sameBut returns an error unless the conflists say the same but for our
// stanzas.
func (c *conflistText) sameBut(other *conflistText) error {
	ours, err := c.plugins()
	if err != nil {
		return err
	}
	theirs, err := other.plugins()
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(ours, theirs) {
		return errors.New("its other plugins would be changed")
	}
	var tops [2]map[string]any
	for i, text := range [][]byte{c.text, other.text} {
		if err := json.Unmarshal(text, &tops[i]); err != nil {
			return err
		}
		delete(tops[i], "plugins")
	}
	if !reflect.DeepEqual(tops[0], tops[1]) {
		return errors.New("what is beside its plugins would be changed")
	}
	return nil
}

func (c *conflistText) slice(s span) string { return string(c.text[s.start:s.end]) }

// capabilitiesOf returns the union of what plugins declare, sorted.
func capabilitiesOf(plugins []chain.Plugin) []string {
	union := make(map[string]bool)
	for _, p := range plugins {
		for _, name := range p.Capabilities {
			union[name] = true
		}
	}
	return slices.Sorted(maps.Keys(union))
}

// loadedBeside returns the plugins that libcni adds to those in the conflist,
// and the directory that it takes them from.
func (c *conflistText) loadedBeside(path string) (plugins []chain.Plugin, dir string, err error) {
	if c.list.LoadOnlyInlinedPlugins {
		return nil, "", nil
	}
	// The directory beside the link, if path is one: that is how runtimes load it.
	confs, err := libcni.NetworkPluginConfsFromFiles(filepath.Dir(path), c.list.Name)
	if err != nil {
		return nil, "", fmt.Errorf("libcni cannot load it, so no runtime can: %w", err)
	}
	var configs []json.RawMessage
	for _, conf := range confs {
		configs = append(configs, conf.Bytes)
	}
	plugins, err = chain.ParseAll(configs)
	return plugins, filepath.Join(filepath.Dir(path), c.list.Name), err
}
