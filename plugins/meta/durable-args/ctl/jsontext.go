package main

import (
	"bytes"
	"encoding/json"
	"strings"
)

// member is a member of a JSON object in a text.
type member struct {
	key   string
	name  span // the key, with its quotes
	value span
}

const (
	space    = " \t\r\n"
	newlines = "\r\n"
)

// membersOf returns the members of an object in a text that is valid JSON.
func membersOf(text []byte, object span) []member {
	var found []member
	walk(text, object, func(dec *json.Decoder, at func() int) {
		m := member{name: span{start: at()}}
		key, _ := dec.Token()
		m.key, _ = key.(string)
		m.name.end = object.start + int(dec.InputOffset())
		m.value = next(dec, object)
		found = append(found, m)
	})
	return found
}

// elementsOf returns the elements of an array in a text that is valid JSON.
func elementsOf(text []byte, array span) []span {
	var found []span
	walk(text, array, func(dec *json.Decoder, _ func() int) {
		found = append(found, next(dec, array))
	})
	return found
}

// walk calls visit before every member or element of what is in the span. at
// returns where that begins.
func walk(text []byte, in span, visit func(dec *json.Decoder, at func() int)) {
	dec := json.NewDecoder(bytes.NewReader(text[in.start:in.end]))
	if _, err := dec.Token(); err != nil {
		return
	}
	at := func() int {
		offset := in.start + int(dec.InputOffset())
		rest := text[offset:]
		return offset + len(rest) - len(bytes.TrimLeft(rest, ","+space))
	}
	for dec.More() {
		visit(dec, at)
	}
}

// next returns where the next value is.
func next(dec *json.Decoder, in span) span {
	var raw json.RawMessage
	// Valid JSON cannot fail.
	_ = dec.Decode(&raw)
	end := in.start + int(dec.InputOffset())
	return span{end - len(raw), end}
}

// style is how an object is written: what stands after its brace, between a key
// and a value, between two members, and before the other brace.
type style struct{ open, colon, between, close string }

// styleOf returns how an object of at least one member is written.
func styleOf(text []byte, object span) style {
	members := membersOf(text, object)
	first, last := members[0], members[len(members)-1]
	s := style{
		open:  string(text[object.start+1 : first.name.start]),
		colon: string(text[first.name.end:first.value.start]),
		close: string(text[last.value.end : object.end-1]),
	}
	if strings.ContainsAny(s.colon, newlines) {
		s.colon = ": "
	}
	s.between = s.comma(s.open)
	if !strings.ContainsAny(s.open, newlines) && len(members) > 1 {
		if between := string(text[first.value.end:members[1].name.start]); !strings.ContainsAny(between, newlines) {
			s.between = between
		}
	}
	return s
}

// comma returns what is between two things of which the first is written after
// the given space: a line each, or all on one.
func (s style) comma(open string) string {
	switch {
	case strings.ContainsAny(open, newlines):
		return "," + open
	case strings.HasSuffix(s.colon, ":"):
		return ","
	}
	return ", "
}

// object returns an object of keys and values.
func (s style) object(members ...string) string {
	var pairs []string
	for i := 0; i < len(members); i += 2 {
		pairs = append(pairs, quote(members[i])+s.colon+members[i+1])
	}
	return "{" + s.open + strings.Join(pairs, s.between) + s.close + "}"
}

// flags returns an object, on one line, in which every name is true.
func (s style) flags(names []string) string {
	var members []string
	for _, name := range names {
		members = append(members, name, "true")
	}
	one := style{open: s.open, colon: s.colon, close: s.open, between: s.between}
	if strings.ContainsAny(s.open, newlines) {
		one = style{colon: s.colon, between: s.comma("")}
	}
	return one.object(members...)
}

// quote returns s as JSON.
func quote(s string) string {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string cannot fail
	return strings.TrimSuffix(buf.String(), "\n")
}

// shiftOf returns how much further to the right the last line of inner begins
// than that of outer, as white space; "" if that cannot be said.
func shiftOf(outer, inner []byte) string {
	shift, ok := strings.CutPrefix(indentation(inner), indentation(outer))
	if !ok {
		return ""
	}
	return shift
}

// indentation is the white space at the beginning of a text's last line.
func indentation(text []byte) string {
	line := text[bytes.LastIndexByte(text, '\n')+1:]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// indent puts shift before every line but the first and empty ones. In JSON
// that changes no value, since no string spans lines.
func indent(text, shift string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if i > 0 && strings.Trim(line, "\r") != "" {
			lines[i] = shift + line
		}
	}
	return strings.Join(lines, "\n")
}

// unindent undoes indent.
func unindent(text, shift string) string {
	return strings.ReplaceAll(text, "\n"+shift, "\n")
}
