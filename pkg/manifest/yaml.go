package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"towline.dev/towline/pkg/fleet"
)

// readYAML reads the documents of a file. The text is split first, so that a document is parsed, expanded and freed
// by itself and anchors do not reach into the next one.
func readYAML(name string, data []byte, lastCounts bool) ([]parsed, error) {
	return readDocuments(name, data, &expansion{lastCounts: lastCounts, limit: min(max(MaxExpansion*len(data), minExpansion), MaxTotalBytes)})
}

func readDocuments(name string, data []byte, budget *expansion) ([]parsed, error) {
	var out []parsed
	documents := 0
	for line, rest := 0, data; len(rest) > 0; {
		var text []byte
		text, rest = cutDocument(rest)
		if documents++; documents > MaxDocuments {
			return nil, fleet.Invalidf(place{name, line + 1}.String(), "begins document %d; at most %d are allowed: split the file", documents, MaxDocuments)
		}
		found, err := readDocument(name, text, line, budget)
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
		line += bytes.Count(text, []byte("\n"))
	}
	return out, nil
}

// cutDocument cuts at the next line that begins a document: "---" alone or followed by white space.
func cutDocument(data []byte) (text, rest []byte) {
	for at := 0; ; {
		next := bytes.Index(data[at:], []byte("\n---"))
		if next < 0 {
			return data, nil
		}
		at += next + 1
		if len(data) == at+3 || bytes.IndexByte([]byte(" \t\r\n"), data[at+3]) >= 0 {
			return data[:at], data[at:]
		}
	}
}

func readDocument(name string, text []byte, line int, budget *expansion) ([]parsed, error) {
	first, blank := firstLine(text)
	if blank {
		return nil, nil
	}
	at := place{name, line + 1}.String()
	if len(text) > maxDocumentBytes {
		return nil, fleet.Invalidf(at, "begins a document of more than %d MiB: split it", maxDocumentBytes>>20)
	}
	if why := Unreadable(text); why != "" {
		return nil, fleet.Invalid(at, "begins a document that "+why+": split it")
	}
	if strings.HasPrefix(first, "%TAG") {
		return nil, fleet.Invalid(at, "tags are not allowed: remove the %TAG line and the tags")
	}
	if body := bytes.TrimPrefix(text, []byte("---")); json.Valid(body) {
		return readJSON(name, body, line)
	}
	return parseYAML(name, text, line, budget)
}

// lineEnds end a line of YAML 1.1: a carriage return alone does, and so do three of Unicode.
const lineEnds = "\r\n\u0085\u2028\u2029"

// firstLine is the first line with content. A document of nothing but comments, its separator and a %YAML line has none.
func firstLine(text []byte) (line string, blank bool) {
	for len(text) > 0 {
		raw := text
		if end := bytes.IndexAny(text, lineEnds); end >= 0 {
			_, size := utf8.DecodeRune(text[end:])
			raw, text = text[:end], text[end+size:]
		} else {
			text = nil
		}
		s := strings.TrimSpace(string(raw[:min(len(raw), 256)]))
		if rest, ok := strings.CutPrefix(s, "---"); ok && (rest == "" || rest[0] == ' ' || rest[0] == '\t') {
			s = strings.TrimSpace(rest)
		}
		if s == "" && len(raw) > 256 {
			return string(raw), false
		}
		if s == "" || s[0] == '#' || s == "..." || strings.HasPrefix(s, "%YAML") {
			continue
		}
		return s, false
	}
	return "", true
}

// Unreadable is why a text of YAML is not given to a parser, which takes memory by the values of it and time by the square of its %TAG lines,
// of which there are none in files of people; empty: it may be. Who parses YAML that others wrote asks this first, and decodes by DecodeYAML.
func Unreadable(text []byte) string {
	switch {
	case tokens(text) > MaxTokens:
		return "has too many values"
	case tagLines(text) > maxTagLines:
		return "has too many %TAG lines"
	}
	return ""
}

// tokens bounds from above how many values the text can hold.
func tokens(text []byte) int {
	n := 0
	for _, c := range text {
		switch c {
		case ',', '\n', '[', '{', '\r':
			n++
		}
	}
	return n + bytes.Count(text, []byte(": ")) + bytes.Count(text, []byte("- "))
}

