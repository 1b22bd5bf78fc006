package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	testKey  = Key{"web", "c1", "eth0"}
	testTime = time.Date(2026, 12, 1, 16, 3, 28, 123456789, time.UTC)
)

// testAdd is an ADD whose every field holds something that JSON, libcni or Go
// would like to change.
func testAdd() Add {
	var anyByte []byte
	for b := 1; b < 256; b++ {
		anyByte = append(anyByte, byte(b))
	}
	return Add{
		Layout:        "first",
		Args:          append([]byte("IgnoreUnknown=1;K8S_POD_NAME="), anyByte...),
		RuntimeConfig: json.RawMessage(`{"io.x/b":{"rate":9007199254740993,"burst":1e400},"io.x/a":"<>&` + "\u2028" + `"}`),
		CNIVersion:    "1.0.0",
		Path:          "/opt/cni/bin:/usr/lib/cni",
		NetNS:         NetNS{Path: "/run/netns/c1", Device: 4, Inode: 4026532281, BootID: "7e0c", Cookie: 1<<64 - 1},
		Conflist:      []byte("{\r\n\t\"name\": \"web\", \"a\": 1.0\n}\x00\xff\n"),
		Chain:         []json.RawMessage{json.RawMessage(`{"type":"bridge","mtu":1.50}`), json.RawMessage(`{"type":"a<b"}`)},
	}
}

// lines are entries as they stand in a file.
func lines(t testing.TB, entries ...Entry) []byte {
	t.Helper()
	var data []byte
	for _, e := range entries {
		b, err := encode(e, testTime)
		if err != nil {
			t.Fatal(err)
		}
		data = append(data, b...)
	}
	return data
}

// seal makes a line of any JSON.
func seal(body string) string {
	return fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(body), castagnoli), body)
}

// read is add as a reader finds it.
func read(add Add, result string) Add {
	add.Time = testTime
	if result != "" {
		add.Result = json.RawMessage(result)
	}
	return add
}

func TestEntriesComeBackWhole(t *testing.T) {
	t.Parallel()
	first, second := testAdd(), testAdd()
	second.Args = []byte("A=2")
	attempt := Attempt{Plugin: "portmap", Error: "line one\nline two <&>"}
	attemptRead := attempt
	attemptRead.Time = testTime
	result := `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}],"n":9007199254740993,"s":"<>&"}`
	for _, row := range []struct {
		name     string
		entries  []Entry
		adds     []Add
		attempts []Attempt
	}{
		{"an add, to the byte", []Entry{first}, []Add{read(first, "")}, nil},
		{"an add with nothing in it", []Entry{Add{}}, []Add{read(Add{}, "")}, nil},
		{"a result belongs to the add before it", []Entry{first, Result(result), second}, []Add{read(first, result), read(second, "")}, nil},
		{"a result does not reach back past an add", []Entry{first, second, Result(result)}, []Add{read(first, ""), read(second, result)}, nil},
		{"of two results the later one stands", []Entry{first, Result(`{}`), Result(result)}, []Add{read(first, result)}, nil},
		{"a result without an add is nobody's", []Entry{Result(result), first}, []Add{read(first, "")}, nil},
		{"failed replays add up", []Entry{first, attempt, attempt}, []Add{read(first, "")}, []Attempt{attemptRead, attemptRead}},
		{"a result leaves the failed replays alone", []Entry{first, attempt, Result(result)}, []Add{read(first, result)}, []Attempt{attemptRead}},
		{"a new add is given all its tries", []Entry{first, attempt, second}, []Add{read(first, ""), read(second, "")}, nil},
		{"a replay settles everything before it", []Entry{first, Result(result), second, attempt, Replayed{}}, nil, nil},
		{"an add after a replay is owed alone", []Entry{first, attempt, Replayed{}, second}, []Add{read(second, "")}, nil},
		{"a result after a replay is owed by nobody", []Entry{first, Replayed{}, Result(result)}, nil, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			want := Record{Key: testKey, Adds: row.adds, Attempts: row.attempts, added: true}
			if got := decode(testKey, lines(t, row.entries...)); !reflect.DeepEqual(got, want) {
				t.Errorf("decoded\n%+v\nwant\n%+v", got, want)
			} else if got.Corrupt() {
				t.Error("the record is said to be corrupt")
			}
		})
	}
}

func TestRawJSONLosesOnlyItsWhiteSpace(t *testing.T) {
	t.Parallel()
	add := Add{RuntimeConfig: json.RawMessage("{\n  \"a\" : [ 1.0, 1e3, -0, \"\\u003c<\\/\" ]\n}\n")}
	data := lines(t, add, Result(" { \"b\":\r\n0.10 } "))
	if n := bytes.Count(data, []byte("\n")); n != 2 {
		t.Fatalf("2 entries stand on %d lines:\n%s", n, data)
	}
	got := decode(testKey, data).Newest()
	if got == nil || string(got.RuntimeConfig) != `{"a":[1.0,1e3,-0,"\u003c<\/"]}` || string(got.Result) != `{"b":0.10}` {
		t.Errorf("decoded %+v", got)
	}
}

