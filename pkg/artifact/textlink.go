package artifact

import (
	"path"
	"strings"
)

// MaxLinkBytes bounds the path in a symbolic link.
const MaxLinkBytes = 4096

// TextLink is where a file leads that holds nothing but a relative path, as a symbolic link does that was copied as text, as git does where there
// are none: a path beside that of the file, which begins with .. where it leads out of the source. Empty: it is none.
func TextLink(name string, data []byte) string {
	text := string(data)
	if text == "" || len(text) > MaxLinkBytes || strings.HasPrefix(text, "/") || strings.ContainsAny(text, "\n\r\t \\\x00") {
		return ""
	}
	return path.Join(path.Dir(name), text)
}

// Outside reports that a path leads out of the source.
func Outside(to string) bool { return to == ".." || strings.HasPrefix(to, "../") }
