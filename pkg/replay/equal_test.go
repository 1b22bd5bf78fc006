package replay

import (
	"bytes"
	"encoding/json"
	"math/big"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSameArgs(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, a, b string
		want       bool
	}{
		{"none", "", "", true},
		{"the same", "A=1;B=2", "A=1;B=2", true},
		{"shuffled, as containerd does", "IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_UID=u", "K8S_POD_UID=u;IgnoreUnknown=1;K8S_POD_NAME=p", true},
		{"a pair twice", "A=1;A=1;B=2", "B=2;A=1", true},
		{"bytes that are not UTF-8", "A=\xff;B=\xfe", "B=\xfe;A=\xff", true},
		{"a value that has an '='", "A=b=c;D=", "D=;A=b=c", true},

		{"none and some", "", "A=1", false},
		{"one more", "A=1", "A=1;B=2", false},
		{"another value", "A=1;B=2", "A=1;B=3", false},
		{"values swapped", "A=1;B=2", "A=2;B=1", false},
		{"another key", "A=1", "a=1", false},
		{"an empty value and none", "A=", "A", false},
		{"other bytes that are not UTF-8", "A=\xff", "A=\xfe", false},
		{"bytes and what they are often replaced with", "A=\xff", "A=\ufffd", false},
		{"white space", "A=1", "A=1 ", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if SameArgs(row.a, row.b) != row.want || SameArgs(row.b, row.a) != row.want {
				t.Errorf("SameArgs(%q, %q) is not %v, or not the other way round", row.a, row.b, row.want)
			}
		})
	}
}

func TestSameJSON(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, a, b string
		want       bool
	}{
		{"white space and the order of keys", `{"a":1,"b":[true,null]}`, " {\n\"b\" : [ true , null ],\t\"a\":1 }\n", true},
		{"escapes", `"\u003c\/\u00e9"`, `"</é"`, true},
		{"escaped keys", `{"\u0061":1}`, `{"a":1}`, true},
		{"numbers written otherwise", `[1,1000,0.5]`, `[1.0,1e3,5E-1]`, true},
		{"empty and empty", `{}`, `{}`, true},
		{"null and null", `null`, `null`, true},

		{"the order of a list", `[1,2]`, `[2,1]`, false},
		{"a longer list", `[1]`, `[1,1]`, false},
		{"one key more", `{"a":1}`, `{"a":1,"b":null}`, false},
		{"another key with a null", `{"a":null}`, `{"b":null}`, false},
		{"a null and nothing", `{"a":null}`, `{}`, false},
		{"an empty list and an empty object", `[]`, `{}`, false},
		{"an empty list and null", `[]`, `null`, false},
		{"false and null", `false`, `null`, false},
		{"a number and a string", `1`, `"1"`, false},
		{"a number and a boolean", `1`, `true`, false},
		{"an object and a string", `{}`, `"{}"`, false},
		{"strings in another case", `"a"`, `"A"`, false},
		{"integers beyond 2^53", `{"a":[9007199254740993]}`, `{"a":[9007199254740992]}`, false},

		{"what is no JSON, with itself", `{`, `{`, false},
		{"nothing, with itself", ``, ``, false},
		{"nothing and null", ``, `null`, false},
		{"JSON with something behind it, with itself", `{} {}`, `{} {}`, false},
		{"JSON, and the same with something behind it", `1`, `1 2`, false},
		{"JSON, and the same with garbage behind it", `{}`, `{}}`, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if a, b := json.RawMessage(row.a), json.RawMessage(row.b); sameJSON(a, b) != row.want || sameJSON(b, a) != row.want {
				t.Errorf("sameJSON(%s, %s) is not %v, or not the other way round", a, b, row.want)
			}
		})
	}
}

