// Package importer converts what other tools deliver by, Applications of Argo CD, Kustomizations and HelmReleases of Flux, GitRepos of
// Fleet, into the Modules that do the same. It computes: files are read, and what it says is printed, by its callers. No field is dropped
// in silence: each is carried over, means nothing here, is named in a Note, or is an error because the other tool has no such field.
package importer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/resource"
	"towline.dev/towline/pkg/wire"
)

// NoteKind says what a Note is about.
type NoteKind int

// Kinds of notes.
const (
	Dropped NoteKind = iota // the module does not have it
	Check                   // the module has it, and a person should look at it
)

// Note is a field of what was read, and what to know of it.
type Note struct {
	Kind NoteKind
	Path string // such as spec.syncPolicy.retry, or GitRepository flux-system/shop: spec.verify
	Text string
}

// Module is a converted module with what is to be known of it.
type Module struct {
	*v1.Module
	From  string // such as Application shop
	Notes []Note
}

// Options say what the files do not.
type Options struct {
	// Project of the modules; empty: that which the tool's own project says, or default.
	Project string
	// Clusters are names of clusters by what the other tool calls them; "" is for all that are not named.
	Clusters map[string]string
	// Selector, if set, is the placement of every module, whatever the files say.
	Selector *v1.LabelSelector
	// Package is plain, kustomize or helm, for what does not say how its files are to be read; empty: the usual one of the tool.
	Package string
}

// Kinds are the words for what can be imported.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// kind is something that can be imported.
type kind struct {
	group, kind string
	convert     func(*run, resource.Document) ([]Module, error)
}

var kinds = map[string]kind{
	"argocd-application": {"argoproj.io", "Application", (*run).application},
	"flux-kustomization": {"kustomize.toolkit.fluxcd.io", "Kustomization", (*run).kustomization},
	"flux-helmrelease":   {"helm.toolkit.fluxcd.io", "HelmRelease", (*run).helmRelease},
	"fleet-gitrepo":      {"fleet.cattle.io", "GitRepo", (*run).gitRepo},
}

