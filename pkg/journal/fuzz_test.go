package journal

import (
	"bytes"
	"reflect"
	"testing"
)

// Whatever a file holds, reading it does not panic, what is read can be written
// and read again, and an entry appended to it is found.
func FuzzDecode(f *testing.F) {
	whole := lines(f, testAdd(), Result(`{"ips":[]}`), Attempt{Plugin: "bridge", Error: "busy"})
	f.Add([]byte(nil))
	f.Add(whole)
	f.Add(whole[:len(whole)-5])
	f.Add(append(make([]byte, 100), whole...))
	f.Add(lines(f, testAdd(), Replayed{}))
	f.Add([]byte(seal(`{"version":2,"kind":"add"}`) + seal(`{"version":1,"kind":"lease"}`)))
	f.Add([]byte(seal(`{"version":1,"kind":"add","time":"2026-12-01T16:03:28+01:00","add":{"args":null,"chain":[null,1]}}`)))
	f.Add([]byte(seal(`{"VERSION":1,"kind":"add","add":{"runtimeConfig": [ ] },"add":{}}`) + seal(`{"version":1,"kind":"result","result":null}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec := decode(testKey, data)
		check(t, rec)
		// The fuzzer cannot guess checksums, so give it some.
		for raw := range bytes.SplitSeq(data, []byte("\n")) {
			check(t, decode(testKey, []byte(seal(string(raw)))))
		}

		later := Add{Layout: "later"}
		if len(data) > 0 {
			data = append(bytes.Clone(data), '\n')
		}
		got := decode(testKey, append(data, lines(t, later)...))
		if add := got.Newest(); add == nil || !reflect.DeepEqual(*add, read(later, "")) {
			t.Errorf("an entry appended to %q is read as %+v", data, add)
		}
		if len(got.Adds) != len(rec.Adds)+1 || got.Unknown != rec.Unknown {
			t.Errorf("appending an entry to %q has changed what else is read: %+v, before %+v", data, got, rec)
		}
	})
}

// check writes what rec holds, and reads it again.
func check(t *testing.T, rec Record) {
	var data []byte
	write := func(b []byte, err error) {
		if err != nil {
			t.Errorf("what was read cannot be written: %v: %+v", err, rec)
		}
		data = append(data, b...)
	}
	for _, a := range rec.Adds {
		write(encode(a, a.Time))
		if a.Result != nil {
			write(encode(Result(a.Result), a.Time))
		}
	}
	for _, a := range rec.Attempts {
		write(encode(a, a.Time))
	}
	again := decode(rec.Key, data)
	if again.Damaged != nil || again.Unknown != 0 || len(again.Adds) != len(rec.Adds) || len(again.Attempts) != len(rec.Attempts) {
		t.Fatalf("written and read again\n%+v\nis\n%+v", rec, again)
	}
	// Written once more it is the same: nothing drifts.
	for i, a := range again.Adds {
		b, err := encode(a, a.Time)
		if want, _ := encode(rec.Adds[i], a.Time); err != nil || !bytes.Equal(b, want) || !a.Time.Equal(rec.Adds[i].Time) {
			t.Errorf("%+v comes back as %+v", rec.Adds[i], a)
		}
	}
}
