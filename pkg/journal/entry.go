package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"time"
)

// FormatVersion is the version of the entries that this package writes, and
// the only one that it reads.
const FormatVersion = 1

// The kinds of entries.
const (
	kindAdd      = "add"
	kindResult   = "result"
	kindAttempt  = "attempt"
	kindReplayed = "replayed"
)

// Entry is what can be appended: [Add], [Result], [Attempt] or [Replayed].
type Entry interface{ line(now time.Time) line }

// Add is what the runtime gave on ADD, and what was found on the node then.
type Add struct {
	// Layout is the stanza's: "first" or "wrapped".
	Layout string `json:"layout"`
	// Args is CNI_ARGS as it stood in the environment. An environment
	// variable need not be UTF-8, hence bytes.
	Args []byte `json:"args,omitempty"`
	// RuntimeConfig is the capability args as they came, numbers unharmed.
	RuntimeConfig json.RawMessage `json:"runtimeConfig,omitempty"`
	CNIVersion    string          `json:"cniVersion"`
	// Path is CNI_PATH.
	Path  string `json:"path"`
	NetNS NetNS  `json:"netns"`
	// Conflist is the configuration file as found, to the byte. libcni's
	// cache holds the same bytes.
	Conflist []byte `json:"conflist,omitempty"`
	// Chain is each plugin's configuration as libcni resolved it, in ADD
	// order, without our own stanzas.
	Chain []json.RawMessage `json:"chain"`

	// Time is when the entry was written. Append sets it.
	Time time.Time `json:"-"`
	// Result is the final result, nil if none was journaled. It is an entry
	// of its own: see [Result].
	Result json.RawMessage `json:"-"`
}

// NetNS is the identity of a network namespace as pkg/netnsid takes it.
type NetNS struct {
	Path   string `json:"path"`
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	BootID string `json:"bootID"`
	Cookie uint64 `json:"cookie,omitempty"`
}

// Result is the chain's final result, for the Add before it.
type Result json.RawMessage

// Attempt is a replay that failed.
type Attempt struct {
	// Plugin is the type of the plugin that failed.
	Plugin string `json:"plugin"`
	// Error is what it said.
	Error string `json:"error"`

	// Time is when the entry was written. Append sets it.
	Time time.Time `json:"-"`
}

// Replayed says that nothing before it is owed any more.
type Replayed struct{}

// line is an entry as it stands in a file.
type line struct {
	Version int             `json:"version"`
	Kind    string          `json:"kind"`
	Time    time.Time       `json:"time"`
	Add     *Add            `json:"add,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Attempt *Attempt        `json:"attempt,omitempty"`
}

func (a Add) line(now time.Time) line {
	return line{Version: FormatVersion, Kind: kindAdd, Time: now, Add: &a}
}

func (r Result) line(now time.Time) line {
	return line{Version: FormatVersion, Kind: kindResult, Time: now, Result: json.RawMessage(r)}
}

func (a Attempt) line(now time.Time) line {
	return line{Version: FormatVersion, Kind: kindAttempt, Time: now, Attempt: &a}
}

func (Replayed) line(now time.Time) line {
	return line{Version: FormatVersion, Kind: kindReplayed, Time: now}
}

// durable reports whether an entry must be on the disk before Append returns.
func durable(e Entry) bool {
	switch e.(type) {
	case Add, Result:
		return true
	default:
		return false
	}
}

// castagnoli is the table of that polynomial. crc32.MakeTable would make the
// twenty tables of its fastest way besides, at each start of the process: a tenth of what
// an ADD costs, for a few hundred bytes.
var castagnoli = func() *crc32.Table {
	var t crc32.Table
	for i := range t {
		sum := uint32(i)
		for range 8 {
			sum = sum>>1 ^ crc32.Castagnoli*(sum&1)
		}
		t[i] = sum
	}
	return &t
}()

// encode returns the line of e with its checksum and line feed.
func encode(e Entry, now time.Time) ([]byte, error) {
	var buf bytes.Buffer
	buf.WriteString("00000000 ")
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // what came raw stays as it came
	if err := enc.Encode(e.line(now)); err != nil {
		return nil, fmt.Errorf("encoding a journal entry: %w", err)
	}
	b := buf.Bytes()
	sum := crc32.Checksum(b[9:len(b)-1], castagnoli)
	copy(b, fmt.Sprintf("%08x", sum))
	return b, nil
}

// Record is what a file says.
type Record struct {
	Key Key
	// Adds are the ADDs that are still owed, oldest first: those after the
	// last replayed entry.
	Adds []Add
	// Attempts are the replays that have failed since the last ADD.
	Attempts []Attempt
	// Unknown counts the entries of a version or kind that this package does
	// not know. A file that has any must stay.
	Unknown int
	// Damaged are the numbers, from 1, of lines whose checksum does not hold.
	Damaged []int

	added bool // there was a readable add, owed or not
}

// Corrupt reports that no add in the file can be read, and that nothing in it
// could be somebody else's.
func (r Record) Corrupt() bool { return !r.added && r.Unknown == 0 }

// Newest returns the ADD that is owed and was written last, nil if none is.
func (r Record) Newest() *Add {
	if len(r.Adds) == 0 {
		return nil
	}
	return &r.Adds[len(r.Adds)-1]
}

// decode reads the content of a file.
func decode(key Key, data []byte) Record {
	rec := Record{Key: key}
	for n := 1; len(data) > 0; n++ {
		var raw []byte
		raw, data, _ = bytes.Cut(data, []byte("\n"))
		l, ok := decodeLine(raw)
		if !ok {
			rec.Damaged = append(rec.Damaged, n)
			continue
		}
		rec.take(l)
	}
	return rec
}

func decodeLine(raw []byte) (l line, ok bool) {
	if len(raw) < 10 || raw[8] != ' ' {
		return l, false
	}
	body := raw[9:]
	if want := fmt.Sprintf("%08x", crc32.Checksum(body, castagnoli)); want != string(raw[:8]) {
		return l, false
	}
	if json.Unmarshal(body, &l) == nil && l.Version == FormatVersion {
		return l, true
	}
	// Of another version, nothing else may be taken for known.
	var v struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(body, &v) != nil || v.Version == FormatVersion {
		return line{}, false
	}
	return line{Version: v.Version}, true
}

// take applies the entries of a file one after the other.
func (r *Record) take(l line) {
	switch {
	case l.Version != FormatVersion:
		r.Unknown++
	case l.Kind == kindAdd && l.Add != nil:
		l.Add.Time = l.Time
		r.Adds = append(r.Adds, *l.Add)
		r.Attempts = nil
		r.added = true
	case l.Kind == kindResult:
		if a := r.Newest(); a != nil {
			a.Result = l.Result
		}
	case l.Kind == kindAttempt && l.Attempt != nil:
		l.Attempt.Time = l.Time
		r.Attempts = append(r.Attempts, *l.Attempt)
	case l.Kind == kindReplayed:
		r.Adds, r.Attempts = nil, nil
	default:
		r.Unknown++
	}
}
