package resource

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

const (
	// maxFile bounds what is read from one file or from stdin.
	maxFile = 16 << 20
	// maxFolder bounds the values of all resources of a folder, which are in memory at a time, at about 100 bytes each. What is free to have any
	// value, as values of a chart, counts twice.
	maxFolder = 4 * manifest.MaxTokens
)

// Resource is one document of a file. Message is of one of the kinds that may stand there.
type Resource struct {
	Source  string
	Line    int
	Kind    string
	Message proto.Message
}

// Meta is the resource's metadata.
func (r Resource) Meta() *v1.Metadata {
	return r.Message.(interface{ GetMetadata() *v1.Metadata }).GetMetadata()
}

// Options say what Load reads.
type Options struct {
	Stdin     io.Reader
	Recursive bool
	// Kinds are what may stand in a file: an empty message of each.
	Kinds []proto.Message
	// KeepGeneration keeps metadata.generation and metadata.uid, which make a put conditional on them.
	KeepGeneration bool
	// Whole: what the files do not have counts as taken away, so that a file without anything in it, not even a comment, is an error, and so is
	// a List without items. A program that fails after the shell has emptied its output, or that found nothing, leaves such a file. With Recursive so
	// is a symbolic link to a folder that was copied as text.
	Whole bool
}

// Load reads files, directories (*.yaml, *.yml, *.json) and "-" for stdin, in the order given. The error joins one
// Error for each thing that is wrong.
func Load(paths []string, opts Options) ([]Resource, error) {
	out, err := each(paths, opts, func(source string, data []byte) ([]Resource, error) { return Parse(source, data, opts) })
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: there is no resource in it", strings.Join(paths, ", "))
	}
	return out, nil
}

// LoadFiles reads the files of a folder as Load reads a directory, in the order of their names; files are by slash-separated path, and an
// empty folder is the top. skipped are those below the folder, which are not read unless opts say Recursive.
func LoadFiles(files map[string][]byte, folder string, opts Options) (found []Resource, skipped []string, err error) {
	read, skipped := InFolder(files, folder, opts.Recursive)
	values := 0
	var errs []error
	if opts.Whole && opts.Recursive {
		errs = append(errs, LinksOut(files, folder))
	}
	for _, name := range read {
		if len(files[name]) > maxFile {
			errs = append(errs, &Error{Source: name, Message: fmt.Sprintf("is larger than %d MiB", maxFile>>20)})
			continue
		}
		of, err := Parse(name, files[name], opts)
		found, errs = append(found, of...), append(errs, err)
		if values += valuesOf(of); values > maxFolder {
			return nil, skipped, &Error{Source: name, Message: "has, with the files before it, more values than are read of a folder: make two catalogs of it"}
		}
	}
	return found, skipped, errors.Join(errs...)
}

// valuesOf counts the values of resources. A text is one, however many lines it has.
func valuesOf(found []Resource) int {
	n := 0
	for _, r := range found {
		_ = protorange.Range(r.Message.ProtoReflect(), func(protopath.Values) error {
			n++
			return nil
		})
	}
	return n
}

// InFolder are the files with resources in a folder, and those below it that are not read.
func InFolder(files map[string][]byte, folder string, recursive bool) (read, skipped []string) {
	under := strings.Trim(folder, "/") + "/"
	for _, name := range slices.Sorted(maps.Keys(files)) {
		rest, in := strings.CutPrefix("/"+name, "/"+strings.TrimPrefix(under, "/"))
		switch {
		case !in || !mayHoldResources(name):
		case recursive || !strings.Contains(rest, "/"):
			read = append(read, name)
		default:
			skipped = append(skipped, name)
		}
	}
	return read, skipped
}

// Document is a mapping of a YAML file that is none of Towline's own resources.
type Document struct {
	Source string
	Node   *yaml.Node
}

