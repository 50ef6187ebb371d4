package manifest

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// AsYAML is a text of JSON that YAML reads alike. The API server reads an apply as YAML, in which some characters end a line that may stand in
// a text of JSON: the blanks around them would go, or be what is left of them. Others are not allowed in YAML at all. All of these stand in
// texts alone, where they may be written by their number. A long key has to be marked as one.
func AsYAML(body []byte) []byte {
	var out []byte
	from := 0
	for i := 0; i < len(body); i++ {
		if body[i] < 0x7f {
			continue
		}
		r, size := utf8.DecodeRune(body[i:])
		if readOtherwise(r) {
			out = fmt.Appendf(append(out, body[from:i]...), `\u%04x`, r)
			from = i + size
		}
		i += size - 1
	}
	if from == 0 {
		return markKeys(body)
	}
	return markKeys(append(out, body[from:]...))
}

// maxKey is how long a key may be that YAML tells by the colon behind it: 1024 characters, less the quotes and a rest.
const maxKey = 1000

// markKeys puts the mark of a key before those that are longer.
func markKeys(body []byte) []byte {
	var out []byte
	from := 0
	for i := 0; i < len(body); i++ {
		if body[i] != '"' {
			continue
		}
		began := i
		for i++; i < len(body) && body[i] != '"'; i++ {
			if body[i] == '\\' {
				i++
			}
		}
		if i-began <= maxKey || !bytes.HasPrefix(bytes.TrimLeft(body[min(i+1, len(body)):], " \t\r\n"), []byte(":")) {
			continue
		}
		out = append(append(out, body[from:began]...), "? "...)
		from = began
	}
	if from == 0 {
		return body
	}
	return append(out, body[from:]...)
}

// readOtherwise reports that YAML reads a character otherwise than JSON, or not at all.
func readOtherwise(r rune) bool {
	return r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfffe || r == 0xffff
}
