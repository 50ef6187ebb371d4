package importer

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
)

const (
	inCluster    = "in-cluster" // what Argo CD calls the cluster that it runs in
	inClusterURL = "https://kubernetes.default.svc"
)

// application makes the modules of an Application of Argo CD: one for each source that has files.
func (r *run) application(doc resource.Document) ([]Module, error) {
	one := r.draft(doc, doc.Name())
	spec := one.root().at("spec")
	sources := spec.at("sources").items()
	single := len(sources) == 0
	if single {
		sources = []field{spec.at("source")}
	}
	var files []int
	for i, s := range sources {
		if s.at("ref").text() == "" || s.at("path").set() || s.at("chart").set() {
			files = append(files, i)
		}
	}
	var out []Module
	for _, i := range files {
		name := doc.Name()
		if len(files) > 1 {
			name += "-" + cmp.Or(sources[i].at("name").text(), strconv.Itoa(i+1))
		}
		d := &argo{draft: r.draft(doc, name)}
		m, err := d.convert(i, single)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	if len(files) == 0 {
		return nil, &resource.Error{Source: doc.Source, Line: doc.Node.Line, Object: doc.Object(), Path: "spec.sources", Message: "no source has a path or a chart"}
	}
	return out, nil
}

// argo converts one source of an Application.
type argo struct{ *draft }

func (d *argo) convert(index int, single bool) (Module, error) {
	d.metadata("argocd.argoproj.io")
	d.finalizers()
	f := d.root()
	f.at("operation").drop("a sync that was asked for: a put of the module rolls it out")
	spec := f.at("spec")
	d.project(spec.at("project"))
	d.destination(spec.at("destination"))
	d.sourceOf(spec, index, single)
	d.syncPolicy(spec.at("syncPolicy"))
	d.ignored(spec.at("ignoreDifferences"))
	spec.at("info").drop("text for people: put it into metadata.annotations")
	spec.at("sourceHydrator").drop("nothing is written back to Git: the hub renders the module, and towline render prints it")
	spec.at("sourceIntegrity").drop("signatures of commits are not checked")
	if n := spec.at("revisionHistoryLimit"); n.set() {
		d.m.Spec.Rollout = &v1.RolloutStrategy{RevisionHistoryLimit: int32(n.number())}
	}
	return d.draft.finish()
}

// finalizers say whether the objects go with the Application.
func (d *argo) finalizers() {
	f := d.root().at("metadata", "finalizers")
	cascades := false
	for _, item := range f.items() {
		if strings.HasPrefix(item.text(), "resources-finalizer.argocd.argoproj.io") {
			cascades = true
			continue
		}
		item.drop("nobody waits for it")
	}
	if !cascades {
		d.root().at("metadata", "finalizers").check("without resources-finalizer.argocd.argoproj.io the objects stay when kubectl deletes the Application; towline delete module deletes them, unless it says --orphan")
	}
}

func (d *argo) project(f field) {
	name := f.text()
	if name == "" || name == fleet.DefaultProject || d.Project != "" {
		return
	}
	d.m.Metadata.Project = label(name)
	f.check("project %s has to be there: what the AppProject allows is for the Project to say", d.m.Metadata.Project)
}

func (d *argo) destination(f field) {
	d.m.Spec.Namespace = f.at("namespace").text()
	name, server := f.at("name"), f.at("server")
	switch {
	case name.set():
		d.place(name, name.text())
	case strings.TrimSuffix(server.text(), "/") == inClusterURL:
		d.place(server, inCluster)
	case server.set():
		d.place(server, d.clusterAt(server.text()))
	default:
		d.place(f, inCluster)
	}
}

// clusterAt is the name of a cluster by its address, if its Secret is among the files.
func (d *argo) clusterAt(server string) string {
	if _, mapped := d.Clusters[server]; mapped {
		return server
	}
	for i, doc := range d.docs {
		if doc.Kind() != "Secret" {
			continue
		}
		data := secretTexts(doc)
		if data["server"] == server && data["name"] != "" {
			d.used[i] = true
			return data["name"]
		}
	}
	return server
}

// secretTexts are the names that a Secret has for a server; nothing else of it is read.
func secretTexts(doc resource.Document) map[string]string {
	out := map[string]string{}
	f := newTree(doc, &[]Note{}, "").root()
	for _, key := range []string{"name", "server", "url"} {
		raw, err := base64.StdEncoding.DecodeString(f.at("data", key).text())
		if err == nil {
			out[key] = string(raw)
		}
		if text := f.at("stringData", key).text(); text != "" {
			out[key] = text
		}
	}
	return out
}

// sourceOf reads the source with an index, and passes over the others.
func (d *argo) sourceOf(spec field, index int, single bool) {
	if single {
		d.source(spec.at("source"))
		return
	}
	spec.at("source").drop("sources counts, where both are set")
	for i, f := range spec.at("sources").items() {
		if i == index {
			d.source(f)
			continue
		}
		if f.at("ref").set() && !f.at("path").set() && !f.at("chart").set() {
			f.drop("a module has one source: put the files that $%s names beside the chart, or their values into package.helm.values", f.at("ref").text())
			continue
		}
		f.pass() // a module of its own
	}
}

func (d *argo) source(f field) {
	repo, chart, revision := f.at("repoURL"), f.at("chart").text(), f.at("targetRevision").text()
	f.at("ref").pass()
	f.at("name").pass()
	dir := strings.Trim(path.Clean("/"+f.at("path").text()), "/")
	src := d.m.Spec.Source
	switch url := d.bareURL(repo); {
	case chart != "":
		src.Helm = &v1.HelmSource{Repo: chartRepository(url), Chart: chart, Version: revision}
		src.Helm.SecretName = d.repositorySecret(repo, "username=NAME password=-")
		f.at("path").dropIf(dir != "", "a chart has no path")
	case strings.HasPrefix(url, "oci://"):
		repo.check(readsNoHook)
		src.Oci = &v1.OciSource{Url: url, Ref: ociRef(revision), Path: dir}
		src.Oci.SecretName = d.repositorySecret(repo, "username=NAME password=-")
	default:
		repo.check(readsNoHook)
		src.Git = &v1.GitSource{Url: d.gitURL(repo), Ref: d.gitRef(f.at("targetRevision")), Path: dir}
		keys := "username=NAME password=-"
		if strings.HasPrefix(src.Git.Url, "ssh://") {
			keys = sshKeys
		}
		src.Git.SecretName = d.repositorySecret(repo, keys)
		if src.Git.SecretName == "" && keys == sshKeys {
			src.Git.SecretName = d.secret(repo, d.m.Metadata.Name+"-git", keys)
		}
	}
	d.packageOf(f, dir)
}

// repositorySecret names the secret of a repository that is among the files.
func (d *argo) repositorySecret(f field, keys string) string {
	for i, doc := range d.docs {
		if doc.Kind() == "Secret" && secretTexts(doc)["url"] == f.text() {
			d.used[i] = true
			return d.secret(f, doc.Name(), keys)
		}
	}
	return ""
}

func (d *argo) packageOf(f field, dir string) {
	helm, kustomize, directory := f.at("helm"), f.at("kustomize"), f.at("directory")
	f.at("plugin").drop("programs of one's own do not run on the hub: run it in CI, and have its output fetched, as from an OCI registry, or apply it with --from")
	usual := ""
	switch {
	case d.m.Spec.Source.Helm != nil || helm.set():
		usual = "helm"
	case kustomize.set():
		usual = "kustomize"
	case directory.set():
		usual = "plain"
	default:
		usual = d.packaged(f.at("path"), "plain", "Argo CD looks into the folder whether it has a Chart.yaml or a kustomization.yaml")
	}
	switch usual {
	case "helm":
		d.m.Spec.Package = &v1.Package{Helm: d.helm(helm, dir)}
		if d.m.Spec.Source.Helm != nil && proto.Size(d.m.Spec.Package.Helm) == 0 {
			d.m.Spec.Package = nil
		}
	case "kustomize":
		d.m.Spec.Package = &v1.Package{Kustomize: d.kustomize(kustomize)}
	case "plain":
		d.directory(directory)
	}
}

func (d *argo) directory(f field) {
	f.at("jsonnet").drop("Jsonnet does not run on the hub: run it in CI, and have its output fetched")
	for _, glob := range []string{"include", "exclude"} {
		f.at(glob).drop("every *.yaml, *.yml and *.json below the path is read: move what is not to be read, or name it with a dot in front")
	}
	if recurse := f.at("recurse"); !recurse.flag() {
		recurse.check("folders below the path are read, too")
	}
}

func (d *argo) kustomize(f field) *v1.KustomizePackage {
	out := &v1.KustomizePackage{Components: f.at("components").texts()}
	for _, name := range []string{"namePrefix", "nameSuffix", "images", "replicas", "commonLabels", "commonAnnotations", "namespace"} {
		f.at(name).drop("write it into kustomization.yaml, or into one of an overlay")
	}
	d.patches(f.at("patches"))
	for _, name := range []string{"forceCommonLabels", "forceCommonAnnotations", "commonAnnotationsEnvsubst", "labelWithoutSelector", "labelIncludeTemplates"} {
		f.at(name).drop("belongs to commonLabels and commonAnnotations")
	}
	f.at("ignoreMissingComponents").drop("a component that is not there is an error")
	f.at("version").drop("there is one version of kustomize: see docs/packages.md")
	f.at("kubeVersion").drop("kustomizations do not render charts")
	f.at("apiVersions").drop("kustomizations do not render charts")
	return out
}

func (d *argo) helm(f field, dir string) *v1.HelmPackage {
	out := &v1.HelmPackage{ReleaseName: f.at("releaseName").text(), KubeVersion: f.at("kubeVersion").text(), ApiVersions: f.at("apiVersions").texts()}
	if out.ReleaseName == "" && d.m.Metadata.Name != d.Name() {
		out.ReleaseName = d.Name()
	}
	if out.KubeVersion != "" && len(out.ApiVersions) == 0 {
		f.at("kubeVersion").check(seesNoCluster)
	}
	if skip := f.at("skipCrds"); skip.flag() {
		out.IncludeCrds = proto.Bool(false)
	}
	d.valueFiles(f.at("valueFiles"), dir, out)
	out.Values = d.helmValues(f)
	f.at("fileParameters").drop("put what the file has into package.helm.values")
	f.at("version").dropIf(f.at("version").text() != "v3", "charts are rendered by one version of Helm: see docs/packages.md")
	f.at("passCredentials").dropIf(f.at("passCredentials").flag(), "credentials go to the repository's own host only")
	f.at("ignoreMissingValueFiles").dropIf(f.at("ignoreMissingValueFiles").flag(), "a file of values that is not there is an error")
	f.at("skipTests").pass()
	f.at("skipSchemaValidation").dropIf(f.at("skipSchemaValidation").flag(), "values are held to the chart's schema")
	if ns := f.at("namespace"); ns.text() != d.m.Spec.Namespace {
		ns.drop(".Release.Namespace is spec.namespace")
	}
	return out
}

// valueFiles are relative to the chart in Argo CD, and to the folder of the source here.
func (d *argo) valueFiles(f field, dir string, out *v1.HelmPackage) {
	outside := false
	for _, item := range f.items() {
		name := item.text()
		switch {
		case strings.HasPrefix(name, "$"):
			item.drop("a module has one source: put the file beside the chart, or what it has into package.helm.values")
			continue
		case strings.Contains(name, "://"):
			item.drop("files of values are read from the source only: put what it has into package.helm.values")
			continue
		case strings.ContainsAny(name, "*?["):
			item.drop("name the files, one by one")
			continue
		}
		at := path.Join("/", dir, name)
		if strings.HasPrefix(name, "/") {
			at = path.Clean(name)
		}
		outside = outside || dir != "" && !strings.HasPrefix(at, "/"+dir+"/")
		out.ValuesFiles = append(out.ValuesFiles, at[1:])
	}
	if g := d.m.Spec.Source.Git; g != nil && outside { // the paths of a source with a path begin there
		g.Path, out.Path = "", dir
		return
	}
	for i, name := range out.ValuesFiles {
		out.ValuesFiles[i] = strings.TrimPrefix(name, strings.TrimPrefix(dir+"/", "/"))
	}
}

// helmValues are the values that Argo CD gives a chart over its files: parameters count over valuesObject, and that over values.
func (d *argo) helmValues(f field) *structpb.Struct {
	values := f.at("valuesObject").values()
	if text := f.at("values"); text.set() && values != nil {
		text.drop("valuesObject counts, where both are set")
	} else if text.set() {
		values = text.yaml()
	}
	for _, p := range f.at("parameters").items() {
		name, value, quoted := p.at("name"), p.at("value"), p.at("forceString").flag()
		if values == nil {
			values = &structpb.Struct{}
		}
		if err := setParameter(values, name.text(), value.text(), quoted); err != nil {
			p.drop("%v: put it into package.helm.values", err)
		}
		if strings.Contains(value.text(), "$ARGOCD_") {
			value.check("is the text %s: nobody replaces it", value.text())
		}
	}
	return values
}

// yaml reads a text that is YAML itself.
func (f field) yaml() *structpb.Struct {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(f.text()), &doc); err != nil || len(doc.Content) == 0 {
		if err != nil {
			f.t.fail(f.n, f.path, "is no YAML: %v", err)
		}
		return nil
	}
	out, errs := resource.AnyMap(f.t.Source, f.t.Object(), f.path, doc.Content[0])
	f.t.errs = append(f.t.errs, errs...)
	return out
}