// Documents reads files, directories and "-" as Load does, whatever their documents say; the items of lists are documents of their own,
// and aliases are what they stand for.
func Documents(paths []string, opts Options) ([]Document, error) {
	return each(paths, opts, ParseDocuments)
}

// each is what is made of every file of the paths, in their order. The error joins all that is wrong, with what is right beside it.
func each[T any](paths []string, opts Options, of func(source string, data []byte) ([]T, error)) ([]T, error) {
	var out []T
	var errs []error
	for _, path := range paths {
		files, others, err := expand(path, opts.Recursive)
		if errs = append(errs, err); opts.Whole && opts.Recursive {
			errs = append(errs, leftOut(paths, others))
		}
		for _, file := range files {
			data, source, err := read(file, opts.Stdin)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			found, err := of(source, data)
			out, errs = append(out, found...), append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}

// ParseDocuments reads the documents of one file, as Documents does.
func ParseDocuments(source string, data []byte) (out []Document, err error) {
	docs, err := documents(source, data)
	errs := []error{err}
	for _, doc := range docs {
		found, err := flatten(source, doc)
		out, errs = append(out, found...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// flatten is a document, or the items of a list.
func flatten(source string, n *yaml.Node) ([]Document, error) {
	nodes := 0
	n, whole := spelledOut(n, &nodes)
	if !whole {
		return nil, &Error{Source: source, Line: n.Line, Message: fmt.Sprintf("the document has more than %d values with its aliases expanded", maxNodes)}
	}
	return items(source, n)
}

// items are a document that has no aliases, or the items of a list, which may be lists.
func items(source string, n *yaml.Node) ([]Document, error) {
	if n.Kind != yaml.MappingNode {
		return nil, &Error{Source: source, Line: n.Line, Message: "takes a mapping, not " + describe(n)}
	}
	list := at(n, "items")
	if list == nil || list.Kind != yaml.SequenceNode || !strings.HasSuffix(scalarAt(n, "kind"), "List") {
		return []Document{{source, n}}, nil
	}
	var out []Document
	var errs []error
	for _, item := range list.Content {
		found, err := items(source, item)
		out, errs = append(out, found...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// spelledOut is a node with its aliases expanded; false: there is too much of it.
func spelledOut(n *yaml.Node, nodes *int) (*yaml.Node, bool) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	out := *n
	out.Content, out.Anchor = make([]*yaml.Node, len(n.Content)), ""
	for i, c := range n.Content {
		if *nodes++; *nodes > maxNodes {
			return n, false
		}
		child, whole := spelledOut(c, nodes)
		if !whole {
			return n, false
		}
		out.Content[i] = child
	}
	return &out, true
}

// Kind is the document's kind.
func (d Document) Kind() string { return scalarAt(d.Node, "kind") }

// Group is the API group of its apiVersion.
func (d Document) Group() string {
	group, _, found := strings.Cut(scalarAt(d.Node, "apiVersion"), "/")
	if !found {
		return ""
	}
	return group
}

// Name is its metadata.name.
func (d Document) Name() string { return d.meta("name") }

// Namespace is its metadata.namespace.
func (d Document) Namespace() string { return d.meta("namespace") }

// InProject is its metadata.project.
func (d Document) InProject() string { return d.meta("project") }

func (d Document) meta(name string) string {
	if meta := at(d.Node, "metadata"); meta != nil {
		return scalarAt(meta, name)
	}
	return ""
}

// Object is such as "application shop".
func (d Document) Object() string {
	return strings.TrimSpace(strings.ToLower(d.Kind()) + " " + d.Name())
}

// Where is such as "apps.yaml:12: application shop".
func (d Document) Where() string {
	where := fmt.Sprintf("%s:%d", d.Source, d.Node.Line)
	if o := d.Object(); o != "" {
		where += ": " + o
	}
	return where
}

// expand is the files of a directory, with the others there, or the path itself.
func expand(path string, recursive bool) (files, others []string, err error) {
	if path == "-" {
		return []string{path}, nil, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fileError(path, err)
	}
	if !info.IsDir() {
		return []string{path}, nil, nil
	}
	files, others, err = folder(path, recursive, nil)
	if err == nil && len(files) == 0 {
		return nil, nil, fleet.Errorf(fleet.ErrInvalid, "%s: the directory has no *.yaml, *.yml or *.json; -R reads those below it, too", path)
	}
	return files, others, err
}

func read(file string, stdin io.Reader) (data []byte, source string, err error) {
	in := stdin
	source = "stdin"
	if file != "-" {
		source = file
		f, err := os.Open(file)
		if err != nil {
			return nil, "", fileError(file, err)
		}
		defer f.Close()
		in = f
	}
	data, err = io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fleet.Errorf(fleet.ErrInvalid, "%s: is larger than %d MiB", source, maxFile>>20)
	}
	return data, source, err
}

func fileError(path string, err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		err = pathError.Err
	}
	return fleet.Errorf(fleet.ErrInvalid, "%s: %v", path, err)
}

// Parse reads the documents of one file.
func Parse(source string, data []byte, opts Options) ([]Resource, error) {
	docs, err := documents(source, data)
	if err != nil {
		return nil, err
	}
	if opts.Whole && len(docs) == 0 && !bytes.ContainsRune(data, '#') {
		return nil, &Error{Source: source, Message: "is empty: was it cut off? Take the file away, or say so in a comment, if what it had is to go"}
	}
	var out []Resource
	var errs []error
	for _, doc := range docs {
		found, err := parseDocument(source, doc, opts)
		out, errs = append(out, found...), append(errs, err...)
	}
	return out, errors.Join(errs...)
}

// documents parses YAML. JSON is YAML but for tabs, so a JSON text that YAML refuses is tried without its white space.
func documents(source string, data []byte) ([]*yaml.Node, error) {
	if why := manifest.Unreadable(data); why != "" {
		return nil, &Error{Source: source, Message: why + ": split it"}
	}
	docs, err := yamlDocuments(data)
	if err == nil {
		return docs, nil
	}
	var compact bytes.Buffer
	if json.Compact(&compact, data) == nil {
		if docs, err := yamlDocuments(compact.Bytes()); err == nil {
			return docs, nil
		}
	}
	return nil, syntaxError(source, data, err)
}

func yamlDocuments(data []byte) ([]*yaml.Node, error) {
	var docs []*yaml.Node
	for dec := yaml.NewDecoder(bytes.NewReader(manifest.WithoutMarks(data))); ; {
		var doc yaml.Node
		err := manifest.DecodeYAML(dec, &doc)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, err
		}
		if len(doc.Content) == 1 && !isNull(doc.Content[0]) {
			docs = append(docs, doc.Content[0])
		}
	}
}

var (
	yamlLine   = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)
	yamlAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// syntaxError does not name an anchor that there is not: it may be a password that begins with * and is not in quotes.
func syntaxError(source string, data []byte, err error) error {
	e := &Error{Source: source, Message: "is no YAML: " + err.Error()}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		e.Line, _ = strconv.Atoi(m[1])
		e.Message = "is no YAML: " + m[2]
		if anchor := yamlAnchor.FindStringSubmatch(m[2]); anchor != nil {
			before, _, _ := bytes.Cut(data, []byte("*"+anchor[1]))
			e.Line = 1 + bytes.Count(before, []byte("\n"))
			e.Message = "is no YAML: unknown anchor: put text that begins with * in quotes"
		}
	}
	return e
}

// parseDocument reads one document, or the items of a list.
func parseDocument(source string, n *yaml.Node, opts Options) ([]Resource, []error) {
	if n.Kind != yaml.MappingNode {
		return nil, []error{&Error{Source: source, Line: n.Line, Message: "takes a mapping with apiVersion, kind and metadata, not " + describe(n)}}
	}
	kind := scalarAt(n, "kind")
	if items := at(n, "items"); items != nil && (kind == "" || kind == "List") {
		return parseItems(source, items, opts)
	}
	r, errs := parseOne(source, n, kind, opts)
	if len(errs) > 0 {
		return nil, errs
	}
	return []Resource{r}, nil
}

func parseItems(source string, items *yaml.Node, opts Options) (out []Resource, errs []error) {
	if items.Kind != yaml.SequenceNode {
		return nil, []error{&Error{Source: source, Line: items.Line, Path: "items", Message: "takes a list, not " + describe(items)}}
	}
	if opts.Whole && len(items.Content) == 0 {
		return nil, []error{&Error{Source: source, Line: items.Line, Path: "items", Message: "is empty: did what printed the list find nothing? Take the list away, if what it had is to go"}}
	}
	for _, item := range items.Content {
		found, err := parseDocument(source, item, opts)
		out, errs = append(out, found...), append(errs, err...)
	}
	return out, errs
}

func parseOne(source string, n *yaml.Node, kind string, opts Options) (Resource, []error) {
	name := ""
	if meta := at(n, "metadata"); meta != nil {
		name = scalarAt(meta, "name")
	}
	object := fleet.Clip(strings.TrimSpace(strings.ToLower(kind)+" "+name), maxKey)
	fail := func(path, format string, args ...any) (Resource, []error) {
		line := n.Line
		if found := at(n, path); found != nil {
			line = found.Line
		}
		return Resource{}, []error{&Error{Source: source, Line: line, Object: object, Path: path, Message: fmt.Sprintf(format, args...)}}
	}
	of := opts.kind(kind)
	switch version := scalarAt(n, "apiVersion"); {
	case kind == "":
		return fail("kind", "is required: %s", quoteList(opts.kindNames()))
	case of == nil:
		return fail("kind", "%s", unknownKind(kind, opts.kindNames()))
	case version != fleet.APIVersion:
		return fail("apiVersion", "is %q, not %s", version, fleet.APIVersion)
	case name == "":
		return fail("metadata.name", "is required")
	}
	m := of.ProtoReflect().New().Interface()
	if errs := decode(source, object, m, n, skipOutput(opts)); len(errs) > 0 {
		return Resource{}, errs
	}
	return Resource{Source: source, Line: n.Line, Kind: kind, Message: m}, nil
}

func nameOf(m proto.Message) string { return string(m.ProtoReflect().Descriptor().Name()) }

// kind is the message of a kind, or nil.
func (o Options) kind(name string) proto.Message {
	for _, m := range o.Kinds {
		if nameOf(m) == name {
			return m
		}
	}
	return nil
}

func (o Options) kindNames() []string {
	out := make([]string, len(o.Kinds))
	for i, m := range o.Kinds {
		out[i] = nameOf(m)
	}
	return out
}

func unknownKind(kind string, kindNames []string) string {
	if near := Nearest(kind, kindNames); near != "" {
		return fmt.Sprintf("%q is unknown; did you mean %s?", kind, near)
	}
	return fmt.Sprintf("%q is none of %s; Kubernetes objects belong into the source of a Module", kind, quoteList(kindNames))
}

// skipOutput reports the fields that the hub fills in; what `get -o yaml` prints goes back into `apply`.
func skipOutput(opts Options) func(string) bool {
	output := []string{"status", "metadata.resourceVersion", "metadata.creationTimestamp",
		"metadata.deletionTimestamp", "metadata.changedBy", "metadata.changeReason", "metadata.origin", "metadata.originRef"}
	if !opts.KeepGeneration {
		output = append(output, "metadata.generation", "metadata.uid")
	}
	return func(path string) bool { return slices.Contains(output, path) }
}

// at is the value of a key, or nil.
func at(n *yaml.Node, key string) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func scalarAt(n *yaml.Node, key string) string {
	v := at(n, key)
	if v == nil || v.Kind != yaml.ScalarNode || isNull(v) {
		return ""
	}
	return v.Value
}
