package main

import (
	"fmt"
	"strings"
)

// around is how many lines around a change a diff shows.
const around = 3

// change is a run of whole lines, from up to but without to, and what is to
// stand there instead.
type change struct {
	from, to int
	lines    []string
}

// unifiedDiff shows edits to a file as diff -u does, empty if there are none.
func unifiedDiff(name string, text []byte, edits []edit) string {
	old := strings.SplitAfter(string(text), "\n")
	if old[len(old)-1] == "" {
		old = old[:len(old)-1]
	}
	changes := changesOf(text, old, edits)
	if len(changes) == 0 {
		return ""
	}
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", name, name)
	grown := 0
	for len(changes) > 0 {
		n := 1
		for n < len(changes) && changes[n].from-changes[n-1].to <= 2*around {
			n++
		}
		grown += hunk(&out, old, changes[:n], grown)
		changes = changes[n:]
	}
	return out.String()
}

// hunk prints one hunk, before which the text has grown by some lines, and
// returns by how many it grows itself.
func hunk(out *strings.Builder, old []string, changes []change, grown int) int {
	from := max(changes[0].from-around, 0)
	to := min(changes[len(changes)-1].to+around, len(old))
	grows := 0
	for _, c := range changes {
		grows += len(c.lines) - (c.to - c.from)
	}
	fmt.Fprintf(out, "@@ -%d,%d +%d,%d @@\n", from+1, to-from, from+1+grown, to-from+grows)
	put := func(mark string, lines []string) {
		for _, line := range lines {
			out.WriteString(mark + line)
			if !strings.HasSuffix(line, "\n") {
				out.WriteString("\n\\ No newline at end of file\n")
			}
		}
	}
	for _, c := range changes {
		put(" ", old[from:c.from])
		put("-", old[c.from:c.to])
		put("+", c.lines)
		from = c.to
	}
	put(" ", old[from:to])
	return grows
}

// changesOf widens edits to whole lines.
func changesOf(text []byte, old []string, edits []edit) []change {
	starts := []int{0} // of each line, and of what follows the last
	for _, line := range old {
		starts = append(starts, starts[len(starts)-1]+len(line))
	}
	// The line that a position is in.
	line := func(at int) int {
		n := 0
		for n+1 < len(old) && starts[n+1] <= at {
			n++
		}
		return n
	}
	var changes []change
	for i := 0; i < len(edits); {
		from, to := line(edits[i].start), line(edits[i].end)+1
		n := i + 1
		for n < len(edits) && line(edits[n].start) < to {
			to = line(edits[n].end) + 1
			n++
		}
		var here []edit
		for _, e := range edits[i:n] {
			here = append(here, edit{span{e.start - starts[from], e.end - starts[from]}, e.text})
		}
		lines := strings.SplitAfter(string(apply(text[starts[from]:starts[to]], here)), "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		for from < to && len(lines) > 0 && old[from] == lines[0] {
			from, lines = from+1, lines[1:]
		}
		for from < to && len(lines) > 0 && old[to-1] == lines[len(lines)-1] {
			to, lines = to-1, lines[:len(lines)-1]
		}
		if from < to || len(lines) > 0 {
			changes = append(changes, change{from, to, lines})
		}
		i = n
	}
	return changes
}
