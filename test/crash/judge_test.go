package crash

import (
	"reflect"
	"testing"

	"github.com/durable-args/durable-args/pkg/journal"
)

// The judge is as strict as the package comment says.
func TestJudge(t *testing.T) {
	w := &writer{}
	key := journal.Key{Network: "web", ContainerID: "c1", IfName: "eth0"}
	named := make(map[string]operation)
	for _, o := range operations {
		named[o.name] = o
	}
	// Each event's token is its number. The last one of a list that ends with
	// "..." was not acknowledged.
	history := func(names ...string) (marks []mark) {
		for i, name := range names {
			if name == "..." {
				return marks[:len(marks)-1]
			}
			e := &event{writer: w, key: key, operation: named[name], token: string(rune('1' + i))}
			if e.effect == nil {
				t.Fatalf("no such operation: %s", name)
			}
			marks = append(marks, mark{e, false}, mark{e, true})
		}
		return marks
	}
	file := func(damaged int, lines ...string) content { return content{lines, damaged, true} }
	var nothing content

	for _, test := range []struct {
		name  string
		marks []mark
		found content
		want  tally
	}{
		{"an acknowledged ADD is there", history("ADD"), file(0, "add 1"), tally{Acknowledged: 1}},
		{"an acknowledged ADD is not there", history("ADD"), nothing, tally{Acknowledged: 1, Lost: 1}},
		{"an acknowledged ADD is zero-length", history("ADD"), file(0), tally{Acknowledged: 1, Torn: 1}},
		{"an acknowledged ADD is torn", history("ADD"), file(1), tally{Acknowledged: 1, Torn: 1}},
		{"an acknowledged ADD has become another", history("ADD"), file(0, "add 1 (altered)"), tally{Acknowledged: 1, Torn: 1}},
		{"an ADD on its way is there", history("ADD", "..."), file(0, "add 1"), tally{}},
		{"an ADD on its way is not there", history("ADD", "..."), nothing, tally{}},
		{"an ADD on its way is torn", history("ADD", "..."), file(1), tally{Harmless: 1}},
		{"a torn result on its way harms nothing", history("ADD", "ADD, last", "..."), file(1, "add 1"), tally{Acknowledged: 1, Harmless: 1}},
		{"a torn result on its way takes the ADD with it", history("ADD", "ADD, last", "..."), file(1), tally{Acknowledged: 1, Torn: 1}},
		{"a result is lost", history("ADD", "ADD, last"), file(0, "add 1"), tally{Acknowledged: 2, Torn: 1}},
		{"a second ADD is not last", history("ADD", "ADD again"), file(0, "add 2", "add 1"), tally{Acknowledged: 2, Wrong: 1}},
		{"what was removed is back", history("ADD", "DEL"), file(0, "add 1"), tally{}},
		{"what was removed is back in part", history("ADD", "ADD, last", "DEL"), file(0, "add 1"), tally{Wrong: 1}},
		{"what was removed is back after the next ADD", history("ADD", "DEL", "ADD"), file(0, "add 1", "add 3"), tally{Acknowledged: 1, Wrong: 1}},
		{"what was removed is back instead of the next ADD", history("ADD", "DEL", "ADD"), file(0, "add 1"), tally{Acknowledged: 1, Torn: 1}},
		{"a note of a replay is not there", history("ADD", "DEL, last, args lost"), file(0, "add 1"), tally{}},
		{"a note of a replay is there", history("ADD", "DEL, last, args lost"), file(0), tally{}},
		{"an attachment that nobody has made", nil, file(0, "add 1"), tally{Wrong: 1}},
		{"a damaged line that nobody has written", history("ADD"), file(1, "add 1"), tally{Acknowledged: 1, Wrong: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := attachments{}
			if test.found.exists {
				found[key] = test.found
			}
			got, complaints := judge(w, nil, test.marks, found)
			test.want.Checked = 1
			if got != test.want || (len(complaints) > 0) != (got.bad() > 0) {
				t.Errorf("got %+v %q, want %+v", got, complaints, test.want)
			}
		})
	}
}

// A power cut at any step leaves every disk that it can leave, once.
func TestStates(t *testing.T) {
	steps := []step{
		{kind: wrote, data: make([]byte, blockSize)},
		{kind: marked},
		{kind: wrote, data: make([]byte, 2*blockSize)},
		{kind: flushed},
		{kind: marked},
	}
	var got []state
	for _, s := range statesOf(steps, 0) {
		s.seed = 0
		got = append(got, s)
	}
	want := []state{
		{kept: all, steps: 2, marks: 1},
		{kept: none, steps: 3, marks: 1},
		{kept: some, steps: 3, marks: 1},
		{kept: parts, steps: 3, marks: 1},
		{kept: all, steps: 5, flushed: 3, marks: 2},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}