func TestRawTextThatIsNoJSONIsNotWritten(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{`{`, `{} {}`, "\"a\nb\"", `nul`} {
		if b, err := encode(Result(raw), testTime); err == nil {
			t.Errorf("encoding %q gave the line %q, want an error", raw, b)
		}
	}
}

func TestWhatAnotherVersionWrote(t *testing.T) {
	t.Parallel()
	add := Add{CNIVersion: "1.0.0"}
	known := string(lines(t, add))
	for _, row := range []struct {
		name    string
		data    string
		unknown int
		damaged []int
		adds    int
		corrupt bool
	}{
		{"unknown fields are ignored",
			seal(`{"version":1,"kind":"add","time":"2026-12-01T16:03:28Z","new":[{}],"add":{"cniVersion":"1.0.0","chain":null,"new":{"a":1}}}`),
			0, nil, 1, false},
		{"a later version is kept", seal(`{"version":2,"kind":"add","add":{}}`), 1, nil, 0, false},
		{"a later version may give known fields another type", seal(`{"version":2,"kind":7,"time":0,"add":"zip"}`), 1, nil, 0, false},
		{"an unknown kind is kept", seal(`{"version":1,"kind":"lease","time":"2026-12-01T16:03:28Z"}`), 1, nil, 0, false},
		{"an add without its content is kept", seal(`{"version":1,"kind":"add","time":"2026-12-01T16:03:28Z"}`), 1, nil, 0, false},
		{"an attempt without its content is kept", seal(`{"version":1,"kind":"attempt","time":"2026-12-01T16:03:28Z"}`), 1, nil, 0, false},
		{"an entry without a version is kept", seal(`{"kind":"add","add":{}}`), 1, nil, 0, false},
		{"known entries are read between unknown ones",
			seal(`{"version":2}`) + known + seal(`{"version":1,"kind":"lease"}`) + known, 2, nil, 2, false},
		{"a replay does not settle what is unknown",
			known + seal(`{"version":2}`) + string(lines(t, Replayed{})), 1, nil, 0, false},
		{"a checksum that holds does not make it an entry", seal(`[]`) + seal(``) + seal(`{"version":1,"kind":"add","add":3}`), 0, []int{1, 2, 3}, 0, true},
		{"damage and unknown entries together are not corrupt", "x\n" + seal(`{"version":2}`), 1, []int{1}, 0, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			rec := decode(testKey, []byte(row.data))
			if rec.Unknown != row.unknown || !reflect.DeepEqual(rec.Damaged, row.damaged) || len(rec.Adds) != row.adds || rec.Corrupt() != row.corrupt {
				t.Errorf("unknown %d, damaged %v, adds %d, corrupt %v; want %d, %v, %d, %v\n%s",
					rec.Unknown, rec.Damaged, len(rec.Adds), rec.Corrupt(), row.unknown, row.damaged, row.adds, row.corrupt, row.data)
			}
		})
	}
}

func TestNothingReadableIsCorrupt(t *testing.T) {
	t.Parallel()
	whole := lines(t, testAdd())
	for _, row := range []struct {
		name string
		data []byte
	}{
		{"an empty file", nil},
		{"NULs in place of the data, as XFS and ext4 leave them", make([]byte, len(whole))},
		{"NULs behind the checksum", append(bytes.Clone(whole[:9]), make([]byte, len(whole)-9)...)},
		{"a lone line feed", []byte("\n")},
		{"the first half of the only line", whole[:len(whole)/2]},
		{"the second half of the only line", whole[len(whole)/2:]},
		{"a checksum in capitals", append(bytes.ToUpper(whole[:8]), whole[8:]...)},
		{"a file of somebody else", []byte("{\"cniVersion\":\"1.0.0\"}\n")},
		{"a failed replay alone", lines(t, Attempt{Plugin: "bridge"})},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			rec := decode(testKey, row.data)
			if !rec.Corrupt() || rec.Newest() != nil {
				t.Errorf("corrupt %v with %d adds, want a corrupt record without any", rec.Corrupt(), len(rec.Adds))
			}
		})
	}
}

