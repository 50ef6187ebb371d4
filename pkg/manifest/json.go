package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// Decode reads one JSON object, such as Object.Raw: numbers are int64 or float64, keys may not repeat.
func Decode(raw []byte) (map[string]any, error) {
	values, err := readJSON("object", raw, 0)
	if err != nil {
		return nil, err
	}
	if len(values) != 1 {
		return nil, fleet.Invalidf("object", "has %d JSON values, not one", len(values))
	}
	m, ok := values[0].value.(map[string]any)
	if !ok {
		return nil, fleet.Invalidf("object", "is %s, not a map", typeName(values[0].value))
	}
	return m, nil
}

// readJSON reads one JSON value after the other; base is how many lines are before the text.
func readJSON(name string, data []byte, base int) ([]parsed, error) {
	r := &jsonReader{file: name, base: base, data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	r.dec.UseNumber()
	var out []parsed
	for {
		t, err := r.token()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		p := parsed{line: r.line()}
		r.items = &p.items
		if p.value, err = r.value(t, 1); err != nil {
			return nil, err
		}
		if out = append(out, p); len(out) > MaxDocuments {
			return nil, r.fail("begins document %d; at most %d are allowed: split the file", len(out), MaxDocuments)
		}
	}
}

type jsonReader struct {
	file  string
	base  int
	data  []byte
	dec   *json.Decoder
	items *[]int // where the lines of the root's items go

	lines, counted int64 // line breaks in data[:counted]
}

// line is the line of the token that was read last.
func (r *jsonReader) line() int {
	at := min(r.dec.InputOffset(), int64(len(r.data)))
	if at > r.counted {
		r.lines += int64(bytes.Count(r.data[r.counted:at], []byte("\n")))
		r.counted = at
	}
	return r.base + int(r.lines) + 1
}

func (r *jsonReader) fail(format string, args ...any) error {
	return fleet.Invalidf(place{r.file, r.line()}.String(), format, args...)
}

func (r *jsonReader) token() (json.Token, error) {
	t, err := r.dec.Token()
	if err == nil || errors.Is(err, io.EOF) {
		return t, err
	}
	line := r.line()
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		line = r.base + 1 + bytes.Count(r.data[:min(int(syntax.Offset), len(r.data))], []byte("\n"))
	}
	return nil, fleet.Invalid(place{r.file, line}.String(), "is not JSON: "+err.Error())
}

// inner is token inside a value, where the end of the text is an error.
func (r *jsonReader) inner() (json.Token, error) {
	t, err := r.token()
	if errors.Is(err, io.EOF) {
		return nil, r.fail("is not JSON: the text ends inside a value")
	}
	return t, err
}

func (r *jsonReader) value(t json.Token, depth int) (any, error) {
	switch t := t.(type) {
	case json.Delim:
		if depth > MaxDepth {
			return nil, r.fail("is more than %d levels deep", MaxDepth)
		}
		if t == '{' {
			return r.object(depth)
		}
		return r.array(depth, nil)
	case json.Number:
		v, err := jsonNumber(string(t))
		if err != nil {
			return nil, r.fail("%s", err)
		}
		return v, nil
	default:
		return t, nil
	}
}

func (r *jsonReader) object(depth int) (any, error) {
	out := map[string]any{}
	for {
		t, err := r.inner()
		if err != nil {
			return nil, err
		}
		key, ok := t.(string)
		if !ok {
			return out, nil
		}
		if _, twice := out[key]; twice {
			return nil, r.fail("key %q is given twice", clip(key))
		}
		if t, err = r.inner(); err != nil {
			return nil, err
		}
		if depth == 1 && key == "items" && t == json.Delim('[') {
			out[key], err = r.array(depth+1, r.items)
		} else {
			out[key], err = r.value(t, depth+1)
		}
		if err != nil {
			return nil, err
		}
	}
}

func (r *jsonReader) array(depth int, lines *[]int) (any, error) {
	out := []any{}
	for {
		t, err := r.inner()
		if err != nil {
			return nil, err
		}
		if t == json.Delim(']') {
			return out, nil
		}
		if lines != nil {
			*lines = append(*lines, r.line())
		}
		v, err := r.value(t, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
}

// jsonNumber keeps an integer as int64 and all else as float64, if that loses nothing but digits behind the point.
func jsonNumber(s string) (any, error) {
	i, err := strconv.ParseInt(s, 10, 64)
	if err == nil {
		return i, nil
	}
	if !strings.ContainsAny(s, ".eE") {
		return nil, errTooLarge
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) {
		return nil, errTooLarge
	}
	return f, nil
}
