package manifest

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// maxUnpacked is how much the texts of one object may unpack to: what is more is not looked into, and not shown.
	maxUnpacked = 8 << 20
	// maxRepeated is how much aliases may add in all texts of one object.
	maxRepeated = 128 << 10
	// maxCompared is how many bytes of annotations are searched for values, each value counted by itself.
	maxCompared = 1 << 30
	// costOfText is what the reading of a text takes beside its bytes.
	costOfText = 128
	// maxTexts is how deep texts are followed that stand in texts.
	maxTexts = 5
	// minSecretText is the shortest text that can hold a Secret with a value.
	minSecretText = 20
)

// text is a text with the values of the Secrets in it masked. One that somebody packed, or that cannot be read, is not shown at all.
func (w *secretWalk) text(s string, texts int) (string, bool) {
	if len(s) < minSecretText {
		return s, false
	}
	if plain, packed := w.unpack(s); plain != s {
		_, masked := w.text(plain, texts+1)
		return replaced(s, masked || packed && plain == "" && w.room <= 0)
	}
	if !speaks(s) {
		return s, false
	}
	if w.room -= len(s) + costOfText; w.room < 0 {
		return hiddenText, true
	}
	values, err := w.read(s)
	if errors.Is(err, errTooMuch) {
		return hiddenText, true
	}
	if err != nil || texts >= maxTexts {
		return replaced(s, kindOfSecret.MatchString(s) && fieldOfValues.MatchString(s))
	}
	masked, before := false, len(w.found)
	for i, v := range values {
		var is bool
		if values[i], is = w.value(v, texts+1); is {
			masked = true
		}
	}
	if texts == 0 {
		w.texts = append(w.texts, textOf{s, before, len(w.found)})
	}
	if masked {
		return w.written(s, values), true
	}
	comments := strings.Join(commentLine.FindAllString(s, -1), "\n")
	return replaced(s, kindOfSecret.MatchString(comments) && fieldOfValues.MatchString(comments))
}

func replaced(s string, hidden bool) (string, bool) {
	if hidden {
		return hiddenText, true
	}
	return s, false
}

// speaks reports that a text may say of what kind a Secret is.
func speaks(s string) bool {
	return strings.Contains(s, "Secret") || strings.Contains(strings.ToLower(s), "secret")
}

var (
	kindOfSecret  = regexp.MustCompile(`(?i)\bkind\\*["']?\s*:\s*\\*["']?secret(list)?\b`)
	fieldOfValues = regexp.MustCompile(`(?i)\b(data|stringData)\\*["']?\s*:`)
	commentLine   = regexp.MustCompile(`(?m)^[ \t]*#.*$`)
)

var (
	errNoObject = errors.New("is neither a map nor a list")
	errTooMuch  = errors.New("repeats more than is looked into")
)

// read are the documents of a text in YAML or JSON.
func (w *secretWalk) read(s string) ([]any, error) {
	before := w.repeats.spent
	parsed, err := readDocuments("text", []byte(s), w.repeats)
	if err != nil && w.repeats.spent > max(before, w.repeats.limit) {
		return nil, errTooMuch
	}
	if err != nil {
		return nil, err
	}
	var out []any
	for _, p := range parsed {
		switch v := p.value.(type) {
		case map[string]any, []any:
			out = append(out, v)
		case nil:
		case string:
			if v == s {
				return nil, errNoObject
			}
			out = append(out, v)
		default:
			return nil, errNoObject
		}
	}
	return out, nil
}

// written are documents as text, JSON where they were.
func (w *secretWalk) written(before string, values []any) string {
	out := asText(before, values)
	if w.room -= len(out); w.room < 0 {
		return hiddenText
	}
	return out
}

func asText(before string, values []any) string {
	if len(values) == 1 && json.Valid([]byte(before)) {
		return string(appendValue(nil, values[0]))
	}
	var out bytes.Buffer
	enc := newEncoder(&out)
	for _, v := range values {
		if err := enc.Encode(v); err != nil {
			return hiddenText
		}
	}
	return out.String()
}

// gather notes a copy of a Secret that an annotation keeps.
func (w *secretWalk) gather(text string, texts int) {
	if texts >= maxTexts || !isJSONText(text) {
		return
	}
	if m, err := Decode([]byte(text)); err == nil {
		w.secret(m, true, texts+1)
	}
}

// isJSONText reports that a text begins as an object or a list of JSON does: it may be cut short.
func isJSONText(s string) bool {
	s = strings.TrimSpace(s)
	return s != "" && (s[0] == '{' || s[0] == '[')
}

// magics begin what is compressed: gzip, zip, zstd, bzip2, xz, and zlib at its usual levels.
var magics = []string{"\x1f\x8b", "PK\x03\x04", "\x28\xb5\x2f\xfd", "BZh", "\xfd7zXZ", "\x78\x01", "\x78\x5e", "\x78\x9c", "\x78\xda"}

// unpack is what a text is in base64, if that is text, and unpacked if it is compressed. packed: it is compressed; plain is empty if it cannot be
// read.
func (w *secretWalk) unpack(s string) (plain string, packed bool) {
	raw, err := decoded(s)
	if err != nil || len(s) < minSecretText {
		return s, false
	}
	if slices.ContainsFunc(magics, func(magic string) bool { return strings.HasPrefix(raw, magic) }) {
		return w.gunzip(raw), true
	}
	if !utf8.ValidString(raw) {
		return s, false
	}
	return raw, false
}

func decoded(s string) (string, error) {
	if strings.ContainsAny(s, " :{.,\"") {
		return "", base64.CorruptInputError(0)
	}
	var out []byte
	var err error
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if out, err = enc.DecodeString(s); err == nil {
			return string(out), nil
		}
	}
	return "", err
}

func (w *secretWalk) gunzip(raw string) string {
	r, err := gzip.NewReader(strings.NewReader(raw))
	if err != nil {
		return ""
	}
	out, err := io.ReadAll(io.LimitReader(r, int64(max(0, w.room))+1))
	w.room -= len(out)
	if err != nil || w.room < 0 {
		return ""
	}
	return string(out)
}