// Whatever a crash cuts off costs the last line at most, and what is appended
// afterwards is whole.
func TestEveryTruncationCostsOnlyTheLastLine(t *testing.T) {
	t.Parallel()
	later := Attempt{Plugin: "later", Error: "e"}
	for _, row := range []struct {
		name   string
		before []Entry
		last   Entry
	}{
		{"an add alone in the file", nil, testAdd()},
		{"an add after an add", []Entry{Add{Path: "/bin"}}, Add{Layout: "wrapped"}},
		{"a result", []Entry{Add{}}, Result(`{"cniVersion":"1.0.0"}`)},
		{"a failed replay", []Entry{Add{}, Result(`{}`)}, Attempt{Plugin: "bridge", Error: "busy"}},
		{"a replay", []Entry{Add{}, Result(`{}`)}, Replayed{}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			before := lines(t, row.before...)
			whole := append(bytes.Clone(before), lines(t, row.last)...)
			f, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for size := len(before); size <= len(whole); size++ {
				survives := whole[:size]
				if size < len(whole)-1 {
					survives = before // the line feed may be missing, but nothing else
				}
				for _, then := range [][]Entry{nil, {later}, {later, Add{Layout: "newest"}}} {
					if err := os.WriteFile(f.Name(), whole[:size], 0o600); err != nil {
						t.Fatal(err)
					}
					want := bytes.TrimSuffix(survives, []byte("\n"))
					if len(want) > 0 {
						want = append(bytes.Clone(want), '\n')
					}
					for _, e := range then {
						b := lines(t, e)
						if err := appendLine(f, b, false); err != nil {
							t.Fatal(err)
						}
						want = append(want, b...)
					}
					data, err := os.ReadFile(f.Name())
					if err != nil {
						t.Fatal(err)
					}
					got, intact := decode(testKey, data), decode(testKey, want)
					torn := len(before) < size && size < len(whole)-1
					if torn != (len(got.Damaged) == 1) {
						t.Fatalf("%d of %d bytes, then %d entries: damaged lines %v", size, len(whole), len(then), got.Damaged)
					}
					got.Damaged = nil
					if !reflect.DeepEqual(got, intact) {
						t.Fatalf("%d of %d bytes, then %d entries:\n%s\nreads as\n%+v\nwant\n%+v", size, len(whole), len(then), data, got, intact)
					}
				}
			}
		})
	}
}

// A flipped bit never makes another entry out of one. It costs the line that
// it stands in; a line feed stands between two, and costs both.
func TestEveryFlippedBitCostsOnlyItsLine(t *testing.T) {
	t.Parallel()
	entries := []Entry{
		Add{Layout: "first", Args: []byte("A=1"), CNIVersion: "1.0.0", Path: "/bin", Chain: []json.RawMessage{json.RawMessage(`{"type":"a"}`)}},
		Result(`{"ips":[]}`),
		Attempt{Plugin: "a", Error: "b"},
		Add{Layout: "wrapped", CNIVersion: "0.4.0"},
		Attempt{Plugin: "c", Error: "d"},
	}
	data := lines(t, entries...)
	// intact is what is left without the lines from one to before another.
	intact := func(from, to int) Record {
		return decode(testKey, lines(t, slices.Concat(entries[:from], entries[min(to, len(entries)):])...))
	}
	start := 0
	for line := range entries {
		end := start + bytes.IndexByte(data[start:], '\n')
		one, two := intact(line, line+1), intact(line, line+2)
		for i := start; i <= end; i++ {
			want := one
			if i == end {
				want = two
			}
			for bit := range 8 {
				flipped := bytes.Clone(data)
				flipped[i] ^= 1 << bit
				got := decode(testKey, flipped)
				if len(got.Damaged) == 0 {
					t.Fatalf("bit %d of byte %d (line %d) is flipped, but no line is damaged:\n%s", bit, i, line+1, flipped)
				}
				got.Damaged = nil
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("bit %d of byte %d (line %d) is flipped:\n%s\nreads as\n%+v\nwant\n%+v", bit, i, line+1, flipped, got, want)
				}
			}
		}
		start = end + 1
	}
}

// The example in the package comment is what this package reads and writes.
func TestTheDocumentedExampleIsReal(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(source), "\n// # Example\n")
	if !found {
		t.Fatal("doc.go has no example")
	}
	var text strings.Builder
	for _, block := range regexp.MustCompile(`(?m)^//\t(.*\n)`).FindAllStringSubmatch(example, -1) {
		text.WriteString(block[1])
	}
	// As the comment says: a line that begins with two spaces goes on.
	data := strings.ReplaceAll(text.String(), "\n  ", "")

	rec := decode(testKey, []byte(data))
	if rec.Damaged != nil || rec.Unknown != 0 || len(rec.Adds) != 1 || len(rec.Attempts) != 1 || rec.Adds[0].Result == nil {
		t.Fatalf("the example is not one add with its result and one failed replay: %+v\n%s", rec, data)
	}
	add, attempt := rec.Adds[0], rec.Attempts[0]
	var again []byte
	for n, e := range []Entry{add, Result(add.Result), attempt} {
		var written struct{ Time time.Time }
		if err := json.Unmarshal([]byte(strings.Split(data, "\n")[n][9:]), &written); err != nil {
			t.Fatal(err)
		}
		b, err := encode(e, written.Time)
		if err != nil {
			t.Fatal(err)
		}
		again = append(again, b...)
	}
	if string(again) != data {
		t.Errorf("the example is\n%s\nbut this package would write\n%s", data, again)
	}
	if got, want := string(add.Args), "IgnoreUnknown=1;K8S_POD_NAME=c1"; got != want {
		t.Errorf("CNI_ARGS of the example are %q, want %q", got, want)
	}
	var conflist struct {
		Name    string
		Plugins []struct{ Type string }
	}
	if err := json.Unmarshal(add.Conflist, &conflist); err != nil || conflist.Name != testKey.Network {
		t.Errorf("the conflist of the example is %q: %v", add.Conflist, err)
	}
}
