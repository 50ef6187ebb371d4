package source

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// Limits of the index of a Helm repository. Reading YAML takes many times its size in memory, so that of a large index only the entries of
// the one chart are read.
const (
	MaxIndexBytes = 32 << 20
	maxReadBytes  = 4 << 20
)

// errIndexTooLarge says what to do about it.
var errIndexTooLarge = fleet.Errorf(fleet.ErrExhausted, "its index.yaml has more than %d MiB: remove versions from the repository that nobody uses, or take the chart from a registry (oci://)", MaxIndexBytes>>20)

// indexOf is the index of a repository, or as much of a large one as says something of a chart.
func indexOf(data []byte, chart, field string) ([]byte, error) {
	if len(data) <= maxReadBytes {
		return data, nil
	}
	entries, charts, found := cutEntries(data, chart)
	switch {
	case charts == 0:
		return nil, fleet.Errorf(fleet.ErrExhausted, "its index.yaml has more than %d MiB, and has no list of charts in lines of their own, as helm repo index writes it", maxReadBytes>>20)
	case !found:
		return nil, noChartOf(charts, field)
	case len(entries) > maxReadBytes:
		return nil, fleet.Errorf(fleet.ErrExhausted, "its index.yaml has more than %d MiB of this chart alone: remove versions that nobody uses", maxReadBytes>>20)
	}
	return append([]byte("entries:\n"), entries...), nil
}

// readIndex reads the versions of a chart, and counts the charts. It looks at the nodes of the index: made values of, one with many keys would
// take time and memory by the square of them.
func readIndex(data []byte, chart string) (versions []chartEntry, charts int, err error) {
	root, err := manifest.Root("index.yaml", data)
	if err != nil {
		return nil, 0, err
	}
	var in indexNodes
	entries := in.valueOf(root, "entries")
	for _, n := range []*yaml.Node{root, entries} {
		if n != nil && n.Kind != yaml.MappingNode && n.Tag != "!!null" {
			return nil, 0, errors.New("it has no map of charts")
		}
	}
	if entries != nil {
		charts = len(entries.Content) / 2
	}
	for _, one := range itemsOf(in.valueOf(entries, chart)) {
		e := chartEntry{Version: textOf(in.valueOf(one, "version")), Digest: textOf(in.valueOf(one, "digest"))}
		for _, u := range itemsOf(in.valueOf(one, "urls")) {
			e.URLs = append(e.URLs, textOf(u))
		}
		versions = append(versions, e)
	}
	return versions, charts, in.err
}

// indexNodes reads the nodes of an index, and keeps what is first found wrong with them.
type indexNodes struct{ err error }

// valueOf is the value of a key of a map, with aliases followed; nil: there is none. A map that leaves open which value is meant is wrong.
func (in *indexNodes) valueOf(n *yaml.Node, key string) (value *yaml.Node) {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := followed(n.Content[i])
		switch {
		case k.Kind != yaml.ScalarNode:
		case k.Tag == "!!merge":
			in.wrong("line %d merges a map into another by <<: write its values out", k.Line)
		case k.Value == key && value != nil:
			in.wrong("line %d has %q for the second time", k.Line, clip(key))
		case k.Value == key:
			value = followed(n.Content[i+1])
		}
	}
	return value
}

func (in *indexNodes) wrong(format string, args ...any) {
	if in.err == nil {
		in.err = fmt.Errorf(format, args...)
	}
}

// itemsOf are those of a list.
func itemsOf(n *yaml.Node) (items []*yaml.Node) {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	for _, c := range n.Content {
		items = append(items, followed(c))
	}
	return items
}

// textOf is a scalar as it is written; what is none is empty.
func textOf(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return ""
	}
	return n.Value
}

func followed(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func noChartOf(charts int, field string) error {
	return fleet.Errorf(fleet.ErrNotFound, "is not in the repository, which has %d others: check %s", charts, field)
}

// cutEntries cuts the lines of a chart out of an index, which are those from its name, under "entries:", to the next name, which is
// indented as far. It counts the names.
func cutEntries(data []byte, chart string) (entries []byte, charts int, found bool) {
	within, depth, from := false, 0, -1
	for at := 0; at < len(data); {
		end := len(data)
		if n := bytes.IndexByte(data[at:], '\n'); n >= 0 {
			end = at + n + 1
		}
		line := data[at:end]
		text := bytes.TrimLeft(line, " ")
		indent := len(line) - len(text)
		isName := len(bytes.TrimSpace(text)) > 0 && text[0] != '#' && text[0] != '-'
		switch {
		case !within || isName && indent == 0:
			within = indent == 0 && string(bytes.TrimSpace(line)) == "entries:"
		case isName && depth == 0:
			depth = indent
		}
		if isName && from >= 0 && indent <= depth {
			entries, from = append(entries, data[from:at]...), -1 // one that is there twice is refused where it is read
		}
		if within && isName && depth > 0 && indent == depth {
			charts++
			name, _, _ := strings.Cut(string(text), ":")
			if strings.Trim(name, `"'`) == chart {
				found, from = true, at
			}
		}
		at = end
	}
	if from >= 0 {
		entries = append(entries, data[from:]...)
	}
	return entries, charts, found
}
