package manifest

import (
	"bytes"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"

	"towline.dev/towline/pkg/fleet"
)

// Root is the first document of a text as it is written, for who reads a few values of it; nil: it has none. Libraries that make values of a
// document copy what its aliases repeat, and compare each key of a map with all others: a text whose aliases repeat too much is refused, and
// what is left is to be taken from the nodes, or is small enough for such a library where it is a chart's.
func Root(name string, data []byte) (*yaml.Node, error) {
	if why := Unreadable(data); why != "" {
		return nil, fleet.Invalid(name, why)
	}
	var doc yaml.Node
	switch err := DecodeYAML(yaml.NewDecoder(bytes.NewReader(data)), &doc); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, syntaxError(name, data, 0, err)
	}
	root := doc.Content[0]
	r := &reader{file: name, budget: &expansion{limit: min(max(MaxExpansion*len(data), minExpansion), MaxTotalBytes)}}
	return root, r.expand(root, 1)
}

// expand counts what a document is when its aliases are followed.
func (r *reader) expand(n *yaml.Node, depth int) error {
	if depth > MaxDepth {
		return r.fail(n, "is more than %d levels deep", MaxDepth)
	}
	if n.Kind == yaml.AliasNode {
		r.aliases++
		defer func() { r.aliases-- }()
		return r.expand(n.Alias, depth+1)
	}
	if err := r.charge(n); err != nil {
		return err
	}
	for _, c := range n.Content {
		if err := r.expand(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}
