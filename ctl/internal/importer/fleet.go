package importer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
)

const fleetGroup = "fleet.cattle.io"

// gitRepo makes a module of each path of a GitRepo of Fleet.
func (r *run) gitRepo(doc resource.Document) ([]Module, error) {
	paths := newTree(doc, &[]Note{}, "").root().at("spec", "paths").texts()
	if len(paths) == 0 {
		paths = []string{""}
	}
	var out []Module
	var errs []error
	for _, dir := range paths {
		dir = strings.Trim(path.Clean("/"+dir), "/")
		name := doc.Name()
		if len(paths) > 1 {
			name += "-" + label(dir)
		}
		d := &rancher{draft: r.draft(doc, name), dir: dir}
		m, err := d.convert(len(paths) == 1)
		out, errs = append(out, m), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// rancher converts one path of a GitRepo.
type rancher struct {
	*draft
	dir    string
	bundle string // the name that fleet.yaml gives it
}

func (d *rancher) convert(alone bool) (Module, error) {
	d.metadata(fleetGroup)
	for _, item := range d.root().at("metadata", "finalizers").items() {
		item.pass()
	}
	spec := d.root().at("spec")
	if strings.ContainsAny(d.dir, "*?[") {
		spec.at("paths").drop("name the folders, one by one: each is a module")
	}
	spec.at("paths").pass()
	d.source(spec)
	d.m.Spec.Namespace = spec.at("targetNamespace").text()
	if ns := spec.at("targetNamespace"); ns.set() {
		ns.check("Fleet puts every object there; here it is for those that name no namespace, and a Namespace %s has to be among the files", ns.text())
	}
	d.targets(spec.at("targets"))
	d.kept(spec)
	d.unused(spec)
	if doc, ok := d.bundleFile(alone); ok {
		f := d.beside(doc)
		d.bundled(f)
		d.end(f)
	} else {
		d.root().at("spec", "paths").check("if the folder has a fleet.yaml, import it as well, with another -f")
		none := field{t: d.tree}
		d.packageOf(none, none)
	}
	return d.draft.finish()
}

func (d *rancher) source(spec field) {
	repo := spec.at("repo")
	git := &v1.GitSource{Url: d.gitURL(repo), Path: d.dir}
	revision, branch := spec.at("revision"), spec.at("branch")
	switch {
	case revision.set():
		branch.pass()
		git.Ref = d.gitRef(revision)
		if git.Ref.GetBranch() != "" {
			git.Ref = &v1.GitRef{Tag: revision.text()}
		}
	case branch.set():
		git.Ref = &v1.GitRef{Branch: branch.text()}
	default:
		git.Ref = &v1.GitRef{Branch: "master"} // as Fleet has it
	}
	keys := "username=NAME password=-"
	if strings.HasPrefix(git.Url, "ssh://") {
		keys = sshKeys
	}
	if secret := spec.at("clientSecretName"); secret.set() {
		git.SecretName = d.secret(secret, secret.text(), keys)
	} else if keys == sshKeys {
		git.SecretName = d.secret(repo, d.Name()+"-git", keys)
	}
	d.m.Spec.Source.Git = git
	interval := spec.at("pollingInterval")
	switch {
	case spec.at("disablePolling").flag():
		interval.pass()
		spec.at("disablePolling").drop("the source is looked at by a put, and when CI says towline resync module %s", d.m.Metadata.Name)
	case interval.set():
		d.follow(interval, interval.text())
	default:
		d.follow(repo, "15s") // as Fleet has it
	}
	spec.at("caBundle").drop("put it into the source's secret, as caFile")
	spec.at("insecureSkipTLSVerify").dropIf(spec.at("insecureSkipTLSVerify").flag(), "certificates are checked: put the authority into the source's secret, as caFile")
}

// parent is a place for a note about what is not said.
func (f field) parent(at string) field { return field{t: f.t, path: at} }

func (d *rancher) kept(spec field) {
	if spec.at("keepResources").flag() {
		d.general.Delete = fleet.DeleteOrphan
	}
	spec.at("deleteNamespace").pass() // a Namespace of the module goes with it
	d.drift(spec.at("correctDrift"))
}

// drift is corrected where Fleet is told so, and else only shown.
func (d *rancher) drift(f field) {
	if !f.set() && f.path != "spec.correctDrift" {
		return
	}
	d.general.Drift = fleet.DriftReport
	if f.at("enabled").flag() {
		d.general.Drift = ""
	}
	f.at("force").dropIf(f.at("force").flag(), "drift is corrected field by field; what cannot be changed: recreate: IfImmutable")
	f.at("keepFailHistory").pass()
}

func (d *rancher) unused(spec field) {
	spec.at("paused").dropIf(spec.at("paused").flag(), "put the module and run: towline rollout pause %s", d.m.Metadata.Name)
	spec.at("serviceAccount").drop("objects are written by the agent: what it may do is for its rights and the cluster's own policy to say (docs/local-policy.md)")
	spec.at("forceSyncGeneration").drop("towline resync module %s looks at the source at once", d.m.Metadata.Name)
	spec.at("helmSecretName").drop("name a secret in source.helm.secretName of the modules with charts")
	spec.at("helmSecretNameForPaths").drop("name a secret in source.helm.secretName of the modules with charts")
	spec.at("helmRepoURLRegex").drop("credentials go to the repository's own host only")
	for _, name := range []string{"imageScanInterval", "imageScanCommit", "imageSyncInterval"} {
		spec.at(name).drop("nothing is written back to Git")
	}
	spec.at("ociRegistry").drop("the hub keeps what it rendered")
	spec.at("webhookSecret").drop("set source.follow.webhook, and the key with: towline secret set webhook webhook=-")
	spec.at("bundles").drop("write a Module for each folder")
}

// bundleFile is the fleet.yaml of the path: a document without a kind, in a folder of that name; or the only one for the only path.
func (d *rancher) bundleFile(alone bool) (resource.Document, bool) {
	var found []int
	for i, doc := range d.docs {
		if doc.Kind() != "" {
			continue
		}
		folder := "/" + strings.Trim(path.Dir(path.Clean(strings.ReplaceAll(doc.Source, `\`, "/"))), "/")
		if alone || strings.HasSuffix(folder, "/"+d.dir) {
			found = append(found, i)
		}
	}
	if len(found) != 1 {
		return resource.Document{}, false
	}
	d.used[found[0]] = true
	return d.docs[found[0]], true
}

// bundled reads a fleet.yaml.
func (d *rancher) bundled(f field) {
	d.options(f)
	d.bundle = f.at("name").text()
	f.at("name").drop("a module of a path has the name of the GitRepo")
	f.at("labels").drop("the module has the labels of the GitRepo")
	f.at("annotations").drop("the module has the annotations of the GitRepo")
	f.at("paused").dropIf(f.at("paused").flag(), "put the module and run: towline rollout pause %s", d.m.Metadata.Name)
	for _, item := range f.at("dependsOn").items() {
		item.at("acceptedStates").drop("a module is begun when the other one is Ready")
		item.at("selector").drop("name the modules")
		if name := item.at("name"); name.set() {
			d.m.Spec.DependsOn = append(d.m.Spec.DependsOn, &v1.Dependency{Module: label(name.text())})
			name.check("is the name of a bundle: here it has to be the name of a module")
		}
	}
	d.rollout(f.at("rolloutStrategy"))
	d.packageOf(f.at("helm"), f.at("kustomize"))
	for _, item := range f.at("targetCustomizations").items() {
		d.customization(item)
	}
	if own := f.at("overrideTargets"); own.set() {
		d.m.Spec.Placement = &v1.Placement{}
		d.targets(own)
	}
	f.at("imageScans").drop("nothing is written back to Git")
	f.at("targets").drop("write them into the GitRepo, or into overrideTargets")
}

// options are those that a bundle and its customizations share, but for how it is packaged.
func (d *rancher) options(f field) {
	if ns := f.at("namespace"); ns.set() {
		d.m.Spec.Namespace = ns.text()
		ns.check("Fleet puts every object there; here it is for those that name no namespace, and a Namespace %s has to be among the files", ns.text())
	}
	if ns := f.at("defaultNamespace"); ns.set() {
		if d.m.Spec.Namespace == "" {
			d.m.Spec.Namespace = ns.text()
		}
		ns.check("the namespace is not made by itself: a Namespace %s has to be among the files", ns.text())
	}
	f.at("namespaceLabels").drop("put a Namespace with these labels among the files")
	f.at("namespaceAnnotations").drop("put a Namespace with these annotations among the files")
	if f.at("keepResources").flag() {
		d.general.Delete = fleet.DeleteOrphan
	}
	f.at("deleteNamespace").pass()
	f.at("deleteCRDResources").pass()
	if drift := f.at("correctDrift"); drift.set() {
		d.drift(drift)
	}
	f.at("serviceAccount").drop("objects are written by the agent: what it may do is for its rights and the cluster's own policy to say (docs/local-policy.md)")
	f.at("forceSyncGeneration").drop("towline resync module %s looks at the source at once", d.m.Metadata.Name)
	f.at("yaml").drop("write the overlays as a kustomization, and have its components in overrides")
	f.at("ignore").drop("write a rule for the kind into healthRules")
	f.at("bundleDeploymentTemplate").drop("there is no object of a deployment in between")
	d.ignored(f.at("diff"))
}

func (d *rancher) ignored(diff field) {
	var rules []ignoring
	for _, item := range diff.at("comparePatches").items() {
		group, _, found := strings.Cut(item.at("apiVersion").text(), "/")
		if !found {
			group = ""
		}
		r := ignoring{match: [4]string{group, item.at("kind").text(), item.at("namespace").text(), item.at("name").text()}, pointers: item.at("jsonPointers").texts()}
		for _, op := range item.at("operations").items() {
			op.at("value").pass()
			if op.at("op").text() == "remove" {
				r.pointers = append(r.pointers, op.at("path").text())
				continue
			}
			op.drop("a policy ignores fields: {prune: Never, drift: Ignore} of the object ignores all of it")
		}
		rules = append(rules, r)
	}
	diff.at("jsonPointers").drop("write them into comparePatches of an object")
	d.specific = append(d.specific, ignorePolicies(rules)...)
}

func (d *rancher) packageOf(helm, kustomize field) {
	switch {
	case kustomize.set():
		d.m.Spec.Package = &v1.Package{Kustomize: &v1.KustomizePackage{Path: strings.TrimPrefix(kustomize.at("dir").text(), "./")}}
		if helm.set() {
			d.helmOptions(helm)
			helm.at("values").drop("a kustomization has no values")
			helm.at("valuesFiles").drop("a kustomization has no values")
			helm.at("chart").drop("kustomizations do not render charts")
		}
	case helm.at("chart").set() || helm.at("values").set() || helm.at("valuesFiles").set():
		d.m.Spec.Package = &v1.Package{Helm: d.helm(helm)}
	default:
		if helm.set() {
			d.helmOptions(helm)
		}
		switch d.packaged(d.root().at("spec", "paths"), "plain", "Fleet looks into the folder whether it has a Chart.yaml or a kustomization.yaml") {
		case "helm":
			d.m.Spec.Package = &v1.Package{Helm: &v1.HelmPackage{ReleaseName: d.releaseName(helm)}}
		case "kustomize":
			d.m.Spec.Package = &v1.Package{Kustomize: &v1.KustomizePackage{}}
		}
	}
}

func (d *rancher) helm(f field) *v1.HelmPackage {
	out := &v1.HelmPackage{}
	chart, repo, version := f.at("chart").text(), f.at("repo"), f.at("version").text()
	files := f.at("valuesFiles")
	switch {
	case repo.set() || strings.HasPrefix(chart, "oci://"):
		at := strings.TrimSuffix(d.bareURL(repo), "/")
		if at == "" {
			at, chart = chart[:max(strings.LastIndex(chart, "/"), 0)], path.Base(chart)
		}
		d.m.Spec.Source = &v1.Source{Helm: &v1.HelmSource{Repo: at, Chart: chart, Version: version}}
		d.root().at("spec", "repo").check("the module has the chart as its source, and nothing of the Git repository: the values of fleet.yaml are in package.helm.values")
		files.drop("they are in the Git repository: put what they have into package.helm.values")
	case strings.Contains(chart, "://"):
		f.at("chart").drop("a chart is in the source, or in a repository of charts: name that as repo")
	default:
		out.Path = strings.Trim(path.Clean("/"+chart), "/")
		for _, name := range files.texts() {
			out.ValuesFiles = append(out.ValuesFiles, strings.TrimPrefix(path.Clean(name), "./"))
		}
	}
	out.ReleaseName = d.releaseName(f)
	out.Values = d.templated(f.at("values"))
	d.helmOptions(f)
	return out
}

// bundleName is what Fleet takes as it is for the name of a release.
var bundleName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// maxReleaseName is that of Helm.
const maxReleaseName = 53

// releaseName is what Fleet calls the release, by which charts name their objects: if nothing says so, it is the bundle's name, made of
// the GitRepo's and the path. It is empty where the module's name is the same.
func (d *rancher) releaseName(helm field) string {
	if name := helm.at("releaseName").text(); name != "" {
		return name
	}
	name := strings.ReplaceAll(cmp.Or(d.bundle, path.Join(d.Name(), d.dir)), "/", "-")
	if !bundleName.MatchString(name) || len(name) > maxReleaseName {
		helm.at("releaseName").check("Fleet shortens %s or changes it: write the name of the release, as helm list has it in a cluster, into package.helm.releaseName", name)
		name = label(name)
		name = strings.TrimRight(name[:min(len(name), maxReleaseName)], "-")
	}
	if name == d.m.Metadata.Name {
		return ""
	}
	return name
}

func (d *rancher) helmOptions(f field) {
	f.at("releaseName").pass()
	f.at("valuesFrom").drop("put the values into package.helm.values; for what is secret there, ${NAME} of a binding with secret, or have an operator in the clusters make what needs it")
	f.at("templateValues").drop("values are no templates: declare bindings and write ${NAME}")
	if f.at("force").flag() {
		d.general.Recreate = fleet.RecreateIfImmutable
	}
	if take := f.at("takeOwnership"); take.flag() {
		d.general.Adopt = fleet.AdoptAlways
		take.check("takes objects from whoever has them: adopt: Always with takeFrom: [Helm] is narrower")
	}
	if seconds := f.at("timeoutSeconds"); seconds.number() > 0 {
		d.strategy().ProgressDeadline = fmt.Sprintf("%ds", seconds.number())
	}
	f.at("disablePreProcess").pass()
	const why = "no release of Helm is made: objects are applied, waited for and corrected one by one"
	for _, name := range []string{"maxHistory", "waitForJobs", "atomic"} {
		f.at(name).drop(why)
	}
	f.at("disableDNS").pass()
	f.at("disableDependencyUpdate").pass()
	f.at("skipSchemaValidation").dropIf(f.at("skipSchemaValidation").flag(), "values are held to the chart's schema")
}

func (d *rancher) strategy() *v1.RolloutStrategy {
	if d.m.Spec.Rollout == nil {
		d.m.Spec.Rollout = &v1.RolloutStrategy{}
	}
	return d.m.Spec.Rollout
}

var (
	templateText  = regexp.MustCompile(`\$\{[ .]`)
	clusterText   = regexp.MustCompile(`\$\{ *\.ClusterName *\}`)
	labelText     = regexp.MustCompile(`\$\{ *\.ClusterLabels\.([A-Za-z0-9_]+) *\}`)
	labelGlobal   = regexp.MustCompile(`^global\.fleet\.clusterLabels\.([A-Za-z0-9_./-]+)$`)
	bindingLetter = regexp.MustCompile(`[^A-Z0-9_]`)
)

// templated makes bindings of what values ask of the cluster.
func (d *rancher) templated(f field) *structpb.Struct {
	values := f.values()
	if values == nil {
		return nil
	}
	return d.template(f, structpb.NewStructValue(values)).GetStructValue()
}

func (d *rancher) template(f field, v *structpb.Value) *structpb.Value {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		for _, key := range slices.Sorted(maps.Keys(kind.StructValue.GetFields())) { // bindings come in the same order each time
			kind.StructValue.Fields[key] = d.template(f, kind.StructValue.Fields[key])
		}
	case *structpb.Value_ListValue:
		for i, item := range kind.ListValue.GetValues() {
			kind.ListValue.Values[i] = d.template(f, item)
		}
	case *structpb.Value_StringValue:
		text := kind.StringValue
		if m := labelGlobal.FindStringSubmatch(text); m != nil {
			return structpb.NewStringValue("${" + d.labelBinding(m[1]) + "}")
		}
		if clusterText.MatchString(text) {
			d.declare(&v1.Binding{Name: "CLUSTER_NAME", ClusterField: "metadata.name"})
			text = clusterText.ReplaceAllString(text, "$${CLUSTER_NAME}")
		}
		text = labelText.ReplaceAllStringFunc(text, func(s string) string {
			return "${" + d.labelBinding(labelText.FindStringSubmatch(s)[1]) + "}"
		})
		if templateText.MatchString(text) {
			f.check("%q is no template here: declare a binding for what it asks of the cluster, and write ${NAME}", text)
		}
		return structpb.NewStringValue(text)
	}
	return v
}

func (d *rancher) labelBinding(key string) string {
	name := "LABEL_" + bindingLetter.ReplaceAllString(strings.ToUpper(key), "_")
	d.declare(&v1.Binding{Name: name, ClusterLabel: key})
	return name
}

func (d *rancher) declare(b *v1.Binding) {
	if !slices.ContainsFunc(d.m.Spec.Bindings, func(o *v1.Binding) bool { return o.GetName() == b.GetName() }) {
		d.m.Spec.Bindings = append(d.m.Spec.Bindings, b)
	}
}

// rollout makes stages of partitions.
func (d *rancher) rollout(f field) {
	if !f.set() {
		return
	}
	most := amount(f.at("maxUnavailable"))
	for i, p := range f.at("partitions").items() {
		selector, _, _ := d.target(p)
		s := &v1.Stage{Name: label(p.at("name").text()), Selector: selector, MaxConcurrency: amount(p.at("maxUnavailable"))}
		if !p.at("name").set() {
			s.Name = fmt.Sprintf("partition-%d", i+1)
		}
		if s.Selector == nil {
			p.drop("a stage without a selector would take every cluster: give its clusters a label, and select by that")
			continue
		}
		d.strategy().Stages = append(d.strategy().Stages, s)
	}
	if most != "" || len(d.m.Spec.GetRollout().GetStages()) > 0 {
		d.strategy().Stages = append(d.strategy().Stages, &v1.Stage{Name: "rest", MaxConcurrency: most, AllowEmpty: true})
	}
	f.at("maxUnavailablePartitions").drop("a stage begins when the one before it is done")
	f.at("autoPartitionSize").drop("say maxConcurrency of a stage: so many clusters are changed at a time")
}

// amount is a number, or a percentage.
func amount(f field) string { return f.text() }

// customization makes an override of what is different in some clusters.
func (d *rancher) customization(f field) {
	f.at("name").pass()
	switch {
	case f.at("doNotDeploy").flag():
		f.pass()
		if d.Selector == nil {
			f.t.fail(f.n, f.path, "doNotDeploy: the module would come to these clusters: say with -l LABEL=VALUE which are to have it")
		}
		return
	case f.at("clusterName").set():
		f.drop("an override selects by labels: give the cluster one")
		return
	}
	s, _, ok := d.target(f)
	if !ok {
		f.drop("which clusters it is for cannot be said here")
		return
	}
	o := &v1.Override{Selector: s, AllowEmpty: true}
	helm := f.at("helm")
	values := helm.at("values")
	switch {
	case !values.set():
	case d.m.Spec.Package.GetHelm() == nil:
		values.drop("the module has no chart")
	default:
		o.Helm = &v1.HelmOverride{Values: d.templated(values)}
	}
	for _, key := range helm.keys() {
		if key != "values" {
			helm.at(key).drop("is the same in all clusters")
		}
	}
	f.at("kustomize").drop("write what differs as components, and have them in kustomize.components of an override")
	for _, name := range []string{"namespace", "defaultNamespace", "namespaceLabels", "namespaceAnnotations", "serviceAccount", "correctDrift", "keepResources", "deleteNamespace", "deleteCRDResources", "diff", "ignore", "forceSyncGeneration", "bundleDeploymentTemplate"} {
		f.at(name).drop("is the same in all clusters")
	}
	f.at("yaml").drop("write what the overlays change as patches of an override")
	if o.Helm == nil {
		return
	}
	d.m.Spec.Overrides = append(d.m.Spec.Overrides, o)
	if len(d.m.Spec.Overrides) == 2 {
		f.check("in Fleet the first that matches a cluster counts alone; here all that match it do, one over the other")
	}
}