func (d *argo) syncPolicy(f field) {
	auto := f.at("automated")
	enabled := auto.set() && (!auto.at("enabled").set() || auto.at("enabled").flag())
	auto.at("enabled").pass()
	if enabled {
		d.follow(auto, "3m")
	} else {
		d.root().at("spec", "syncPolicy", "automated").check("Argo CD syncs when a person asks; a put of the module rolls it out")
	}
	prune, heal, empty := auto.at("prune"), auto.at("selfHeal"), auto.at("allowEmpty")
	if !prune.flag() || !enabled {
		d.general.Prune = fleet.PruneOnModuleDelete
	} else {
		prune.check(readsNoAnnotation, "argocd.argoproj.io/sync-options: Prune=false or Delete=false")
	}
	if d.general.Prune == fleet.PruneOnModuleDelete {
		d.root().at("spec").check(readsNoAnnotation, "argocd.argoproj.io/sync-options: Delete=false")
	}
	if !heal.flag() || !enabled {
		d.general.Drift = fleet.DriftReport
	}
	d.m.Spec.AllowEmpty = empty.flag()
	for _, item := range f.at("syncOptions").items() {
		d.syncOption(item)
	}
	f.at("retry").drop("what fails is tried again for as long as it fails, with growing pauses")
	f.at("managedNamespaceMetadata").drop("put a Namespace with these labels and annotations among the files")
}

