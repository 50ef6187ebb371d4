package source

import (
	"bytes"
	"strings"

	"towline.dev/towline/pkg/fleet"
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
		case !within:
			within = indent == 0 && string(bytes.TrimSpace(line)) == "entries:"
		case isName && indent == 0:
			within = false
		case isName && depth == 0:
			depth = indent
		}
		if isName && from >= 0 && indent <= depth {
			entries, from = data[from:at], -1
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
		entries = data[from:]
	}
	return entries, charts, found
}
