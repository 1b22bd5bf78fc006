package crash

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/durable-args/durable-args/pkg/journal"
)

// event is one operation on one attachment by one writer.
type event struct {
	writer *writer
	key    journal.Key
	operation
	before content
	token  string
}

// mark is the beginning of an event, or its acknowledgement.
type mark struct {
	*event
	acknowledged bool
}

// history is what happened up to the power cut, in order.
type history struct {
	mu    sync.Mutex
	marks []mark
	cut   bool
	// tell, if not nil, is told of every mark before anything else happens.
	tell func() error
}

// begin notes that e begins. It returns false after the power cut.
func (h *history) begin(e *event) bool { return h.note(mark{e, false}) }

// acknowledge notes that e was acknowledged. What comes after the power cut
// counts for nothing: a flush that races a file system's shutdown may
// return success (seen on xfs, now and then on ext4).
func (h *history) acknowledge(e *event) bool { return h.note(mark{e, true}) }

func (h *history) note(m mark) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cut || h.tell != nil && h.tell() != nil {
		return false
	}
	h.marks = append(h.marks, m)
	return true
}

// powerCut ends the history. It is called before the power is cut.
func (h *history) powerCut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cut = true
}

// ended reports whether the power has been cut.
func (h *history) ended() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cut
}

// acknowledged returns how often each writer has been acknowledged.
func (h *history) acknowledged() map[*writer]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	count := make(map[*writer]int)
	for _, m := range h.marks {
		if m.acknowledged {
			count[m.writer]++
		}
	}
	return count
}

// fate is what a power cut may leave of an attachment.
type fate struct {
	now   content   // as the processes see it
	maybe []content // and what there may be instead, since it is not durable
}

// take applies an event.
func (f *fate) take(e *event, acknowledged bool) {
	before := f.now
	f.now = e.effect(before, e.token)
	if acknowledged && e.durable {
		f.maybe = nil // the new line brings all before it to the disk
		return
	}
	f.maybe = append(f.maybe, before)
	if e.halfway != nil {
		f.maybe = append(f.maybe, e.halfway(before)...)
	}
}

// possible is every content that may be found.
func (f *fate) possible() []content { return append(slices.Clone(f.maybe), f.now) }

// required are the lines that must be found: those that no possible content
// lacks.
func (f *fate) required() []string {
	return slices.DeleteFunc(slices.Clone(f.now.lines), func(line string) bool {
		return slices.ContainsFunc(f.maybe, func(c content) bool { return !slices.Contains(c.lines, line) })
	})
}

// attachments is what a writer's files hold.
type attachments map[journal.Key]content

// tally is a row of the table.
type tally struct {
	Checked      int // cuts or states
	Acknowledged int // entries that had to be there, over all of them
	Lost         int // of these, not there
	Torn         int // of these, there but unreadable
	Harmless     int // torn lines that nobody had acknowledged
	Wrong        int // anything else that should not be
}

func (t *tally) add(u tally) {
	t.Checked += u.Checked
	t.Acknowledged += u.Acknowledged
	t.Lost += u.Lost
	t.Torn += u.Torn
	t.Harmless += u.Harmless
	t.Wrong += u.Wrong
}

func (t tally) bad() int { return t.Lost + t.Torn + t.Wrong }

// judge holds what was found of a writer's files after the power cut against
// what has to be there. before is what they held when the history began. It
// returns a sentence for each attachment that is not as it must be.
func judge(w *writer, before attachments, marks []mark, found attachments) (tally, []string) {
	acknowledged := make(map[*event]bool)
	for _, m := range marks {
		if m.acknowledged {
			acknowledged[m.event] = true
		}
	}
	fates := make(map[journal.Key]*fate)
	for key, c := range before {
		fates[key] = &fate{now: c}
	}
	for _, m := range marks {
		if m.writer != w || m.acknowledged {
			continue
		}
		if fates[m.key] == nil {
			fates[m.key] = &fate{}
		}
		fates[m.key].take(m.event, acknowledged[m.event])
	}
	for key := range found {
		if fates[key] == nil {
			fates[key] = &fate{} // nobody has made it
		}
	}
	t := tally{Checked: 1}
	var complaints []string
	for key, f := range fates {
		got := found[key]
		required := f.required()
		t.Acknowledged += len(required)
		if slices.ContainsFunc(f.possible(), got.same) {
			t.Harmless += max(0, got.damaged-before[key].damaged)
			continue
		}
		absent := len(slices.DeleteFunc(required, func(line string) bool { return slices.Contains(got.lines, line) }))
		switch {
		case absent > 0 && got.exists:
			t.Torn += absent
		case absent > 0:
			t.Lost += absent
		default:
			t.Wrong++
		}
		var possible []string
		for _, c := range f.possible() {
			possible = append(possible, c.String())
		}
		complaints = append(complaints, fmt.Sprintf("%s: found %s; possible: %s", key, got, strings.Join(possible, " | ")))
	}
	return t, complaints
}

func (c content) String() string {
	if !c.exists {
		return "nothing"
	}
	return fmt.Sprintf("[%s] and %d damaged", strings.Join(c.lines, ", "), c.damaged)
}