func TestSameNumber(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, a, b string
		want       bool
	}{
		{"with an exponent", "1e3", "1000", true},
		{"with a capital and a sign", "1E+3", "1000", true},
		{"with a negative exponent", "125e-2", "1.25", true},
		{"with a fraction of zeros", "1.0", "1", true},
		{"zeros in the middle stay", "1.0100e2", "101", true},
		{"below one", "0.001", "1e-3", true},
		{"negative", "-1e3", "-1000.00", true},
		{"minus zero", "-0", "0", true},
		{"zero with any exponent", "0e999999999", "0.000", true},
		{"an exponent with zeros in front", "1e0003", "1000", true},
		{"very large", "1e1000000000", "10e999999999", true},
		{"very small", "1e-1000000000", "0.1e-999999999", true},
		{"an exponent beyond any use, with itself", "1e99999999999999999999", "1e99999999999999999999", true},

		{"beyond 2^53", "9007199254740993", "9007199254740992", false},
		{"beyond a float's digits", "0.1000000000000000000001", "0.1", false},
		{"another sign", "-1", "1", false},
		{"ten times as much", "1e3", "1e2", false},
		{"a digit moved", "1001", "1010", false},
		{"zero and nearly zero", "0", "1e-400", false},
		{"both beyond a float's range", "1e400", "1e401", false},
		{"both below a float's range", "1e-400", "1e-401", false},
		{"an exponent beyond any use, with another", "1e99999999999999999999", "1e99999999999999999998", false},
		{"an exponent beyond any use, with zero", "1e-99999999999999999999", "0", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			if sameNumber(row.a, row.b) != row.want || sameNumber(row.b, row.a) != row.want {
				t.Errorf("sameNumber(%s, %s) is not %v, or not the other way round", row.a, row.b, row.want)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("comparing %s with %s took %s", row.a, row.b, took)
			}
		})
	}
}

