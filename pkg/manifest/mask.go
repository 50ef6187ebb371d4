package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"towline.dev/towline/pkg/fleet"
)

// MaskFile is a file of manifests as somebody may see it who may not read Secrets: Mask is what becomes of each object, and comments are
// dropped, for they may hold a Secret that was commented out, or repeat a value. A file that has neither is returned as it is. What cannot be
// read as manifests is an error, and so are values of a chart and what only kustomize reads: any field of these may be a secret.
func MaskFile(name string, data []byte) ([]byte, error) {
	docs, err := readFile(name, data, false)
	if err != nil {
		return nil, err
	}
	masks := false
	for i, d := range docs {
		if !isSecret(d.value) && !isManifest(d.value) {
			return nil, fleet.Invalid(d.at.String(), "is no manifest of an object")
		}
		var masked bool
		docs[i].value, masked = Mask(d.value)
		masks = masks || masked
	}
	if masks {
		return write(name, docs)
	}
	if isJSON(name) || !bytes.ContainsRune(data, '#') {
		return data, nil
	}
	if out, err := withoutComments(data); err == nil {
		return out, nil
	}
	return write(name, docs)
}

// withoutComments is YAML as it was written, but for its comments.
func withoutComments(data []byte) ([]byte, error) {
	var out bytes.Buffer
	enc := newEncoder(&out)
	for rest := WithoutMarks(data); len(rest) > 0; {
		var text []byte
		text, rest = cutDocument(rest)
		if _, blank := firstLine(text); blank {
			continue
		}
		dec := yaml.NewDecoder(bytes.NewReader(text))
		for {
			var root yaml.Node
			err := DecodeYAML(dec, &root)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			uncomment(&root)
			if err := enc.Encode(&root); err != nil {
				return nil, err
			}
		}
	}
	return out.Bytes(), nil
}

// uncomment takes the comments away, and folds nothing: the encoder breaks the lines of a folded text elsewhere, and makes another of it.
func uncomment(n *yaml.Node) {
	n.Style &^= yaml.FoldedStyle
	n.HeadComment, n.LineComment, n.FootComment = "", "", ""
	for _, c := range n.Content {
		uncomment(c)
	}
}

func newEncoder(out io.Writer) *yaml.Encoder {
	enc := yaml.NewEncoder(out)
	enc.SetIndent(2)
	return enc
}

// isManifest reports that an API server may take a document, unlike what is for a chart or for kustomize.
func isManifest(object map[string]any) bool {
	version, _ := object["apiVersion"].(string)
	kind, _ := object["kind"].(string)
	return version != "" && version != "builtin" && kind != "" && !strings.HasPrefix(version, "kustomize.config.k8s.io/")
}

// write is the text of documents, JSON where the file's name says so.
func write(name string, docs []document) ([]byte, error) {
	var out bytes.Buffer
	enc := newEncoder(&out)
	for _, d := range docs {
		if isJSON(name) {
			out.Write(append(Canonical(d.value), '\n'))
			continue
		}
		if err := enc.Encode(d.value); err != nil {
			return nil, fmt.Errorf("%s: %w", d.at, err)
		}
	}
	return out.Bytes(), nil
}

// MaskedIn reports whether a value of a Secret in a file is fleet.Masked: somebody put back what was shown without its
// values.
func MaskedIn(name string, data []byte) bool {
	if !bytes.Contains(data, []byte(fleet.Masked)) {
		return false
	}
	docs, err := readFile(name, data, false)
	if err != nil {
		return false // refused for what it is
	}
	for _, d := range docs {
		w := newWalk()
		w.object(d.value, 0)
		for _, t := range slices.Backward(w.texts) {
			if !maskAsWritten.MatchString(t.text) {
				w.found = slices.Delete(w.found, t.from, t.to)
			}
		}
		if slices.ContainsFunc(w.found, holdsMask) {
			return true
		}
	}
	return bytes.Contains(data, []byte(hiddenText))
}

// maskAsWritten is fleet.Masked as it stands in a text of which values were masked: documents write it otherwise in their examples.
var maskAsWritten = regexp.MustCompile(`'\*\*\*'|:\\*"\*\*\*\\*"`)

func holdsMask(object map[string]any) bool {
	if metadata, ok := object["metadata"].(map[string]any); ok {
		if annotations, ok := metadata["annotations"].(map[string]any); ok && holdsMask(annotations) {
			return true
		}
	}
	for field, value := range object {
		if value == fleet.Masked {
			return true
		}
		if !hasValues(field) {
			continue
		}
		values, _ := value.(map[string]any)
		for _, v := range values {
			if v == fleet.Masked {
				return true
			}
		}
	}
	return false
}
