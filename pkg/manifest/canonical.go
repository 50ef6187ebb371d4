package manifest

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Canonical is the one JSON text of an object: sorted keys, no white space, no escapes but those that JSON needs.
// Decode reads it back to a value with the same canonical text. It takes the values that Decode makes and Go's other
// integers, and panics on anything else, which is a mistake in the program.
func Canonical(obj map[string]any) []byte {
	return appendValue(make([]byte, 0, 1024), obj)
}

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case string:
		return appendString(b, v)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int32:
		return strconv.AppendInt(b, int64(v), 10)
	case float64:
		return appendFloat(b, v)
	case []any:
		return appendList(b, v)
	case map[string]any:
		return appendMap(b, v)
	default:
		panic(fmt.Sprintf("manifest.Canonical: a %T is no JSON value", v))
	}
}

func appendList(b []byte, list []any) []byte {
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, v)
	}
	return append(b, ']')
}

func appendMap(b []byte, m map[string]any) []byte {
	b = append(b, '{')
	for i, key := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, key), ':')
		b = appendValue(b, m[key])
	}
	return append(b, '}')
}

// appendFloat writes 1.0 as 1, as Kubernetes does, and what would read as an integer too large for 64 bits with an
// exponent.
func appendFloat(b []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		panic("manifest.Canonical: NaN and infinity are no JSON values")
	}
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return strconv.AppendInt(b, int64(f), 10)
	}
	if abs := math.Abs(f); abs < 1e-6 || abs >= 1<<53 {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	return strconv.AppendFloat(b, f, 'f', -1, 64)
}

const hexDigits = "0123456789abcdef"

func appendString(b []byte, s string) []byte {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\ufffd")
	}
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(append(b, s[start:]...), '"')
}