// tagLines bounds from above how many lines with %TAG there are, whatever ends the line before: a break of YAML that is no control character
// is one of Unicode.
func tagLines(text []byte) int {
	n := 0
	for at := 0; ; at += len("%TAG") {
		next := bytes.Index(text[at:], []byte("%TAG"))
		if next < 0 {
			return n
		}
		if at += next; at == 0 || text[at-1] < ' ' || text[at-1] >= 0x80 {
			n++
		}
	}
}

func parseYAML(name string, text []byte, line int, budget *expansion) ([]parsed, error) {
	var out []parsed
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var root yaml.Node
		err := DecodeYAML(dec, &root)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, syntaxError(name, text, line, err)
		}
		r := &reader{file: name, base: line, budget: budget, active: map[*yaml.Node]bool{}}
		p, err := r.document(&root)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
}

// DecodeYAML is Decode, which makes a panic of the parser, which reads what anybody wrote, an error of this one file.
func DecodeYAML(dec *yaml.Decoder, into *yaml.Node) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("cannot be parsed: %v", v)
		}
	}()
	return dec.Decode(into)
}

var (
	errorLine   = regexp.MustCompile(`^line ([0-9]+): `)
	errorAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

func syntaxError(name string, text []byte, base int, err error) error {
	msg := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if m := errorAnchor.FindStringSubmatch(msg); m != nil {
		before, _, _ := bytes.Cut(text, []byte("*"+m[1]))
		line += bytes.Count(before, []byte("\n"))
		msg = "unknown anchor: quote text that begins with *" // whatever follows may be a value of a Secret
	}
	if m := errorLine.FindStringSubmatch(msg); m != nil {
		line, _ = strconv.Atoi(m[1])
		msg = msg[len(m[0]):]
	}
	if strings.Contains(msg, "cannot start any token") {
		msg += ": indent with spaces, not tabs, and quote strings that begin with @, ` or %"
	}
	return fleet.Invalid(place{name, base + line}.String(), "is not YAML: "+msg)
}

// expansion is what aliases of a file may still add, and what becomes of a key that is given twice.
type expansion struct {
	spent, limit int
	lastCounts   bool
}

// reader turns the nodes of one document into values.
type reader struct {
	file    string
	base    int // lines before the document
	budget  *expansion
	active  map[*yaml.Node]bool // containers being read, to find an alias to one of them
	aliases int                 // aliases that the current node is inside of
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) error {
	return fleet.Invalidf(place{r.file, r.base + n.Line}.String(), format, args...)
}

func (r *reader) document(root *yaml.Node) (parsed, error) {
	if root.Kind == yaml.DocumentNode {
		root = root.Content[0]
	}
	v, err := r.value(root, 1)
	if err != nil {
		return parsed{}, err
	}
	p := parsed{value: v, line: r.base + root.Line}
	for i := 0; root.Kind == yaml.MappingNode && i+1 < len(root.Content); i += 2 {
		if key, items := root.Content[i], root.Content[i+1]; key.Value == "items" && items.Kind == yaml.SequenceNode {
			for _, item := range items.Content {
				p.items = append(p.items, r.base+item.Line)
			}
		}
	}
	return p, nil
}

// value reads a node. Aliases are followed, within the budget and not into what they are part of.
func (r *reader) value(n *yaml.Node, depth int) (any, error) {
	if n.Kind == yaml.AliasNode {
		if r.active[n.Alias] {
			return nil, r.fail(n, "*%s refers to what it is part of: write the value out", n.Value)
		}
		r.aliases++
		defer func() { r.aliases-- }()
		return r.value(n.Alias, depth)
	}
	if err := r.charge(n); err != nil {
		return nil, err
	}
	if n.Kind == yaml.ScalarNode {
		return r.scalar(n)
	}
	if depth > MaxDepth {
		return nil, r.fail(n, "is more than %d levels deep", MaxDepth)
	}
	if n.Style&yaml.TaggedStyle != 0 && n.Tag != "!!map" && n.Tag != "!!seq" {
		return nil, r.tagError(n)
	}
	r.active[n] = true
	defer delete(r.active, n)
	if n.Kind == yaml.SequenceNode {
		return r.sequence(n, depth)
	}
	return r.mapping(n, depth)
}

// charge counts what an alias repeats.
func (r *reader) charge(n *yaml.Node) error {
	if r.aliases == 0 {
		return nil
	}
	if r.budget.spent += len(n.Value) + 8; r.budget.spent > r.budget.limit {
		return r.fail(n, "aliases repeat more than %d bytes of this file: write the values out", r.budget.limit)
	}
	return nil
}

func (r *reader) sequence(n *yaml.Node, depth int) (any, error) {
	out := make([]any, 0, len(n.Content))
	for _, c := range n.Content {
		v, err := r.value(c, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func (r *reader) mapping(n *yaml.Node, depth int) (map[string]any, error) {
	out := make(map[string]any, len(n.Content)/2)
	var merged map[string]any // what << brings, once it was read
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Tag == "!!merge" {
			if merged != nil {
				return nil, r.fail(k, "key << is given twice: write << : [*a, *b]")
			}
			var err error
			if merged, err = r.merged(v, depth); err != nil {
				return nil, err
			}
			if err := r.merge(out, merged, k); err != nil {
				return nil, err
			}
			continue
		}
		key, err := r.key(k)
		if err != nil {
			return nil, err
		}
		_, twice := out[key]
		if _, from := merged[key]; from {
			twice = false
			delete(merged, key)
		}
		if twice && !r.budget.lastCounts {
			return nil, r.fail(k, "key %q is given twice", clip(key))
		}
		value, err := r.value(v, depth+1)
		if err != nil {
			return nil, err
		}
		if twice && depth == 1 && ofAnother(key, out[key], value) {
			return nil, r.fail(k, "key %q is given twice, and is of another object the second time: no line --- ends the one before it, which would be dropped", clip(key))
		}
		out[key] = value
	}
	return out, nil
}

// ofAnother reports that what a document says for the second time makes it another object than what it said first: a chart whose template writes
// one after the other and nothing between them, as in a range, or with a {{- that takes the line break before a --- away. To Helm the last one counts.
func ofAnother(key string, first, second any) bool {
	differs := func(a, b any) bool { return a != nil && b != nil && !reflect.DeepEqual(a, b) }
	a, _ := first.(map[string]any)
	b, _ := second.(map[string]any)
	switch key {
	case "kind":
		return differs(first, second)
	case "metadata":
		return differs(a["name"], b["name"]) || differs(a["namespace"], b["namespace"])
	}
	return false
}

// merged is what << brings: of a key that several maps have, the first one counts.
func (r *reader) merged(n *yaml.Node, depth int) (map[string]any, error) {
	out := map[string]any{}
	sources := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		sources = n.Content
	}
	for _, s := range sources {
		v, err := r.value(s, depth)
		if err != nil {
			return nil, err
		}
		m, ok := v.(map[string]any)
		if !ok {
			return nil, r.fail(s, "<< takes a map or a list of maps, not %s", typeName(v))
		}
		for key, v := range m {
			if _, has := out[key]; !has {
				out[key] = v
			}
		}
	}
	return out, nil
}

// merge adds what << brings to the keys that stand before it. YAML has these win, and kubectl and Helm do not: where that makes a difference
// it is as for Helm in a chart, and refused elsewhere.
func (r *reader) merge(into, merged map[string]any, at *yaml.Node) error {
	for _, key := range slices.Sorted(maps.Keys(merged)) {
		own, has := into[key]
		if has && !r.budget.lastCounts && !reflect.DeepEqual(own, merged[key]) {
			return r.fail(at, "<< has another value of key %q, which stands before it: kubectl takes that of <<, and YAML the other one; write << first, or one of them", clip(key))
		}
		into[key] = merged[key]
		if has {
			delete(merged, key) // so that the key is given twice if it comes once more
		}
	}
	return nil
}

// key reads a map's key. Only what reads the same as it is written may stay unquoted.
func (r *reader) key(n *yaml.Node) (string, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
		r.aliases++
		defer func() { r.aliases-- }()
	}
	if n.Kind != yaml.ScalarNode {
		return "", r.fail(n, "a key is a list or a map: write a string")
	}
	if err := r.charge(n); err != nil {
		return "", err
	}
	v, err := r.scalar(n)
	if err != nil {
		return "", err
	}
	switch v := v.(type) {
	case string:
		return v, nil
	case int64:
		if strconv.FormatInt(v, 10) == n.Value {
			return n.Value, nil
		}
	}
	return "", r.fail(n, "key %s means %s in YAML: quote it", clip(n.Value), typeName(v))
}

func clip(s string) string { return fleet.Clip(s, 80) }
