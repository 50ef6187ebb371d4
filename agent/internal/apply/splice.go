package apply

import (
	"bytes"
	"strconv"

	"towline.dev/towline/pkg/fleet"
)

// splice puts marks and guard into the canonical JSON of an object without reading the rest of it, which is most of the
// work of a body. It gives up, with false, on what has to be read: an object that carries what only the server may say,
// or marks, or that is not as expected.
func splice(text []byte, marks Marks, g Guard) ([]byte, bool) {
	top, ok := members(text, 0)
	if !ok || !plain(marks.Hub, marks.Owner, g.UID, g.ResourceVersion) {
		return nil, false
	}
	if _, has := top["status"]; has {
		return nil, false
	}
	at, has := top["metadata"]
	if !has {
		return nil, false
	}
	meta, ok := members(text, at.start)
	if !ok || len(meta) == 0 {
		return nil, false
	}
	for _, f := range serverFields {
		if _, has := meta[f]; has {
			return nil, false
		}
	}
	front := g.members()
	labels, okLabels := mark(text, meta, "labels", fleet.HubLabel, marks.Hub, &front)
	annotations, okAnnotations := mark(text, meta, "annotations", fleet.OwnerAnnotation, marks.Owner, &front)
	if !okLabels || !okAnnotations {
		return nil, false
	}
	cuts := []insert{{at.start + 1, front}, labels, annotations}
	if cuts[1].at > cuts[2].at {
		cuts[1], cuts[2] = cuts[2], cuts[1]
	}
	out := make([]byte, 0, len(text)+len(front)+256)
	from := 0
	for _, c := range cuts {
		if c.at == 0 {
			continue
		}
		out = append(append(out, text[from:c.at]...), c.text...)
		from = c.at
	}
	return append(out, text[from:]...), true
}

// insert is text that goes in front of a place.
type insert struct {
	at   int
	text []byte
}

// mark adds a key to a map of metadata: into the map if there is one, else as a new map to front.
func mark(text []byte, meta map[string]span, name, key, value string, front *[]byte) (insert, bool) {
	pair := appendPair(nil, key, value)
	at, has := meta[name]
	if !has {
		*front = append(append(append(strconv.AppendQuote(*front, name), ":{"...), pair...), "},"...)
		return insert{}, true
	}
	held, ok := members(text, at.start)
	if _, marked := held[key]; !ok || marked {
		return insert{}, false
	}
	if len(held) > 0 {
		pair = append(pair, ',')
	}
	return insert{at.start + 1, pair}, true
}

// members are the guard's, each with a comma behind it.
func (g Guard) members() []byte {
	var b []byte
	if g.UID != "" {
		b = append(appendPair(b, "uid", g.UID), ',')
	}
	version := g.ResourceVersion
	if g.Absent {
		version = neverVersion
	}
	if version != "" {
		b = append(appendPair(b, "resourceVersion", version), ',')
	}
	return b
}

// plain reports that a quoted text is the same in Go and in JSON.
func plain(texts ...string) bool {
	for _, s := range texts {
		for i := range len(s) {
			if s[i] < ' ' || s[i] > '~' || s[i] == '"' || s[i] == '\\' {
				return false
			}
		}
	}
	return true
}

func appendPair(b []byte, key, value string) []byte {
	return strconv.AppendQuote(append(strconv.AppendQuote(b, key), ':'), value)
}

// span is where a value is in a text.
type span struct{ start, end int }

// members lists the members of the JSON object that begins at a place.
func members(text []byte, at int) (map[string]span, bool) {
	if at >= len(text) || text[at] != '{' {
		return nil, false
	}
	out := map[string]span{}
	for i := at + 1; i < len(text); {
		switch text[i] {
		case '}':
			return out, true
		case ',':
			i++
			continue
		case '"':
		default:
			return nil, false
		}
		end := skip(text, i)
		if end < 0 || end >= len(text) || text[end] != ':' || bytes.IndexByte(text[i:end], '\\') >= 0 {
			return nil, false
		}
		value := skip(text, end+1)
		if value < 0 {
			return nil, false
		}
		out[string(text[i+1:end-1])] = span{end + 1, value}
		i = value
	}
	return nil, false
}

// skip is the place behind the JSON value that begins at i; -1 if it has no end.
func skip(text []byte, i int) int {
	depth := 0
	for ; i < len(text); i++ {
		switch text[i] {
		case '"':
			if i = endOfString(text, i); i < 0 {
				return -1
			}
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // of what is around a number or a word
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
	}
	return -1
}

// endOfString is the place of the quote that ends the string which begins at i; -1 if none does.
func endOfString(text []byte, i int) int {
	for i++; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}
