package packager

import (
	"path"
	"regexp"
	"strconv"
	"strings"

	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/kio"
	"sigs.k8s.io/kustomize/kyaml/yaml"

	"towline.dev/towline/pkg/fleet"
)

// inspection looks through all kustomizations that a build is going to read, for what is refused. What is wrong with them otherwise,
// the build says.
type inspection struct {
	*tree
	seen   map[string]bool
	schema bool // one of them has an OpenAPI schema of its own
}

// folder looks at the kustomization of a folder and at those that it names.
func (c *inspection) folder(dir string) error {
	if c.seen[dir] {
		return nil
	}
	c.seen[dir] = true
	file, err := c.kustomization(dir)
	if err != nil {
		return nil
	}
	var k types.Kustomization
	if err := k.Unmarshal(c.files[file]); err != nil {
		return fleet.Invalid(file, c.say(err))
	}
	if err := givenTwice(file, c.files[file]); err != nil {
		return err
	}
	c.schema = c.schema || len(k.OpenAPI) > 0
	k.FixKustomization()
	if len(k.HelmCharts) > 0 || k.HelmGlobals != nil {
		return fleet.Invalid(file, "helmCharts are refused, for they run helm: make a module with package.helm of the chart")
	}
	for _, check := range []func(string, *types.Kustomization) error{c.fetched, c.bases, c.plugins} {
		if err := check(file, &k); err != nil {
			return err
		}
	}
	return nil
}

// list is a field of a kustomization that names files or folders.
type list struct {
	field   string
	entries []string
}

// bases follows what may be folders.
func (c *inspection) bases(file string, k *types.Kustomization) error {
	for _, l := range []list{{"resources", k.Resources}, {"components", k.Components}} {
		for i, entry := range l.entries {
			at := path.Join(path.Dir(file), entry)
			switch data, isFile := c.files[at]; {
			case isFile:
				if err := passedOver(at, data); err != nil {
					return err
				}
			case c.folders[at]:
				if err := c.folder(at); err != nil {
					return err
				}
			case remote(entry):
				return fleet.Invalidf(file, "%s is remote, and what a revision is made of must be in its source: put a copy there (vendor it)", entryOf(l.field, i, entry))
			case l.field == "components":
				return fleet.Invalidf(file, "%s is no folder of the source", entryOf(l.field, i, entry))
			default:
				return fleet.Invalidf(file, "%s is no file or folder of the source", entryOf(l.field, i, entry))
			}
		}
	}
	return nil
}

// fetched refuses files that would be fetched.
func (c *inspection) fetched(file string, k *types.Kustomization) error {
	lists := []list{{"crds", k.Crds}, {"configurations", k.Configurations}, {"generators", k.Generators}, {"transformers", k.Transformers}, {"validators", k.Validators}}
	for _, p := range k.Patches {
		lists = append(lists, list{"patches", []string{p.Path}})
	}
	//lint:ignore SA1019 kustomize still takes it, and people still write it
	for _, p := range k.PatchesJson6902 {
		lists = append(lists, list{"patchesJson6902", []string{p.Path}})
	}
	//lint:ignore SA1019 as above
	for _, p := range k.PatchesStrategicMerge {
		lists = append(lists, list{"patchesStrategicMerge", []string{string(p)}})
	}
	for _, r := range k.Replacements {
		lists = append(lists, list{"replacements", []string{r.Path}})
	}
	for _, g := range k.ConfigMapGenerator {
		lists = append(lists, list{"configMapGenerator " + g.Name, sources(g.KvPairSources)})
	}
	for _, g := range k.SecretGenerator {
		lists = append(lists, list{"secretGenerator " + g.Name, sources(g.KvPairSources)})
	}
	lists = append(lists, list{"openapi", []string{k.OpenAPI["path"]}})
	for _, l := range lists {
		for _, entry := range l.entries {
			if remoteFile(entry) {
				return fleet.Invalidf(file, "%s: %q is remote, and what a revision is made of must be in its source: put a copy there (vendor it)", l.field, shown(entry))
			}
		}
	}
	return nil
}

// sources are the files of a generator, without their keys.
func sources(s types.KvPairSources) []string {
	var out []string
	for _, f := range append(append([]string(nil), s.FileSources...), s.EnvSources...) {
		if key, name, found := strings.Cut(f, "="); found && !strings.Contains(key, "://") {
			f = name
		}
		out = append(out, f)
	}
	return out
}

// plugins refuses generators, transformers and validators that are not kustomize's own.
func (c *inspection) plugins(file string, k *types.Kustomization) error {
	for _, l := range []list{{"generators", k.Generators}, {"transformers", k.Transformers}, {"validators", k.Validators}} {
		for i, entry := range l.entries {
			if err := c.plugin(file, l.field, i, entry); err != nil {
				return err
			}
		}
	}
	return nil
}

