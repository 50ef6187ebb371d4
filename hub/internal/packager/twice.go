package packager

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"towline.dev/towline/pkg/fleet"
)

// givenTwice refuses a key that a kustomization has twice with different values, unless the first says nothing, and a second document in its file.
// kustomize goes by the last value and by the first document, without a word, so that all that a list in the other one named would be dropped. Its own
// fields it knows in any case of letters.
func givenTwice(file string, text []byte) error {
	first, more := firstOf(text)
	switch {
	case first == nil:
		return nil // it is said where it is built
	case more:
		return fleet.Invalidf(file, "has more than the document that begins in line %d, and kustomize reads no other: take the --- or ... behind it away, or what follows", first.Line)
	}
	return twiceIn(file, first, strings.EqualFold, map[*yaml.Node]bool{})
}

// dependsTwice refuses a second list of what a chart depends on, as after a merge: Helm goes by the last one, and by the first document, without a word,
// so that the charts of the other one would be dropped. What else is there twice is as for Helm, for charts of others have such files.
func dependsTwice(file string, text []byte) error {
	var first *yaml.Node
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc yaml.Node
		if dec.Decode(&doc) != nil { // it is said where it is loaded
			return nil
		}
		for i := 0; len(doc.Content) > 0 && doc.Content[0].Kind == yaml.MappingNode && i+1 < len(doc.Content[0].Content); i += 2 {
			key, value := doc.Content[0].Content[i], doc.Content[0].Content[i+1]
			switch {
			case !strings.EqualFold(key.Value, "dependencies"):
			case first != nil && !alike(first, value, 0):
				return fleet.Invalidf(file, "line %d has dependencies for the second time, and others than those of line %d: Helm goes by one of both, and the charts of the other would be dropped: make them one", key.Line, first.Line)
			default:
				first = value
			}
		}
	}
}

// firstOf is the first document of a text, and whether something follows it; nil: there is none that can be read.
func firstOf(text []byte) (first *yaml.Node, more bool) {
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc yaml.Node
		err := dec.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF) || first == nil && err != nil:
			return first, false
		case err != nil:
			return first, true
		case len(doc.Content) == 0:
		case first == nil:
			first = doc.Content[0]
		case !isNothing(doc.Content[0]):
			return first, true
		}
	}
}

func isNothing(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// between is what kustomize takes for the end of a document in a file of resources.
var between = regexp.MustCompile(`\n---.*\n`)

// passedOver refuses what kustomize drops without a word of a file of resources: what is behind a ... in a document, one that is {}, and a List that
// has null in place of its items, as a program prints it that found nothing.
func passedOver(file string, text []byte) error {
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	line, from := 0, 0
	for _, at := range append(between.FindAllIndex(text, -1), []int{len(text), len(text)}) {
		if doc, more := firstOf(text[from:at[0]]); doc != nil {
			where := file + ":" + itoa(line+doc.Line)
			switch {
			case more:
				return fleet.Invalid(where, "is followed by what kustomize does not read, for this document ends otherwise than with a line ---, as with ...: write --- there")
			case doc.Kind == yaml.MappingNode && len(doc.Content) == 0:
				return fleet.Invalid(where, "is {}, which says nothing: write the object, or take the document away")
			case isListOfNull(doc):
				return fleet.Invalid(where, "is a List whose items are null: write them, or items: [] where there are none")
			}
		}
		line, from = line+bytes.Count(text[from:at[1]], []byte("\n")), at[1]
	}
	return nil
}

// isListOfNull reports that a document is a List, or one of a kind, that has items and none is written.
func isListOfNull(n *yaml.Node) bool {
	list, null := false, false
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		switch key, value := n.Content[i].Value, n.Content[i+1]; key {
		case "kind":
			list = strings.HasSuffix(value.Value, "List")
		case "items":
			null = isNothing(value)
		}
	}
	return list && null
}

// twiceIn looks through a node and what is in it, each once.
func twiceIn(file string, n *yaml.Node, same func(a, b string) bool, seen map[*yaml.Node]bool) error {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if seen[n] {
		return nil
	}
	seen[n] = true
	var keys []*yaml.Node
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			for j, k := range keys {
				was := n.Content[2*j+1]
				if same(k.Value, c.Value) && !alike(was, n.Content[i+1], 0) && (k.Value != c.Value || !saysNothing(was)) {
					return fleet.Invalidf(file, "line %d has %q, which line %d has with another value: kustomize goes by the last one, and what the other one says would be dropped: make them one", c.Line, fleet.Clip(c.Value, maxSaid), k.Line)
				}
			}
			keys = append(keys, c)
			continue
		}
		if err := twiceIn(file, c, exactly, seen); err != nil {
			return err
		}
	}
	return nil
}

// saysNothing reports that nothing is dropped with a value, as with the empty list of a template to which another one is appended.
func saysNothing(n *yaml.Node) bool {
	for ; n.Kind == yaml.AliasNode; n = n.Alias {
	}
	return isNothing(n) || len(n.Content) == 0 && n.Value == ""
}

func exactly(a, b string) bool { return a == b }

// maxAlike is how deep values are compared.
const maxAlike = 100

// alike reports that two nodes say the same.
func alike(a, b *yaml.Node, depth int) bool {
	for ; a.Kind == yaml.AliasNode; a = a.Alias {
	}
	for ; b.Kind == yaml.AliasNode; b = b.Alias {
	}
	return a == b || depth < maxAlike && a.Kind == b.Kind && a.ShortTag() == b.ShortTag() && a.Value == b.Value &&
		slices.EqualFunc(a.Content, b.Content, func(x, y *yaml.Node) bool { return alike(x, y, depth+1) })
}
