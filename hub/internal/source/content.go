package source

import (
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"strings"

	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/manifest"
)

// packings are formats that are recognised only to say what to do instead.
var packings = []struct {
	name, magic string
	at          int
}{
	{"a zip archive", "PK\x03\x04", 0},
	{"packed with zstd", "\x28\xb5\x2f\xfd", 0},
	{"packed with xz", "\xfd7zXZ\x00", 0},
	{"packed with bzip2", "BZh", 0},
	{"a tar without gzip", "ustar", 257},
}

// gzipped reports that a body is packed with gzip, which has a sum at its end, so that what is cut off is seen.
func gzipped(body []byte) bool { return bytes.HasPrefix(body, []byte{0x1f, 0x8b}) }

// open turns a downloaded body into files, by what it is and not by what its name or the server says.
func open(ctx context.Context, body []byte, from *url.URL, tempDir string) (map[string][]byte, error) {
	if gzipped(body) {
		return unpack(ctx, body, tempDir)
	}
	if saysNothing(body) {
		return nil, refused("is empty: check what the server serves, and have it serve a comment where it is to have nothing")
	}
	for _, p := range packings {
		if len(body) > p.at && bytes.HasPrefix(body[p.at:], []byte(p.magic)) && !manifest.IsText(body) {
			return nil, refused("is %s: serve a YAML or JSON file or a tar.gz", p.name)
		}
	}
	if !manifest.IsText(body) {
		return nil, refused("is neither YAML, JSON nor a tar.gz: check source.http.url")
	}
	if bytes.HasPrefix(bytes.TrimSpace(bytes.TrimPrefix(body, []byte("\ufeff"))), []byte("<")) {
		return nil, refused("is an HTML or XML page, perhaps one to log in: serve a YAML or JSON file or a tar.gz")
	}
	return map[string][]byte{fileName(body, from): body}, nil
}

// saysNothing reports white space, separators and nulls alone, as a program prints them that found nothing, or failed. Whoever means it writes a
// comment.
func saysNothing(body []byte) bool {
	for word := range bytes.FieldsSeq(bytes.TrimPrefix(body, []byte("\ufeff"))) {
		if !slices.Contains([]string{"---", "...", "null", "~"}, string(word)) {
			return false
		}
	}
	return true
}

// fileName is the URL's last element if it says what the file is; messages about the content name it.
func fileName(body []byte, from *url.URL) string {
	base := path.Base(from.Path)
	known := slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(path.Ext(base)))
	if known && artifact.BadName(base) == "" && !strings.HasPrefix(base, ".") {
		return base
	}
	if json.Valid(body) {
		return "manifest.json"
	}
	return "manifest.yaml"
}