// plugin is a file, a folder with a kustomization that makes some, or the text itself.
func (c *inspection) plugin(file, field string, index int, entry string) error {
	at := path.Join(path.Dir(file), entry)
	text, where := []byte(entry), file
	if data, isFile := c.files[at]; isFile {
		text, where = data, at
	} else if c.folders[at] {
		return c.pluginFolder(at)
	} else if !strings.Contains(entry, ":") || remote(entry) {
		return fleet.Invalidf(file, "%s is no file or folder of the source", entryOf(field, index, entry))
	}
	return plugin(where, text)
}

// pluginFolder looks at a kustomization that makes plugins: at every file that it reads.
func (c *inspection) pluginFolder(dir string) error {
	if err := c.folder(dir); err != nil {
		return err
	}
	for name, data := range c.files {
		if strings.HasPrefix(name, dir+"/") && (strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml")) {
			if err := function(name, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// plugin refuses what is not built into kustomize, and what is but runs something.
func plugin(where string, text []byte) error {
	if err := function(where, text); err != nil {
		return err
	}
	for _, doc := range documents(text) {
		meta, err := doc.GetMeta()
		if err != nil {
			continue
		}
		switch {
		case meta.Kind == "HelmChartInflationGenerator":
			return fleet.Invalid(where, "HelmChartInflationGenerator is refused, for it runs helm: make a module with package.helm of the chart")
		case meta.APIVersion != "builtin":
			return fleet.Invalidf(where, "%s %s is a plugin of one's own, which would run here: only those with apiVersion builtin are built", meta.APIVersion, meta.Kind)
		}
	}
	return nil
}

// function refuses functions, which run in a container, as a program, or as a script.
func function(where string, text []byte) error {
	for _, doc := range documents(text) {
		meta, err := doc.GetMeta()
		if err != nil {
			continue
		}
		for _, key := range []string{"config.kubernetes.io/function", "config.k8s.io/function", "config.kubernetes.io/container"} {
			if spec := meta.Annotations[key]; spec != "" {
				return fleet.Invalidf(where, "%s %s is a function (annotation %s), which would run %s here: functions are refused", meta.Kind, meta.Name, key, runs(spec))
			}
		}
		if fn, err := doc.Pipe(yaml.Lookup("metadata", "configFn")); err == nil && fn != nil {
			return fleet.Invalidf(where, "%s %s is a function (metadata.configFn): functions are refused", meta.Kind, meta.Name)
		}
	}
	return nil
}

// runs says what a function is.
func runs(spec string) string {
	switch {
	case strings.Contains(spec, "starlark"):
		return "a script"
	case strings.Contains(spec, "exec"):
		return "a program"
	}
	return "a container"
}

// documents are the YAML documents of a text; what cannot be read, the build says.
func documents(text []byte) []*yaml.RNode {
	docs, err := kio.FromBytes(text)
	if err != nil {
		return nil
	}
	return docs
}

// scpForm is USER@HOST:PATH.
var scpForm = regexp.MustCompile(`^[^/\s]+@[^/\s]+:`)

// remote reports what kustomize would take as an address of a repository or file.
func remote(entry string) bool {
	host, _, _ := strings.Cut(entry, "/")
	return strings.Contains(entry, "://") || strings.HasPrefix(entry, "git::") || scpForm.MatchString(entry) ||
		strings.Contains(entry, "?ref=") || strings.HasSuffix(host, ".git") || strings.Contains(entry, ".git/") || strings.Contains(entry, "_git/") ||
		strings.EqualFold(host, "github.com") || strings.HasPrefix(strings.ToLower(entry), "gh:") || strings.HasPrefix(strings.ToLower(entry), "github.com:")
}

func remoteFile(entry string) bool {
	lower := strings.ToLower(entry)
	return strings.HasPrefix(lower, "http://") || strings.HasPrefix(lower, "https://")
}

func entryOf(field string, index int, entry string) string {
	return field + "[" + itoa(index) + "]: " + strconv.Quote(shown(entry))
}

var credentials = regexp.MustCompile(`//[^/@\s]*@`)

// shown is an entry without credentials. One that is a manifest itself, in place of a file's name, may be that of a Secret.
func shown(entry string) string {
	if isText(entry) {
		return fleet.Masked
	}
	return fleet.Clip(credentials.ReplaceAllString(entry, "//"+fleet.Masked+"@"), 120)
}

func itoa(n int) string { return strconv.Itoa(n) }
