package manifest

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"towline.dev/towline/pkg/fleet"
)

// MaskFile is a file of manifests as somebody may see it who may not read Secrets: their values are fleet.Masked. A file
// without Secrets is returned as it is; of one with some the comments are dropped, which may repeat values. What cannot be
// read as manifests is an error, and so are values of a chart and what only kustomize reads: any field of these may be a secret.
func MaskFile(name string, data []byte) ([]byte, error) {
	docs, err := readFile(name, data, false)
	if err != nil {
		return nil, err
	}
	secret := false
	for _, d := range docs {
		if isSecret(d.value) {
			secret = true
			fleet.MaskSecret(d.value)
		} else if !isManifest(d.value) {
			return nil, fleet.Invalid(d.at.String(), "is no manifest of an object")
		}
	}
	if !secret {
		return data, nil
	}
	return write(name, docs)
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
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
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
		if isSecret(d.value) && holdsMask(d.value) {
			return true
		}
	}
	return false
}

// isSecret goes by the kind, however it is spelled: a manifest that is refused for that is seen all the same.
func isSecret(object map[string]any) bool {
	kind, _ := object["kind"].(string)
	return strings.EqualFold(kind, "Secret")
}

func holdsMask(object map[string]any) bool {
	for field, value := range object {
		if value == fleet.Masked {
			return true
		}
		if field != "data" && field != "stringData" {
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