// syncOption reads such as Prune=false.
func (d *argo) syncOption(f field) {
	const namespace = "the namespace is not made by itself: put a Namespace %s among the files"
	switch option := f.text(); option {
	case "CreateNamespace=true":
		f.drop(namespace, d.m.Spec.Namespace)
	case "Prune=false":
		d.general.Prune = fleet.PruneOnModuleDelete
	case "Delete=false":
		d.general.Delete = fleet.DeleteOrphan
	case "Replace=true", "Force=true":
		d.general.Recreate = fleet.RecreateIfImmutable
		f.check("an object is deleted and made again only where a field of it cannot be changed")
	case "Prune=confirm", "Delete=confirm":
		f.drop("a confirmation is asked where a revision drops more than half of a module's objects, and by towline delete")
	case "Validate=false", "SkipDryRunOnMissingResource=true":
		f.dropIf(option == "Validate=false", "the API server checks what is applied")
	case "Validate=true", "CreateNamespace=false", "Prune=true", "Delete=true", "Replace=false", "Force=false", "ServerSideApply=true", "ApplyOutOfSyncOnly=true",
		"ApplyOutOfSyncOnly=false", "PruneLast=true", "RespectIgnoreDifferences=true", "FailOnSharedResource=true", "SkipDryRunOnMissingResource=false", "PruneLast=false":
	case "ServerSideApply=false":
		f.drop("objects are always applied server-side")
	default:
		f.drop("has nothing that does the same")
	}
}

