package importer

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
)

const (
	fluxSources = "source.toolkit.fluxcd.io"
	fluxWord    = "fluxcd.io"
)

// flux converts a Kustomization or a HelmRelease of Flux.
type flux struct{ *draft }

// kustomization makes the module of a Kustomization of Flux.
func (r *run) kustomization(doc resource.Document) ([]Module, error) {
	d := &flux{draft: r.draft(doc, doc.Name())}
	d.metadata(fluxWord)
	d.finalizers()
	spec := d.root().at("spec")
	if err := d.source(spec.at("sourceRef"), spec.at("path").text()); err != nil {
		return nil, err
	}
	d.kustomized(spec)
	d.m.Spec.Namespace = spec.at("targetNamespace").text()
	if ns := spec.at("targetNamespace"); ns.set() {
		ns.check("Flux puts every object there; here it is for those that name no namespace")
	}
	d.common(spec)
	d.pruning(spec)
	spec.check(readsNoSSA)
	spec.check(readsNoReconcile)
	d.postBuild(spec.at("postBuild"))
	d.health(spec)
	if spec.at("force").flag() {
		d.general.Recreate = fleet.RecreateIfImmutable
		spec.at("force").check("claims, volumes, Namespaces, CRDs and StatefulSets with claims are made again only by a policy that names their kind")
	}
	spec.at("decryption").drop("files that SOPS encrypted are not read: let an operator in the clusters make the Secrets, as External Secrets does")
	spec.at("retryInterval").pass()
	spec.at("interval").pass()
	m, err := d.finish()
	return []Module{m}, err
}

func (d *flux) finalizers() {
	for _, item := range d.root().at("metadata", "finalizers").items() {
		if strings.Contains(item.text(), fluxWord) {
			continue
		}
		item.drop("nobody waits for it")
	}
}

// common are the fields that Kustomizations and HelmReleases share.
func (d *flux) common(spec field) {
	for _, item := range spec.at("dependsOn").items() {
		name := item.at("name")
		d.m.Spec.DependsOn = append(d.m.Spec.DependsOn, &v1.Dependency{Module: label(name.text())})
		if ns := item.at("namespace"); ns.text() != d.Namespace() {
			ns.drop("a module depends on modules of its own project")
		}
		item.at("readyExpr").drop("a module is begun when the other one is Ready")
	}
	if timeout := spec.at("timeout"); timeout.set() {
		d.m.Spec.Rollout = &v1.RolloutStrategy{ProgressDeadline: timeout.text()}
	}
	suspend := spec.at("suspend")
	suspend.dropIf(suspend.flag(), "put the module and run: towline hold module %s", d.m.Metadata.Name)
	spec.at("serviceAccountName").drop("objects are written by the agent: what it may do is for its rights and the cluster's own policy to say (docs/local-policy.md)")
	spec.at("commonMetadata").drop("write the labels and annotations into kustomization.yaml, or into the manifests")
	d.cluster(spec.at("kubeConfig"))
}

func (d *flux) cluster(f field) {
	for _, name := range []string{"secretRef", "configMapRef"} {
		if ref := f.at(name); ref.set() {
			ref.at("key").pass()
			d.place(ref.at("name"), strings.TrimSuffix(ref.at("name").text(), "-kubeconfig"))
			return
		}
	}
	d.place(d.root().at("spec"), inCluster)
}

func (d *flux) kustomized(spec field) {
	for _, name := range []string{"namePrefix", "nameSuffix", "images"} {
		spec.at(name).drop("write it into kustomization.yaml, or into one of an overlay")
	}
	components := spec.at("components").texts()
	spec.at("ignoreMissingComponents").dropIf(spec.at("ignoreMissingComponents").flag(), "a component that is not there is an error")
	d.patches(spec.at("patches"))
	usual := "kustomize"
	if len(components) == 0 {
		usual = d.packaged(spec.at("path"), usual, "Flux makes a kustomization.yaml where the folder has none")
	}
	switch usual {
	case "kustomize":
		d.m.Spec.Package = &v1.Package{Kustomize: &v1.KustomizePackage{Components: components}}
	case "helm":
		d.m.Spec.Package = &v1.Package{Helm: &v1.HelmPackage{}}
	}
}

// pruning reads prune and deletionPolicy.
func (d *flux) pruning(spec field) {
	prune := spec.at("prune").flag()
	if !prune {
		d.general.Prune = fleet.PruneNever
	}
	switch policy := spec.at("deletionPolicy"); policy.text() {
	case "", "MirrorPrune":
		if !prune {
			d.general.Delete = fleet.DeleteOrphan
		}
	case "Orphan":
		d.general.Delete = fleet.DeleteOrphan
	case "Delete", "WaitForTermination":
		if !prune { // what is dropped stays until the module goes
			d.general.Prune = fleet.PruneOnModuleDelete
		}
	default:
		policy.drop("has nothing that does the same")
	}
	if d.general.Prune != fleet.PruneNever || d.general.Delete != fleet.DeleteOrphan {
		spec.at("prune").check(readsNoAnnotation, "kustomize.toolkit.fluxcd.io/prune: disabled")
	}
}

