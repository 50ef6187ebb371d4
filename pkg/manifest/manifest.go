// Package manifest turns YAML and JSON files into Kubernetes objects: identity, canonical bytes, order, placeholders.
// It owns what a manifest may say and in which bytes it is hashed; it must not know where files come from, which
// cluster an object goes to, or how it is applied.
package manifest

import (
	"fmt"
	"maps"
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// Limits of a set of manifests. They bound what a hostile author can make a hub or an agent hold.
const (
	MaxObjects     = 5000     // objects in a set
	MaxObjectBytes = 1 << 20  // canonical bytes of one object
	MaxTotalBytes  = 32 << 20 // text of all files, and canonical bytes of all objects
	MaxDepth       = 100      // lists and maps inside one another
	MaxDocuments   = 10000    // documents of a file, empty ones included
	MaxTokens      = 1 << 20  // values that a document of YAML may have at most, by its signs
	MaxExpansion   = 10       // what aliases may add, as a multiple of the file's size, and at most MaxTotalBytes

	maxDocumentBytes = 16 << 20
	maxTagLines      = 1000
	minExpansion     = 64 << 10
)

// Object is one checked manifest.
type Object struct {
	// ID may hold placeholders in Namespace and Name; see ResolveID.
	ID      fleet.ObjectID
	Version string
	Wave    int32
	Labels  map[string]string
	// Raw is the canonical JSON, with placeholders as text.
	Raw []byte
	// Placeholders are the declared names that the object uses, sorted; IdentityPlaceholders those in its ID.
	Placeholders         []string
	IdentityPlaceholders []string
	// Extended says that its placeholders are more than ${NAME}, so that an agent has to know of Substitution.
	Extended bool
	// Keep says that a chart has it stay when it is dropped, and when the module goes.
	Keep bool
	// Hook says that a chart has it come before the rest, or behind it.
	Hook bool
	// Once says that a chart has it made when it is installed, and never written again.
	Once bool
	// Uncounted says that the module is ready without it.
	Uncounted bool
	// File and Line say where it was read.
	File string
	Line int
}

// Place is FILE:LINE, for messages.
func (o Object) Place() string { return place{o.File, o.Line}.String() }

// Digest is the SHA-256 of Raw.
func (o Object) Digest() fleet.Digest { return fleet.DigestOf(o.Raw) }

// Entry is the object's place in a bundle.
func (o Object) Entry() fleet.BundleEntry {
	return fleet.BundleEntry{Digest: o.Digest(), ID: o.ID, Version: o.Version, Wave: o.Wave}
}

// Options say how manifests are read.
type Options struct {
	// Namespace is for namespaced objects that name none.
	Namespace string
	// Declared are the names that ${NAME} may stand for; every other ${…} is text.
	Declared []string
	// Optional are those of them that have no value in some clusters.
	Optional []string
	// Late are those of them that only an agent knows the values of.
	Late []string
	// Types are of those that are more than text.
	Types map[string]fleet.BindingType
	// Strict refuses ${NAME} of a name that is not declared.
	Strict bool
	// Chart is that the manifests are those of a Helm chart: of a key that is given twice the last one counts, as for Helm, hooks have
	// their waves, and what the chart keeps is marked.
	Chart bool
}

// ParseSet reads files into objects in the order of their identity. Every error is a fleet.FieldError that names file,
// line and object.
//
// Which kinds are namespaced is known for the kinds of Kubernetes and of the CustomResourceDefinitions in the set. A
// kind that is neither has the namespace that the object names; if it names none it gets Options.Namespace; without
// one it counts as cluster-scoped. The agent finds out and says so if the cluster sees it otherwise.
func ParseSet(files map[string][]byte, opts Options) ([]Object, error) {
	if err := checkSize(files); err != nil {
		return nil, err
	}
	var docs []document
	for _, name := range slices.Sorted(maps.Keys(files)) {
		found, err := readFile(name, files[name], opts.Chart)
		if err != nil {
			return nil, err
		}
		docs = append(docs, found...)
		if len(docs) > MaxObjects {
			return nil, fleet.Invalidf(docs[MaxObjects].at.String(), "is object %d; at most %d objects are allowed: split the module", MaxObjects+1, MaxObjects)
		}
	}
	b := newBuilder(opts)
	for i := range docs {
		b.scopes.learn(docs[i].value)
	}
	return b.buildAll(docs)
}

func checkSize(files map[string][]byte) error {
	total := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if total += len(files[name]); total > MaxTotalBytes {
			return fleet.Invalidf(name, "brings the manifests to more than %d MiB: split the module", MaxTotalBytes>>20)
		}
	}
	return nil
}

func (b *builder) buildAll(docs []document) ([]Object, error) {
	out := make([]Object, 0, len(docs))
	seen := make(map[fleet.ObjectID]place, len(docs))
	total := 0
	for _, d := range docs {
		o, err := b.build(d.value, d.at)
		if err != nil {
			return nil, err
		}
		if first, twice := seen[o.ID]; twice {
			return nil, fleet.Invalidf(d.at.String(), "%s is also in %s: remove one of them", o.ID, first)
		}
		seen[o.ID] = d.at
		if total += len(o.Raw); total > MaxTotalBytes {
			return nil, fleet.Invalidf(d.at.String(), "%s brings the objects to more than %d MiB: split the module", o.ID, MaxTotalBytes>>20)
		}
		out = append(out, o)
	}
	SortByIdentity(out)
	return out, nil
}

// SortByIdentity orders objects as a bundle does.
func SortByIdentity(objects []Object) {
	slices.SortStableFunc(objects, func(a, b Object) int { return a.ID.Compare(b.ID) })
}

// ToBundle makes the entries of a bundle, in order.
func ToBundle(objects []Object) []fleet.BundleEntry {
	sorted := slices.Clone(objects)
	SortByIdentity(sorted)
	out := make([]fleet.BundleEntry, len(sorted))
	for i, o := range sorted {
		out[i] = o.Entry()
	}
	return out
}

// place is where something stands.
type place struct {
	file string
	line int
}

func (p place) String() string {
	if p.line == 0 {
		return p.file
	}
	return fmt.Sprintf("%s:%d", p.file, p.line)
}