// ignored makes policies of fields that are not compared.
func (d *argo) ignored(f field) {
	var rules []ignoring
	for _, item := range f.items() {
		r := ignoring{}
		for i, name := range []string{"group", "kind", "namespace", "name"} {
			r.match[i] = item.at(name).text()
		}
		if globbed(r.match[0]) || globbed(r.match[1]) {
			item.drop("a policy names groups and kinds in full: write one for each")
			continue
		}
		r.pointers = append(r.pointers, item.at("jsonPointers").texts()...)
		for _, jq := range item.at("jqPathExpressions").items() {
			if pointer, ok := pointerOf(jq.text()); ok {
				r.pointers = append(r.pointers, pointer)
			} else {
				jq.drop("a policy takes JSON pointers: write it as one into ignoreFields.jsonPointers, such as /spec/template/spec/containers/name=app/image")
			}
		}
		r.managers = item.at("managedFieldsManagers").texts()
		rules = append(rules, r)
	}
	d.specific = append(d.specific, ignorePolicies(rules)...)
}

// globbed reports a pattern that is not simply everything.
func globbed(s string) bool { return s != anything && strings.ContainsAny(s, "*?[") }

// pointerOf is the JSON pointer of a jq path that only names fields.
func pointerOf(jq string) (string, bool) {
	if !strings.HasPrefix(jq, ".") || strings.ContainsAny(jq, " |()*?\\'") {
		return "", false
	}
	out := ""
	for rest := jq; rest != ""; {
		var step string
		switch {
		case strings.HasPrefix(rest, `["`), strings.HasPrefix(rest, `.["`), strings.HasPrefix(rest, `."`):
			from := strings.Index(rest, `"`) + 1
			end := strings.Index(rest[from:], `"`)
			if end < 0 {
				return "", false
			}
			step, rest = rest[from:from+end], strings.TrimPrefix(rest[from+end+1:], "]")
		case strings.HasPrefix(rest, "[]"), strings.HasPrefix(rest, ".[]"):
			step, rest = "*", strings.TrimPrefix(strings.TrimPrefix(rest, "."), "[]")
			out += "/" + step
			continue
		case strings.HasPrefix(rest, "["):
			end := strings.IndexByte(rest, ']')
			if _, err := strconv.Atoi(rest[1:max(end, 1)]); err != nil {
				return "", false
			}
			step, rest = rest[1:end], rest[end+1:]
		case strings.HasPrefix(rest, "."):
			end := strings.IndexAny(rest[1:], ".[")
			if end < 0 {
				end = len(rest) - 1
			}
			step, rest = rest[1:end+1], rest[end+1:]
		default:
			return "", false
		}
		if step == "" {
			return "", false
		}
		out += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(step)
	}
	return out, out != ""
}

