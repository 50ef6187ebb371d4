package packager

import (
	"encoding/base64"
	"path"
	"regexp"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"towline.dev/towline/pkg/fleet"
)

// quoted is what kustomize quotes of a patch or a list that it cannot read: all of it, whatever it holds.
var quoted = regexp.MustCompile("(?s)(from|list) \\[.*\\]|(with config:) `.*?`|(unknown anchor) '.*?'")

// shortSecret is the longest value that is left in a message: it is part of other words.
const shortSecret = 5

// hush takes out of a message of kustomize what the files say of Secrets: their values, and what they are generated from.
func (t *tree) hush(text string) string {
	text = quoted.ReplaceAllString(text, "$1$2$3 ["+fleet.Masked+"]")
	var words []string
	for name, data := range t.files {
		if recognized(name) {
			words = append(words, t.generated(name, data)...)
		}
		if strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml") || strings.HasSuffix(name, ".json") {
			words = append(words, secretValues(data)...)
		}
	}
	return fleet.MaskWords(text, words, shortSecret+1)
}

func recognized(name string) bool {
	for _, known := range konfig.RecognizedKustomizationFileNames() {
		if path.Base(name) == known {
			return true
		}
	}
	return false
}

// generated are the values of the generators of Secrets in a kustomization, and what its patches say of Secrets.
func (t *tree) generated(name string, data []byte) []string {
	var k types.Kustomization
	if k.Unmarshal(data) != nil {
		return nil
	}
	var out []string
	for _, g := range k.SecretGenerator {
		for _, literal := range g.LiteralSources {
			_, value, found := strings.Cut(literal, "=")
			if !found {
				value = literal // it is what is wrong with it
			}
			out = append(out, value, strings.Trim(value, `"'`))
		}
		for _, file := range sources(g.KvPairSources) {
			for line := range strings.Lines(string(t.files[path.Join(path.Dir(name), file)])) {
				_, value, _ := strings.Cut(line, "=")
				out = append(out, strings.TrimSpace(line), strings.TrimSpace(value))
			}
		}
	}
	for _, p := range k.Patches {
		out = append(out, secretValues([]byte(p.Patch))...)
	}
	return out
}

// secretValues are the values of the Secrets in a text.
func secretValues(text []byte) []string {
	var out []string
	for _, doc := range documents(text) {
		if doc.GetKind() != "Secret" {
			continue
		}
		for _, field := range []string{"data", "stringData"} {
			at := doc.Field(field)
			if at.IsNilOrEmpty() {
				continue
			}
			if text := strings.TrimSpace(at.Value.YNode().Value); text != "" { // somebody has written it as what it is not
				out = append(out, text)
			}
			_ = at.Value.VisitFields(func(f *yaml.MapNode) error {
				value := strings.TrimSpace(f.Value.YNode().Value)
				out = append(out, value)
				if plain, err := base64.StdEncoding.DecodeString(value); err == nil {
					out = append(out, string(plain))
				}
				return nil
			})
		}
	}
	return out
}