func TestLongNumbersAreComparedQuickly(t *testing.T) {
	t.Parallel()
	zeros := strings.Repeat("0", 1<<20)
	start := time.Now()
	if !sameNumber("1"+zeros, "1e1048576") || !sameNumber("0."+zeros+"1", "1e-1048577") || sameNumber("1"+zeros+"1", "1"+zeros+"0") {
		t.Error("numbers of a million digits are not compared right")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

// math/big is exact too, but takes for ever where an exponent is large.
func FuzzSameNumber(f *testing.F) {
	for _, pair := range [][2]string{
		{"0", "-0"}, {"1e3", "1000"}, {"1.50", "15e-1"}, {"-9007199254740993", "-9007199254740992"},
		{"0.00010", "1E-4"}, {"1e2147483647", "10e2147483646"}, {"1e-2147483648", "1e2147483648"}, {"100e-2", "1"},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		if !isNumber(a) || !isNumber(b) {
			_, _ = parseNumber(a) // must not panic
			return
		}
		got := sameNumber(a, b)
		if got != sameNumber(b, a) || !sameNumber(a, a) {
			t.Errorf("sameNumber(%s, %s) depends on the order, or a number is not itself", a, b)
		}
		for _, s := range []string{a, b} {
			n, ok := parseNumber(s)
			if ok && (strings.HasPrefix(n.digits, "0") || strings.HasSuffix(n.digits, "0") || n.digits == "" && n != (number{})) {
				t.Errorf("parseNumber(%s) = %+v, which is not the only way to say it", s, n)
			}
			if !ok || n.exponent > 1000 || n.exponent < -1000 {
				return
			}
			if len(s) > 2000 {
				return
			}
		}
		x, okX := new(big.Rat).SetString(a)
		y, okY := new(big.Rat).SetString(b)
		if okX && okY && got != (x.Cmp(y) == 0) {
			t.Errorf("sameNumber(%s, %s) = %v, math/big says %v", a, b, got, !got)
		}
	})
}

func isNumber(s string) bool {
	var n json.Number
	return s != "" && strings.Trim(s, "-+.eE0123456789") == "" && json.Unmarshal([]byte(s), &n) == nil
}

// CNI_ARGS are sets of pairs: neither order nor repetition counts, and nothing
// else is overlooked.
func FuzzSameArgs(f *testing.F) {
	for _, pair := range [][2]string{
		{"", ""}, {"", ";"}, {"A=1;B=2", "B=2;A=1"}, {"A=1;A=1", "A=1"}, {"A=1;2", "2;A=1"}, {"A=", "A"}, {"A=\xff", "A=\ufffd"},
		{"IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_UID=u", "K8S_POD_UID=u;IgnoreUnknown=1;K8S_POD_NAME=p"},
	} {
		f.Add(pair[0], pair[1], int64(len(pair[0])))
	}
	f.Fuzz(func(t *testing.T, a, b string, seed int64) {
		set := func(args string) map[string]bool {
			pairs := make(map[string]bool)
			for _, pair := range strings.Split(args, ";") {
				pairs[pair] = true
			}
			return pairs
		}
		want := reflect.DeepEqual(set(a), set(b))
		if got := SameArgs(a, b); got != want || SameArgs(b, a) != want {
			t.Errorf("SameArgs(%q, %q) is not %v, or not the other way round", a, b, want)
		}
		pairs := strings.Split(a, ";")
		random := rand.New(rand.NewSource(seed))
		random.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
		shuffled := strings.Join(pairs, ";")
		if !SameArgs(a, a) || !SameArgs(a, shuffled) || !SameArgs(a, shuffled+";"+pairs[0]) || SameArgs(shuffled, b) != want {
			t.Errorf("SameArgs: %q is not itself, or not %q", a, shuffled)
		}
		if !set(a)["new=1"] && (SameArgs(a, a+";new=1") || SameArgs("new=1;"+a, a)) {
			t.Errorf("SameArgs(%q) overlooks a pair", a)
		}
		i := random.Intn(len(pairs))
		pairs = slices.Delete(pairs, i, i+1)
		if left := strings.Join(pairs, ";"); len(pairs) > 0 && SameArgs(a, left) != reflect.DeepEqual(set(a), set(left)) {
			t.Errorf("SameArgs(%q, %q) overlooks that a pair is lost", a, left)
		}
	})
}

// However JSON is written, it is the same value; and what is the same value has
// the same floats and strings in the same places.
func FuzzSameJSON(f *testing.F) {
	for _, pair := range [][2]string{
		{`{"a":1,"b":[true,null]}`, ` { "b":[true,null ],"a":1.0}`}, {`"\u003c"`, `"<"`}, {`[1,2]`, `[2,1]`}, {`{"a":null}`, `{}`},
		{`[9007199254740993]`, `[9007199254740992]`}, {`1e400`, `10e399`}, {`{"a":1,"a":2}`, `{"a":2}`}, {`{} {}`, `{}`}, {`"\ud800"`, `"\ufffd"`}, {``, `null`},
	} {
		f.Add([]byte(pair[0]), []byte(pair[1]))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		got := sameJSON(a, b)
		if got != sameJSON(b, a) {
			t.Errorf("sameJSON(%s, %s) depends on the order", a, b)
		}
		if valid := json.Valid(a); sameJSON(a, a) != valid || got && (!valid || !json.Valid(b)) {
			t.Errorf("sameJSON takes %s or %s for what it is not", a, b)
		}
		if value, err := decodeJSON(a); err == nil {
			var indented bytes.Buffer
			written, err := json.Marshal(value)
			if err != nil || json.Indent(&indented, a, "\t", "  ") != nil {
				t.Fatalf("%s cannot be written again: %v", a, err)
			}
			if !sameJSON(a, written) || !sameJSON(indented.Bytes(), a) || sameJSON(written, b) != got {
				t.Errorf("%s is not what is written of it: %s", a, written)
			}
			if more, err := json.Marshal([]any{value, value}); err != nil || sameJSON(more, a) || sameJSON(more, listOf(a, b)) != got {
				t.Errorf("sameJSON(%s, %s) is another in a list (%v)", a, b, err)
			}
		}
		var x, y any
		if json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && got && !reflect.DeepEqual(x, y) {
			t.Errorf("sameJSON(%s, %s), but they are %v and %v", a, b, x, y)
		}
	})
}

// listOf is a list of two.
func listOf(a, b []byte) []byte { return slices.Concat([]byte("["), a, []byte(","), b, []byte("]")) }
