package crash

import (
	"path/filepath"
	"sync"
	"testing"
)

// report is a tally for each writer.
type report map[*writer]*tally

var reporting sync.Mutex

// take looks at what a power cut has left below root, and adds it to the
// report. before is what the writers held when the history began; take returns
// what they hold now.
func (r report) take(t *testing.T, when, root string, before map[*writer]attachments, marks []mark) map[*writer]attachments {
	t.Helper()
	now := make(map[*writer]attachments)
	for w := range r {
		found, err := w.read(filepath.Join(root, w.dir))
		if err != nil && !w.control {
			t.Errorf("%s: %s: %v", when, w.name, err)
		}
		verdict, complaints := judge(w, before[w], marks, found)
		now[w] = found
		reporting.Lock()
		r[w].add(verdict)
		if !w.control && r[w].bad() <= 20 {
			for _, complaint := range complaints {
				t.Errorf("%s: %s", when, complaint)
			}
		}
		reporting.Unlock()
	}
	return now
}

func newReport(writers []*writer) report {
	r := make(report)
	for _, w := range writers {
		r[w] = &tally{}
	}
	return r
}

// verify fails the test if the plugin has lost something, or a control has not.
func (r report) verify(t *testing.T) {
	for w, tally := range r {
		switch {
		case tally.Acknowledged == 0:
			t.Errorf("%s has acknowledged nothing, so nothing is proved", w.name)
		case w.control && tally.bad() == 0:
			t.Errorf("%s has lost nothing of %d entries, so this test is blind", w.name, tally.Acknowledged)
		case !w.control && tally.bad() > 0:
			t.Errorf("%s: of %d acknowledged entries %d are lost and %d torn; %d attachments are as they must not be",
				w.name, tally.Acknowledged, tally.Lost, tally.Torn, tally.Wrong)
		}
	}
}
