package manifest

import (
	"fmt"
	"unicode/utf8"
)

// AsYAML is a text of JSON that YAML reads alike. The API server reads an apply as YAML, in which some characters end a line that may stand in
// a text of JSON: the blanks around them would go, or be what is left of them. Others are not allowed in YAML at all. All of these stand in
// texts alone, where they may be written by their number.
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
		return body
	}
	return append(out, body[from:]...)
}

// readOtherwise reports that YAML reads a character otherwise than JSON, or not at all.
func readOtherwise(r rune) bool {
	return r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfffe || r == 0xffff
}