// Convert converts every document of the kind. What else is in the documents, it is looked up in, and what of that no module needs is
// named in unread.
func Convert(word string, docs []resource.Document, o Options) (modules []Module, unread []string, err error) {
	k, ok := kinds[word]
	if !ok {
		return nil, nil, fleet.Errorf(fleet.ErrInvalid, "%q cannot be imported; use one of %s", word, strings.Join(Kinds(), ", "))
	}
	r := &run{Options: o, docs: docs, used: map[int]bool{}}
	var errs []error
	for i, d := range docs {
		if err := refused(d); err != nil {
			errs = append(errs, err)
		}
		if d.Kind() != k.kind || d.Group() != k.group {
			continue
		}
		r.used[i] = true
		found, err := k.convert(r, d)
		modules, errs = append(modules, found...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	if len(modules) == 0 {
		return nil, nil, k.notAmong(docs)
	}
	for i, d := range docs {
		if !r.used[i] {
			unread = append(unread, d.Where())
		}
	}
	return modules, unread, errors.Join(distinct(modules)...)
}

// notAmong says what the documents hold instead, and by which word that can be imported.
func (k kind) notAmong(docs []resource.Document) error {
	const most = 5
	var there, words []string
	for _, d := range docs {
		there = append(there, d.Where())
		for _, word := range Kinds() {
			if other := kinds[word]; d.Kind() == other.kind && d.Group() == other.group && !slices.Contains(words, word) {
				words = append(words, word)
			}
		}
	}
	says := fmt.Sprintf("there is no %s of %s in what was read", k.kind, k.group)
	if len(there) > 0 {
		says += ": " + fleet.Some(there, most)
	}
	if len(words) > 0 {
		says += "; that is for import " + strings.Join(words, " and ")
	}
	return fleet.Errorf(fleet.ErrInvalid, "%s", says)
}

// refused names kinds that make others, which no single module stands for.
func refused(d resource.Document) error {
	if d.Kind() == "ApplicationSet" && d.Group() == "argoproj.io" {
		return &resource.Error{Source: d.Source, Line: d.Node.Line, Object: d.Object(), Message: "an ApplicationSet makes Applications from generators: for one a cluster write a single Module, " +
			"whose placement selects the clusters by their labels, with bindings for what differs; or import the Applications that it has made (kubectl get applications -o yaml)"}
	}
	return nil
}

// distinct refuses two modules of one name.
func distinct(modules []Module) (errs []error) {
	from := map[string]string{}
	for _, m := range modules {
		name := m.GetMetadata().GetProject() + "/" + m.GetMetadata().GetName()
		if first, twice := from[name]; twice {
			errs = append(errs, fleet.Errorf(fleet.ErrInvalid, "%s and %s would both be module %s: import each to a project of its own with -p, or rename one", first, m.From, m.GetMetadata().GetName()))
			continue
		}
		from[name] = m.From
	}
	return errs
}

// run is one conversion.
type run struct {
	Options
	docs []resource.Document
	used map[int]bool
}

// find looks a document up; an empty namespace in the question or in the document matches any.
func (r *run) find(group, kind, namespace, name string) (resource.Document, bool) {
	for i, d := range r.docs {
		if d.Group() == group && d.Kind() == kind && d.Name() == name && (namespace == "" || d.Namespace() == "" || d.Namespace() == namespace) {
			r.used[i] = true
			return d, true
		}
	}
	return resource.Document{}, false
}

// What no field of a manifest shows, but its files may have.
const (
	// seesNoCluster is of charts that are told the version of Kubernetes: Argo CD tells them the APIs of the cluster all the same.
	seesNoCluster = "with it the chart sees no cluster: what it makes only where a kind is known (.Capabilities.APIVersions), such as a ServiceMonitor, is made if package.helm.apiVersions names that, as in [monitoring.coreos.com/v1]"
	// readsNoSSA and readsNoSubstitute are of objects that Flux writes, or fills in, in another way.
	readsNoSSA        = "the annotation kustomize.toolkit.fluxcd.io/ssa of an object is not read: Merge is how every object is written here; one with IfNotPresent or Ignore has to be taken out of the files, or its fields listed in a policy with ignoreFields"
	readsNoSubstitute = "the annotation or label kustomize.toolkit.fluxcd.io/substitute: disabled of an object is not read, and what is declared would be put into it: give it the annotation towline.dev/substitute: disabled"
	// readsNoHook and readsNoReconcile are of objects that the other tool applies at another time, or not at all.
	readsNoHook      = "the annotation argocd.argoproj.io/hook of an object is not read, and it would be applied at once, as any: a Job that is to run after a failed sync, or after the end, or never (SyncFail, PostDelete, Skip), has to be taken out of the files"
	readsNoReconcile = "the annotation kustomize.toolkit.fluxcd.io/reconcile: disabled of an object is not read, and it would be written as any, and deleted with the module: take it out of the files, or write {match: {kinds: [KIND], names: [NAME]}, readOnly: true} into policies"
	// readsNoAnnotation is of objects that the other tool does not delete.
	readsNoAnnotation = "the annotation %s of an object is not read, and it would be deleted: for those that have it write {match: {kinds: [KIND], names: [NAME]}, prune: Never} into policies"
)

// draft is a module that is being made of a manifest.
type draft struct {
	*run
	*tree
	m        *v1.Module
	notes    []Note
	specific []*v1.Policy // of objects that are matched
	general  v1.Policy    // of all objects
	interval string       // how often the source is looked at; empty: it is not
	errs     []error
}

func (r *run) draft(doc resource.Document, name string) *draft {
	d := &draft{run: r, m: &v1.Module{ApiVersion: fleet.APIVersion, Kind: "Module",
		Metadata: &v1.Metadata{Name: label(name), Project: r.Project}, Spec: &v1.ModuleSpec{Source: &v1.Source{}, Placement: &v1.Placement{}}}}
	d.tree = newTree(doc, &d.notes, "")
	f := d.root()
	f.at("apiVersion").pass()
	f.at("kind").pass()
	f.at("status").pass()
	if d.m.Metadata.Name != name {
		f.at("metadata", "name").check("%q is no name of a module: it is %s", name, d.m.Metadata.Name)
	}
	return d
}

// beside reads another manifest that the module needs; its notes are the module's.
func (d *draft) beside(doc resource.Document) field {
	t := newTree(doc, &d.notes, cmp.Or(strings.TrimSpace(doc.Kind()+" "+doc.Name()), "fleet.yaml"))
	f := t.root()
	f.at("apiVersion").pass()
	f.at("kind").pass()
	f.at("status").pass()
	f.at("metadata").pass()
	return f
}

// end takes over what is wrong with a manifest beside.
func (d *draft) end(f field) { d.errs = append(d.errs, f.t.finish()...) }

// metadata reads names, labels and annotations; what the API server writes says nothing, and what the tool itself reads means nothing here.
func (d *draft) metadata(tool string) {
	f := d.root().at("metadata")
	for _, name := range []string{"name", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName"} {
		f.at(name).pass()
	}
	f.at("namespace").drop("a module is in a project, and not in a namespace")
	f.at("ownerReferences").drop("nothing owns a module")
	for key, value := range f.at("labels").table() {
		if d.m.Metadata.Labels == nil {
			d.m.Metadata.Labels = map[string]string{}
		}
		d.m.Metadata.Labels[key] = value
	}
	a := f.at("annotations")
	for _, key := range a.keys() {
		switch {
		case key == "kubectl.kubernetes.io/last-applied-configuration":
			a.at(key).pass()
		case strings.Contains(key, tool):
			a.at(key).drop("is a word to that tool, and means nothing here")
		default:
			if d.m.Metadata.Annotations == nil {
				d.m.Metadata.Annotations = map[string]string{}
			}
			d.m.Metadata.Annotations[key] = a.at(key).text()
		}
	}
}

// place puts the module into the cluster that the tool calls by a name.
func (d *draft) place(f field, theirs string) {
	if d.Selector != nil {
		return
	}
	name, mapped := d.Clusters[theirs]
	if !mapped {
		name, mapped = d.Clusters[""]
	}
	if !mapped {
		name = label(theirs)
		f.check("is cluster %s of the placement: if it has another name here, or more clusters are to have the module, say --cluster %s=NAME or -l LABEL=VALUE", name, theirs)
	}
	if !slices.Contains(d.m.Spec.Placement.Clusters, name) {
		d.m.Spec.Placement.Clusters = append(d.m.Spec.Placement.Clusters, name)
	}
}

// finish is the module, or what is wrong.
func (d *draft) finish() (Module, error) {
	if d.Selector != nil {
		d.m.Spec.Placement = &v1.Placement{Selector: d.Selector}
	}
	d.m.Spec.Policies = d.specific
	if general := &d.general; general.Prune+general.Drift+general.Delete+general.Recreate+general.Adopt != "" {
		d.m.Spec.Policies = append(d.m.Spec.Policies, general)
	}
	if field, _ := wire.Exact(d.m.Spec.Source); field == "" && d.interval != "" {
		d.m.Spec.Source.Follow = &v1.Follow{Interval: d.interval}
	}
	errs := append(d.tree.finish(), d.errs...)
	if _, err := wire.ModuleFromProto(d.m); err != nil && len(errs) == 0 {
		d.notes = append(d.notes, Note{Kind: Check, Path: "the module", Text: "is refused as it stands: " + err.Error()})
	}
	return Module{Module: d.m, From: d.Kind() + " " + d.Name(), Notes: d.notes}, errors.Join(errs...)
}

// packaged says how files are to be read that do not say so themselves.
func (d *draft) packaged(f field, usual, why string) string {
	if d.Package != "" {
		return d.Package
	}
	f.check("%s; it is imported as %s, and --package says otherwise", why, usual)
	return usual
}

// follow has the source looked at again as often as the other tool does, as far as a source can be.
func (d *draft) follow(f field, interval string) {
	every, err := time.ParseDuration(interval)
	switch {
	case err != nil:
		f.t.fail(f.n, f.path, "%q is no time, such as 5m", interval)
		return
	case every < follow.MinInterval:
		f.check("the source is looked at every %s, and no more often", follow.MinInterval)
		interval = follow.MinInterval.String()
	case every > follow.MaxInterval:
		f.check("the source is looked at every %s, and no less often", follow.MaxInterval)
		interval = follow.MaxInterval.String()
	}
	d.interval = interval
}

// secret names the secret that a source is to have, and the command that makes it.
func (d *draft) secret(f field, name, keys string) string {
	name = label(name)
	project := ""
	if p := d.m.Metadata.Project; p != "" && p != fleet.DefaultProject {
		project = " -p " + p
	}
	text := fmt.Sprintf("its values are not read; run: towline secret set %s%s %s", name, project, keys)
	for _, n := range d.notes {
		if n.Text == text {
			return name
		}
	}
	f.check("%s", text)
	return name
}

// label makes a DNS label of a name.
func label(s string) string {
	var b strings.Builder
	for _, c := range strings.ToLower(s) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			b.WriteRune(c)
			continue
		}
		if b.Len() > 0 && !strings.HasSuffix(b.String(), "-") {
			b.WriteByte('-')
		}
	}
	out := b.String()
	out = out[:min(len(out), 63)]
	return cmp.Or(strings.Trim(out, "-"), "x")
}
