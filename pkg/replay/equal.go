package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// SameArgs compares two CNI_ARGS as sets of pairs: containerd shuffles them on
// every call.
func SameArgs(a, b string) bool {
	pairs := func(s string) []string {
		return slices.Compact(slices.Sorted(strings.SplitSeq(s, ";")))
	}
	return slices.Equal(pairs(a), pairs(b))
}

// sameJSON compares two JSON texts as values. Text that is no JSON equals
// nothing.
func sameJSON(a, b json.RawMessage) bool {
	x, errX := decodeJSON(a)
	y, errY := decodeJSON(b)
	return errX == nil && errY == nil && sameValue(x, y)
}

// jsonSpace is what JSON takes for white space (RFC 8259, section 2).
const jsonSpace = " \t\r\n"

func decodeJSON(raw json.RawMessage) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err = dec.Decode(&v); err == nil && len(bytes.Trim(raw[dec.InputOffset():], jsonSpace)) > 0 {
		err = errors.New("more than one JSON value")
	}
	return v, err
}

func sameValue(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, sameValue)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameValue)
	case json.Number:
		b, ok := b.(json.Number)
		return ok && sameNumber(a.String(), b.String())
	default:
		return a == b
	}
}

// sameNumber compares decimal numbers exactly, at any size: 1e3 is 1000, and
// 9007199254740993 is not 9007199254740992.
func sameNumber(a, b string) bool {
	x, okX := parseNumber(a)
	y, okY := parseNumber(b)
	return a == b || okX && okY && x == y
}

// number is 0.digits * 10^exponent, without zeros at either end of digits.
type number struct {
	negative bool
	digits   string
	exponent int64
}

func parseNumber(s string) (n number, ok bool) {
	s, n.negative = strings.CutPrefix(s, "-")
	mantissa, exponent, found := strings.Cut(strings.ToLower(s), "e")
	if found {
		var err error
		if n.exponent, err = strconv.ParseInt(exponent, 10, 32); err != nil {
			return n, false
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return number{}, true
	}
	n.exponent += int64(len(whole) - (len(whole+fraction) - len(digits)))
	n.digits = strings.TrimRight(digits, "0")
	return n, true
}
