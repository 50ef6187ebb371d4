package watch

import (
	"bytes"

	"towline.dev/towline/agent/internal/apply"
)

// named is what tells an object that was not decoded; what is not found is empty.
type named struct {
	namespace, name, uid []byte
	version              uint64
}

// identity reads the name, the UID and the version of an object. It may name others with theirs, as its owners, so that they are
// read where they stand: in its metadata. API servers write the UID after the name.
func identity(object []byte) (id named) {
	members(object, func(name, value []byte) bool {
		if string(name) != "metadata" {
			return true
		}
		members(value, func(name, value []byte) bool {
			switch string(name) {
			case "namespace":
				id.namespace = unquoted(value)
			case "name":
				id.name = unquoted(value)
			case "uid":
				id.uid = unquoted(value)
			case "resourceVersion":
				id.version = apply.ParseVersion(string(unquoted(value)))
			}
			return id.uid == nil || id.version == 0
		})
		return false
	})
	return id
}

// unquoted is a text without its quotes, as it stands: neither names nor UIDs nor versions have anything to escape.
func unquoted(value []byte) []byte { return bytes.Trim(value, `"`) }

// members calls f with the members of a JSON object, in order, until f says false or the object ends.
func members(object []byte, f func(name, value []byte) bool) {
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(object, spaces), []byte{'{'})
	for ok {
		rest = bytes.TrimLeft(rest, spaces+",")
		n := textEnd(rest)
		if n == 0 {
			return
		}
		name := rest[1 : n-1]
		rest = bytes.TrimLeft(rest[n:], spaces+":")
		if n = valueEnd(rest); n == 0 || !f(name, rest[:n]) {
			return
		}
		rest = rest[n:]
	}
}

const spaces = " \t\r\n"

// textEnd is where a text in quotes ends that is at the beginning; 0: there is none.
func textEnd(b []byte) int {
	if len(b) == 0 || b[0] != '"' {
		return 0
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}

// valueEnd is where the value ends that is at the beginning; 0: it does not.
func valueEnd(b []byte) int {
	if len(b) > 0 && b[0] == '"' {
		return textEnd(b)
	}
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			n := textEnd(b[i:])
			if n == 0 {
				return 0
			}
			i += n - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i // of a value that is neither, the object that it is in ends here
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
	return 0
}