var substituted = regexp.MustCompile(`\$\{[^}]*(:=|:[0-9]|/|#|%|\^|,)`)

// postBuild makes bindings of variables.
func (d *flux) postBuild(f field) {
	vars := f.at("substitute")
	if f.set() {
		f.check(readsNoSubstitute)
	}
	for _, name := range vars.keys() {
		d.bind(vars.at(name), name, vars.at(name).text())
	}
	for _, from := range slices.Backward(f.at("substituteFrom").items()) { // the later one counts
		name, kind := from.at("name").text(), from.at("kind").text()
		from.at("optional").pass()
		if kind != "ConfigMap" {
			from.drop("values of Secrets are not read: run towline secret set, and declare a binding with secret for each variable")
			continue
		}
		doc, ok := d.find("", kind, d.Namespace(), name)
		if !ok {
			from.drop("put ConfigMap %s into the files that are imported, or declare its keys as bindings, with a default where it may be missing", name)
			continue
		}
		data := d.beside(doc)
		for _, key := range data.at("data").keys() {
			d.bind(data.at("data", key), key, data.at("data", key).text())
		}
		data.at("binaryData").drop("is no text")
		data.at("immutable").pass()
		d.end(data)
	}
}

// bind declares a value; one that is there already counts.
func (d *flux) bind(f field, name, value string) {
	if err := fleet.ValidateBindingName(name); err != nil {
		f.drop("names of bindings are upper-case, such as %s: rename ${%s} in the manifests and declare it", strings.ToUpper(name), name)
		return
	}
	for _, b := range d.m.Spec.Bindings {
		if b.GetName() == name {
			return
		}
	}
	if substituted.MatchString(value) {
		f.check("of the forms of a shell only ${NAME} and ${NAME:-TEXT} are replaced")
	}
	d.m.Spec.Bindings = append(d.m.Spec.Bindings, &v1.Binding{Name: name, Value: proto.String(value)})
	if len(d.m.Spec.Bindings) == 1 {
		f.check("Flux replaces a ${NAME} that nothing declares by an empty text; here it is text, or with bindingsMode: Strict an error")
	}
}

func (d *flux) health(spec field) {
	wait := spec.at("wait")
	checks := spec.at("healthChecks")
	if !wait.flag() && !checks.set() {
		d.root().at("spec").check("without wait Flux is ready when all is applied; a module is Ready when every object of it is healthy")
	}
	for _, item := range checks.items() {
		api, kind, ns, name := item.at("apiVersion").text(), item.at("kind").text(), item.at("namespace").text(), item.at("name").text()
		item.drop("each object of the module counts; of somebody else's write: watch: [{apiVersion: %s, kind: %s, namespace: %s, name: %s}]", api, kind, ns, name)
	}
	for _, item := range spec.at("healthCheckExprs").items() {
		item.drop("write it into healthRules, with object. in front of its fields (object.status, object.metadata)")
	}
}

// reference is what a reference to a source names, by default in the namespace of who refers to it.
func (d *flux) reference(ref field) (kind, namespace, name string) {
	ref.at("apiVersion").pass()
	return ref.at("kind").text(), cmp.Or(ref.at("namespace").text(), d.Namespace()), ref.at("name").text()
}

// sourceOf looks up the source that a reference names.
func (d *flux) sourceOf(ref field) (kind string, doc resource.Document, err error) {
	kind, namespace, name := d.reference(ref)
	doc, ok := d.find(fluxSources, kind, namespace, name)
	if !ok {
		err = d.missing(ref, kind, namespace, name)
	}
	return kind, doc, err
}

// source looks up what a Kustomization is made of.
func (d *flux) source(ref field, dir string) error {
	kind, doc, err := d.sourceOf(ref)
	if err != nil {
		return err
	}
	dir = strings.Trim(path.Clean("/"+dir), "/")
	f := d.beside(doc)
	spec := f.at("spec")
	switch kind {
	case "GitRepository":
		d.m.Spec.Source.Git = d.git(spec, doc.Name(), dir)
	case "OCIRepository":
		d.m.Spec.Source.Oci = d.oci(spec, dir)
	default:
		return &resource.Error{Source: doc.Source, Line: doc.Node.Line, Object: doc.Object(), Path: "kind",
			Message: fmt.Sprintf("a module has no source that is a %s: put its files into a Git repository, a registry or an archive on a web server", kind)}
	}
	d.sourceCommon(spec)
	d.end(f)
	return nil
}

