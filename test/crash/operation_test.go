package crash

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// operation is one call of the plugin.
type operation struct {
	name     string
	command  string
	position string // empty for the first stanza
	// lost says that the runtime has lost what it gave on ADD.
	lost bool
	// fits says whether a runtime could do it to an attachment that looks so.
	fits func(content) bool
	// effect is what it makes of the attachment's file. token marks what it
	// writes.
	effect func(c content, token string) content
	// halfway is what a power cut in the middle may leave, besides what there was
	// and the effect. nil is nothing else.
	halfway func(content) []content
	// durable says that its effect survives a power cut once acknowledged.
	durable bool
	// weight is how often it is chosen.
	weight int
}

// operations is all that the plugin is made to do; those that remove come last.
var operations = []operation{
	{name: "ADD", command: "ADD", fits: content.absent, effect: added, halfway: tornLine, durable: true, weight: 1},
	{name: "CHECK adopts", command: "CHECK", fits: content.absent, effect: added, halfway: tornLine, durable: true, weight: 1},
	{name: "ADD again", command: "ADD", fits: content.present, effect: added, halfway: tornLine, durable: true, weight: 2},
	{name: "ADD, last", command: "ADD", position: "last", fits: content.lacksResult, effect: hasResult, halfway: tornLine, durable: true, weight: 4},
	{name: "DEL", command: "DEL", fits: content.present, effect: removed, weight: 1},
	{name: "DEL, last, args lost", command: "DEL", position: "last", lost: true, fits: content.owed, effect: replayed, halfway: tornLine, weight: 1},
}

const adding = 4 // operations that only add

// choose returns one of those that fit.
func choose(operations []operation, c content) operation {
	var fitting []operation
	for _, o := range operations {
		if o.fits(c) {
			fitting = append(fitting, slices.Repeat([]operation{o}, o.weight)...)
		}
	}
	return fitting[rand.N(len(fitting))]
}

// content is what an attachment's file holds.
type content struct {
	// lines are the entries that are still owed, "add TOKEN" and "result TOKEN".
	lines []string
	// damaged counts the lines that cannot be read.
	damaged int
	exists  bool
}

func (c content) absent() bool      { return !c.exists }
func (c content) present() bool     { return c.exists }
func (c content) owed() bool        { return len(c.lines) > 0 }
func (c content) lacksResult() bool { return c.owed() && strings.HasPrefix(c.last(), "add ") }
func (c content) last() string      { return c.lines[len(c.lines)-1] }

// newestToken is the token of the ADD that a runtime would still know.
func (c content) newestToken() string {
	for _, line := range slices.Backward(c.lines) {
		if token, ok := strings.CutPrefix(line, "add "); ok {
			return token
		}
	}
	return ""
}

func added(c content, token string) content     { return c.with("add " + token) }
func hasResult(c content, token string) content { return c.with("result " + token) }
func replayed(c content, _ string) content      { return content{damaged: c.damaged, exists: true} }
func removed(content, string) content           { return content{} }

func (c content) with(line string) content {
	return content{append(slices.Clone(c.lines), line), c.damaged, true}
}

// tornLine is c with a line after it that cannot be read.
func tornLine(c content) []content { return []content{{c.lines, c.damaged + 1, true}} }

// same reports whether two files say the same. One without a line, which a
// torn ADD leaves, says no more than one that is not there.
func (c content) same(d content) bool {
	return slices.Equal(c.lines, d.lines) && c.damaged == d.damaged
}
