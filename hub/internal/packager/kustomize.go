package packager

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/render/child"
)

// maxSaid bounds what is told of an error of a library: it may quote whole files.
const maxSaid = 1000

// buildKustomization does what `kustomize build` does, with files of the source only.
func buildKustomization(files map[string][]byte, k render.Kustomize) (child.Result, error) {
	root, err := folder("package.kustomize.path", k.Path)
	if err != nil {
		return child.Result{}, err
	}
	t := newTree(files)
	file, err := t.kustomization(root)
	if err != nil {
		return child.Result{}, err
	}
	if len(k.Components) > 0 {
		if t, err = t.withComponents(file, k.Components); err != nil {
			return child.Result{}, err
		}
	}
	c := &inspection{tree: t, seen: map[string]bool{}}
	if err := c.folder(root); err != nil {
		return child.Result{}, err
	}
	text, err := build(t, root)
	if err != nil {
		return child.Result{}, fleet.Invalid(file, t.say(err))
	}
	// A schema of its own stays in the process, and would change what is built after it.
	return child.Result{Texts: map[string][]byte{"kustomize build " + root: text}, Spent: c.schema}, nil
}

func build(t *tree, root string) ([]byte, error) {
	built, err := krusty.MakeKustomizer(options()).Run(t, path.Join(mount, root))
	if err != nil {
		return nil, err
	}
	return built.AsYaml()
}

// options are those of `kustomize build` without flags.
func options() *krusty.Options {
	o := krusty.MakeDefaultOptions()
	o.Reorder = krusty.ReorderOptionUnspecified
	return o
}

// say is an error of kustomize as people can read it: paths are those of the source, and values of Secrets are not shown.
func (t *tree) say(err error) string {
	text := t.hush(strings.TrimSpace(err.Error()))
	text = strings.ReplaceAll(text, mount+"/", "")
	return fleet.Clip(strings.ReplaceAll(text, "'"+mount+"'", "'.'"), maxSaid)
}

// kustomization is the file of the kustomization in a folder.
func (t *tree) kustomization(dir string) (string, error) {
	var found []string
	for _, name := range konfig.RecognizedKustomizationFileNames() {
		if _, there := t.files[path.Join(dir, name)]; there {
			found = append(found, path.Join(dir, name))
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fleet.Invalidf(found[1], "stands beside %s: a folder has one kustomization; remove one of them", path.Base(found[0]))
	case !t.folders[dir]:
		return "", fleet.Invalidf("package.kustomize.path", "%s is no folder of the source; %s", dir, t.kustomizations())
	}
	return "", fleet.Invalidf("package.kustomize.path", "folder %s has no kustomization.yaml; %s", dir, t.kustomizations())
}

// kustomizations says where there are some.
func (t *tree) kustomizations() string {
	there := map[string]bool{}
	for name := range t.files {
		if slices.Contains(konfig.RecognizedKustomizationFileNames(), path.Base(name)) {
			there[path.Dir(name)] = true
		}
	}
	if len(there) == 0 {
		return "the source has none anywhere"
	}
	return "folders that have: " + some(slices.Sorted(maps.Keys(there)))
}

// withComponents is the tree with components added behind those of a kustomization.
func (t *tree) withComponents(file string, components []string) (*tree, error) {
	for i, c := range components {
		field := "package.kustomize.components[" + itoa(i) + "]"
		dir, err := folder(field, path.Join(path.Dir(file), c))
		if strings.HasPrefix(c, "/") || remote(c) {
			err = fleet.Invalidf(field, "%q is no folder in the source: components lie beside the kustomization", c)
		}
		if err != nil {
			return nil, err
		}
		if _, err := t.kustomization(dir); err != nil {
			return nil, fleet.Invalidf(field, "%q: %s", c, message(err))
		}
	}
	doc, err := yaml.Parse(string(t.files[file]))
	if err == nil {
		err = addComponents(doc, components)
	}
	var text string
	if err == nil {
		text, err = doc.String()
	}
	if err != nil {
		return nil, fleet.Invalidf(file, "components cannot be added: %s", t.say(err))
	}
	files := maps.Clone(t.files)
	files[file] = []byte(text)
	return &tree{FileSystem: t.FileSystem, files: files, folders: t.folders}, nil
}

func addComponents(kustomization *yaml.RNode, components []string) error {
	list, err := kustomization.Pipe(yaml.LookupCreate(yaml.SequenceNode, "components"))
	if err != nil {
		return err
	}
	items := make([]*yaml.Node, len(components))
	for i, c := range components {
		items[i] = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: c, Style: yaml.DoubleQuotedStyle}
	}
	return list.PipeE(yaml.Append(items...))
}

// message is what an error says beside the field.
func message(err error) string {
	var field *fleet.FieldError
	if errors.As(err, &field) {
		return field.Message
	}
	return err.Error()
}