func (d *flux) missing(ref field, kind, namespace, name string) error {
	where := name
	if namespace != "" {
		where = namespace + "/" + name
	}
	return &resource.Error{Source: d.Source, Line: ref.line(), Object: d.Object(), Path: ref.path,
		Message: fmt.Sprintf("%s %s is not among the files: add it, as kubectl get %s -o yaml prints it", kind, where, strings.ToLower(kind))}
}

func (f field) line() int {
	if f.n == nil {
		return f.t.Node.Line
	}
	return f.n.Line
}

// sourceCommon are the fields that all sources of Flux have.
func (d *flux) sourceCommon(spec field) {
	if interval := spec.at("interval"); interval.set() {
		d.follow(interval, interval.text())
	}
	suspend := spec.at("suspend")
	if suspend.flag() {
		d.interval = ""
		suspend.check("the source is not followed: put it into source.follow when it is to be")
	}
	provider := spec.at("provider").text()
	spec.at("provider").dropIf(provider != "" && provider != "generic", "clouds do not log the hub in: set a secret with a token")
	d.verify(spec.at("verify"))
	for _, name := range []string{"proxySecretRef", "certSecretRef"} {
		spec.at(name).drop("%s", map[string]string{"proxySecretRef": "the hub's own environment names a proxy",
			"certSecretRef": "certificates that are trusted are the key caFile of the source's secret; certificates of a client are not sent"}[name])
	}
	spec.at("serviceAccountName").drop("the hub fetches the source, with the secret that the source names")
	spec.at("ignore").drop("every file of the path is read: move what is not to be read")
}

func (d *flux) git(spec field, name, dir string) *v1.GitSource {
	url := spec.at("url")
	out := &v1.GitSource{Url: d.gitURL(url), Path: dir, Timeout: spec.at("timeout").text()}
	ref := spec.at("ref")
	out.Ref = &v1.GitRef{Branch: ref.at("branch").text(), Tag: ref.at("tag").text(), Semver: ref.at("semver").text(), Commit: ref.at("commit").text()}
	d.oneRef(ref, out)
	keys := "username=NAME password=-"
	if strings.HasPrefix(out.Url, "ssh://") {
		keys = sshKeys
	}
	if secret := spec.at("secretRef"); secret.set() {
		out.SecretName = d.secret(secret, secret.at("name").text(), keys)
	} else if keys == sshKeys {
		out.SecretName = d.secret(url, name+"-git", keys)
	}
	spec.at("recurseSubmodules").dropIf(spec.at("recurseSubmodules").flag(), "submodules are not fetched: put what is in them into the repository")
	spec.at("include").drop("a module has one source: put the files of the other repository into this one, or make a module of them")
	spec.at("sparseCheckout").pass() // only the files of the path are kept
	return out
}

// oneRef keeps the one that counts in Flux: commit, then name, semver, tag and branch.
func (d *flux) oneRef(f field, out *v1.GitSource) {
	r := out.Ref
	if name := f.at("name"); name.set() && r.Commit == "" {
		out.Ref = d.gitRef(name)
		return
	}
	switch {
	case r.Commit != "":
		r.Semver, r.Tag, r.Branch = "", "", ""
	case r.Semver != "":
		r.Tag, r.Branch = "", ""
	case r.Tag != "":
		r.Branch = ""
	case r.Branch == "":
		out.Ref = &v1.GitRef{Branch: "master"} // as Flux has it
	}
	f.at("name").pass()
}

func (d *flux) oci(spec field, dir string) *v1.OciSource {
	ref := spec.at("ref")
	out := &v1.OciSource{Url: d.bareURL(spec.at("url")), Path: dir, Timeout: spec.at("timeout").text(), Insecure: spec.at("insecure").flag()}
	switch {
	case ref.at("digest").set():
		out.Ref = &v1.OciRef{Digest: ref.at("digest").text()}
		ref.at("semver").pass()
		ref.at("tag").pass()
	case ref.at("semver").set():
		out.Ref = &v1.OciRef{Semver: ref.at("semver").text()}
		ref.at("tag").pass()
	case ref.at("tag").set():
		out.Ref = &v1.OciRef{Tag: ref.at("tag").text()}
	}
	ref.at("semverFilter").drop("the range counts for every tag that is a version")
	if secret := spec.at("secretRef"); secret.set() {
		out.SecretName = d.secret(secret, secret.at("name").text(), "username=NAME password=-")
	}
	spec.at("layerSelector").drop("all layers that are archives are unpacked")
	return out
}
