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

var (
	// quoted is what kustomize quotes of a patch, a list or a line that it cannot read: all of it, whatever it holds.
	quoted = regexp.MustCompile("(?s)(from|list) \\[.*\\]|(with config:) `.*?`|(line) \\[[0-9 ]+\\]")
	// unread is what parsers of YAML, and Helm, quote of a value that is not what it ought to be.
	unread = regexp.MustCompile("(?s)(unknown anchor) '.*?'|(cannot (?:decode|unmarshal) \\S+) `.*`|(invalid map key:) .*|(type mismatch on \\S+:) .*|(range can't iterate over) .*")
)

// withoutValues is an error of a library without what it quotes of a file that it cannot read.
func withoutValues(text string) string {
	return unread.ReplaceAllString(text, "$1$2$3$4$5 ["+fleet.Masked+"]")
}

// shortSecret is the longest value that is left in a message: it is part of other words.
const shortSecret = 5

// hush takes out of a message of kustomize what the files say of Secrets: their values, and what they are generated from.
func (t *tree) hush(text string) string {
	text = withoutValues(quoted.ReplaceAllString(text, "$1$2$3 ["+fleet.Masked+"]"))
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
			plain := strings.Trim(value, `"'`)
			out = append(out, value, plain, encoded(plain))
		}
		for _, file := range sources(g.KvPairSources) {
			data := string(t.files[path.Join(path.Dir(name), file)])
			out = append(out, encoded(data))
			for line := range strings.Lines(data) {
				_, value, _ := strings.Cut(line, "=")
				value = strings.TrimSpace(value)
				out = append(out, strings.TrimSpace(line), value, encoded(value))
			}
		}
	}
	for _, p := range k.Patches {
		out = append(out, secretValues([]byte(p.Patch))...)
	}
	//lint:ignore SA1019 kustomize still takes it, and people still write it
	for _, p := range k.PatchesStrategicMerge {
		if text := strings.TrimSpace(string(p)); isText(text) { // where it cannot be read, it is taken for the name of a file
			out = append(out, text)
		}
	}
	return out
}

// encoded is a value as a Secret that is made of it has it.
func encoded(value string) string { return base64.StdEncoding.EncodeToString([]byte(value)) }

// isText reports that what ought to name a file is a manifest or a patch itself.
func isText(entry string) bool { return strings.ContainsAny(entry, "{\n") }

// secretValues are the values of the Secrets in a text.
func secretValues(text []byte) []string {
	var out []string
	for _, doc := range documents(text) {
		if doc.YNode().Kind != yaml.MappingNode || doc.GetKind() != "Secret" { // a file may be a list of patches
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