// chartRepository is the address of a repository of charts: Argo CD writes registries without a scheme.
func chartRepository(url string) string {
	if url == "" || strings.Contains(url, "://") {
		return url
	}
	return "oci://" + url
}

// sshKeys are what a source over ssh needs.
const sshKeys = "identity=@KEYFILE known_hosts=@KNOWN_HOSTS"

// gitURL is a repository's address as a source has it: without credentials, and ssh with its scheme.
func (d *draft) gitURL(f field) string {
	url := d.bareURL(f)
	if !strings.Contains(url, "://") {
		if user, where, ok := strings.Cut(url, "@"); ok && strings.Contains(where, ":") && !strings.Contains(user, "/") {
			host, dir, _ := strings.Cut(where, ":")
			return fmt.Sprintf("ssh://%s@%s/%s", user, host, strings.TrimPrefix(dir, "/"))
		}
		return url
	}
	return url
}

// bareURL is an address without credentials, which are no part of a module.
func (d *draft) bareURL(f field) string {
	url := f.text()
	scheme, rest, found := strings.Cut(url, "://")
	at := strings.LastIndex(strings.SplitN(rest, "/", 2)[0], "@")
	if !found || at < 0 {
		return url
	}
	user, _, hasPassword := strings.Cut(rest[:at], ":")
	if scheme == "ssh" && !hasPassword {
		return url
	}
	text := fmt.Sprintf("its credentials: run: towline secret set %s-login username=NAME password=-, and name it in secretName of the source", d.m.Metadata.Name)
	if !slices.ContainsFunc(d.notes, func(n Note) bool { return n.Text == text }) {
		f.note(Dropped, "%s", text)
	}
	if scheme == "ssh" {
		return scheme + "://" + user + rest[at:]
	}
	return scheme + "://" + rest[at+1:]
}
