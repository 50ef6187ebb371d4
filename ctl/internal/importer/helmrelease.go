package importer

import (
	"path"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
)

// helmRelease makes the module of a HelmRelease of Flux.
func (r *run) helmRelease(doc resource.Document) ([]Module, error) {
	d := &flux{draft: r.draft(doc, doc.Name())}
	d.metadata(fluxWord)
	d.finalizers()
	spec := d.root().at("spec")
	h := &v1.HelmPackage{ReleaseName: spec.at("releaseName").text()}
	target := spec.at("targetNamespace").text()
	d.m.Spec.Namespace = target
	if target == "" {
		d.m.Spec.Namespace = doc.Namespace()
	}
	switch {
	case h.ReleaseName != "":
	case target != "":
		h.ReleaseName = target + "-" + doc.Name()
	case d.m.Metadata.Name != doc.Name():
		h.ReleaseName = doc.Name()
	}
	if err := d.chart(spec, h); err != nil {
		return nil, err
	}
	d.valuesFrom(spec.at("valuesFrom"), h)
	h.Values = merged(h.Values, spec.at("values").values())
	d.common(spec)
	d.release(spec, h)
	d.driftDetection(spec.at("driftDetection"))
	d.postRenderers(spec.at("postRenderers"))
	spec.at("interval").pass()
	for _, item := range spec.at("healthCheckExprs").items() {
		item.drop("write it into healthRules, with object. in front of its fields (object.status, object.metadata)")
	}
	d.m.Spec.Package = &v1.Package{Helm: h}
	if d.m.Spec.Source.Helm != nil && proto.Size(h) == 0 {
		d.m.Spec.Package = nil
	}
	m, err := d.finish()
	return []Module{m}, err
}

// chart looks up where the chart is.
func (d *flux) chart(spec field, h *v1.HelmPackage) error {
	if ref := spec.at("chartRef"); ref.set() {
		return d.chartRef(ref, h)
	}
	spec.at("chart", "metadata").drop("nothing carries it")
	c := spec.at("chart", "spec")
	ref := c.at("sourceRef")
	kind, doc, err := d.sourceOf(ref)
	if err != nil {
		return err
	}
	f := d.beside(doc)
	chart, version := c.at("chart").text(), c.at("version").text()
	c.at("interval").pass() // that of the repository counts
	strategy := c.at("reconcileStrategy")
	strategy.pass()
	c.at("ignoreMissingValuesFiles").dropIf(c.at("ignoreMissingValuesFiles").flag(), "a file of values that is not there is an error")
	files := c.at("valuesFiles").texts()
	switch kind {
	case "HelmRepository":
		d.m.Spec.Source.Helm = d.chartSource(f.at("spec"), chart, version)
		h.ValuesFiles = files
	case "GitRepository":
		d.m.Spec.Source.Git = d.git(f.at("spec"), doc.Name(), "")
		h.Path = strings.Trim(path.Clean("/"+chart), "/")
		for _, name := range files { // relative to the repository
			h.ValuesFiles = append(h.ValuesFiles, strings.Trim(path.Clean("/"+name), "/"))
		}
		c.at("version").pass()
	default:
		_, namespace, name := d.reference(ref)
		return d.missing(ref, "HelmRepository or GitRepository", namespace, name)
	}
	d.sourceCommon(f.at("spec"))
	if d.m.Spec.Source.Helm != nil {
		d.verify(c.at("verify"))
	}
	c.at("verify").drop("what is signed of a chart in Git is the commit: write verify into the GitRepository")
	d.end(f)
	return nil
}

func (d *flux) chartSource(spec field, chart, version string) *v1.HelmSource {
	out := &v1.HelmSource{Repo: strings.TrimSuffix(d.bareURL(spec.at("url")), "/"), Chart: chart, Version: version, Timeout: spec.at("timeout").text(), Insecure: spec.at("insecure").flag()}
	if out.Version == "*" {
		out.Version = ""
	}
	if secret := spec.at("secretRef"); secret.set() {
		out.SecretName = d.secret(secret, secret.at("name").text(), "username=NAME password=-")
	}
	spec.at("type").pass()
	spec.at("passCredentials").dropIf(spec.at("passCredentials").flag(), "credentials go to the repository's own host only")
	spec.at("accessFrom").drop("secrets and sources are of the module's project")
	return out
}

// chartRef is a chart of a registry.
func (d *flux) chartRef(ref field, h *v1.HelmPackage) error {
	kind, namespace, name := d.reference(ref)
	doc, ok := d.find(fluxSources, kind, namespace, name)
	if !ok || kind != "OCIRepository" {
		return d.missing(ref, "OCIRepository", namespace, name)
	}
	f := d.beside(doc)
	oci := d.oci(f.at("spec"), "")
	repo, chart := path.Split(strings.TrimSuffix(oci.Url, "/"))
	if oci.Ref.GetDigest() != "" {
		d.m.Spec.Source.Oci, h.Path = oci, chart
	} else {
		version := oci.Ref.GetTag() + oci.Ref.GetSemver()
		d.m.Spec.Source.Helm = &v1.HelmSource{Repo: strings.TrimSuffix(repo, "/"), Chart: chart, Version: version, Timeout: oci.Timeout, SecretName: oci.SecretName, Insecure: oci.Insecure}
	}
	d.sourceCommon(f.at("spec"))
	d.end(f)
	return nil
}

// valuesFrom reads values of ConfigMaps that are among the files.
func (d *flux) valuesFrom(f field, h *v1.HelmPackage) {
	for _, from := range f.items() {
		kind, name, key, target := from.at("kind").text(), from.at("name").text(), from.at("valuesKey").text(), from.at("targetPath").text()
		from.at("optional").pass()
		if key == "" {
			key = "values.yaml"
		}
		doc, ok := d.find("", "ConfigMap", d.Namespace(), name)
		if kind != "ConfigMap" || !ok {
			from.drop("put what it has into package.helm.values; for what is secret, ${NAME} of a binding with secret, or have an operator in the clusters make what needs it")
			continue
		}
		data := d.beside(doc)
		value := data.at("data", key)
		if target == "" {
			h.Values = merged(h.Values, value.yaml())
		} else {
			if h.Values == nil {
				h.Values = &structpb.Struct{}
			}
			if err := setParameter(h.Values, target, value.text(), false); err != nil {
				from.drop("%v: put it into package.helm.values", err)
			}
		}
		for _, other := range data.at("data").keys() {
			data.at("data", other).pass()
		}
		d.end(data)
	}
}

// release reads what Helm is told, which runs no release here.
func (d *flux) release(spec field, h *v1.HelmPackage) {
	install, upgrade := spec.at("install"), spec.at("upgrade")
	if create := install.at("createNamespace"); create.flag() {
		create.drop("the namespace is not made by itself: put a Namespace %s into a module that this one depends on", d.m.Spec.Namespace)
	}
	if install.at("crds").text() == "Skip" || install.at("skipCRDs").flag() {
		h.IncludeCrds = proto.Bool(false)
	} else if upgrade.at("crds").text() != "CreateReplace" {
		upgrade.check("CRDs of the chart are upgraded with it, unless package.helm.includeCRDs is false")
	}
	upgrade.at("crds").pass()
	if upgrade.at("force").flag() {
		d.general.Recreate = fleet.RecreateIfImmutable
	}
	if r := upgrade.at("remediation"); r.set() {
		retries, strategy := r.at("retries"), r.at("strategy")
		strategy.pass()
		if retries.number() != 0 || strategy.text() == "rollback" {
			if d.m.Spec.Rollout == nil {
				d.m.Spec.Rollout = &v1.RolloutStrategy{}
			}
			d.m.Spec.Rollout.OnFailure = "Rollback"
			r.check("what fails is tried again until its deadline, and then the rollout goes back: rollout.onFailure is Rollback")
		}
	}
	const why = "no release of Helm is made: objects are applied, waited for and corrected one by one"
	for _, name := range []string{"install", "upgrade", "rollback", "uninstall", "test"} {
		for _, key := range spec.at(name).keys() {
			f := spec.at(name, key)
			if !releaseFields[name][key] {
				f.t.fail(f.n, f.path, "unknown field: take it out, or look what it does there")
			}
			if f.t.read[f.n] || name == "upgrade" && key == "remediation" {
				f.pass()
				continue
			}
			f.drop(why)
		}
	}
	for _, name := range []string{"storageNamespace", "maxHistory", "persistentClient", "waitStrategy"} {
		spec.at(name).drop(why)
	}
}

// releaseFields are those of the blocks that tell Helm what to do.
var releaseFields = map[string]map[string]bool{
	"install": set("timeout", "strategy", "remediation", "disableTakeOwnership", "disableWait", "disableWaitForJobs", "disableHooks", "disableOpenAPIValidation",
		"disableSchemaValidation", "replace", "skipCRDs", "crds", "createNamespace", "serverSideApply"),
	"upgrade": set("timeout", "strategy", "remediation", "disableTakeOwnership", "disableWait", "disableWaitForJobs", "disableHooks", "disableOpenAPIValidation",
		"disableSchemaValidation", "force", "preserveValues", "cleanupOnFail", "crds", "serverSideApply"),
	"rollback":  set("timeout", "disableWait", "disableWaitForJobs", "disableHooks", "recreate", "force", "cleanupOnFail", "serverSideApply"),
	"uninstall": set("timeout", "disableHooks", "keepHistory", "disableWait", "deletionPropagation"),
	"test":      set("enable", "timeout", "ignoreFailures", "filters"),
}

func set(words ...string) map[string]bool {
	out := map[string]bool{}
	for _, w := range words {
		out[w] = true
	}
	return out
}

func (d *flux) driftDetection(f field) {
	switch mode := f.at("mode"); mode.text() {
	case "enabled":
	case "warn":
		d.general.Drift = fleet.DriftReport
	case "", "disabled":
		d.general.Drift = fleet.DriftIgnore
		d.root().at("spec").check("without driftDetection Flux does not look at what others change: drift is Ignore; take the policy out to have it corrected")
	default:
		mode.drop("has nothing that does the same")
	}
	var rules []ignoring
	for _, item := range f.at("ignore").items() {
		t := item.at("target")
		if t.at("labelSelector").set() || t.at("annotationSelector").set() { // a policy of the rest would count for more objects than its own
			item.drop("what others change there is corrected; to have it ignored, write a policy with ignoreFields, and match.labelSelector for the objects")
			continue
		}
		r := ignoring{match: [4]string{anything, t.at("kind").text(), t.at("namespace").text(), t.at("name").text()}, pointers: item.at("paths").texts()}
		if group := t.at("group"); group.set() {
			r.match[0] = group.text()
		}
		t.at("version").pass() // a policy is for every version
		rules = append(rules, r)
	}
	d.specific = append(d.specific, ignorePolicies(rules)...)
}

func (d *flux) postRenderers(f field) {
	for _, item := range f.items() {
		k := item.at("kustomize")
		k.at("images").drop("set the image by the chart's values")
		d.patches(k.at("patches"))
	}
}

// merged puts values over others as Helm does: maps key by key, all else as a whole.
func merged(base, over *structpb.Struct) *structpb.Struct {
	if base == nil || over == nil {
		if over == nil {
			return base
		}
		return over
	}
	out := proto.CloneOf(base)
	for key, v := range over.GetFields() {
		below, isMap := out.GetFields()[key].GetKind().(*structpb.Value_StructValue)
		if s := v.GetStructValue(); isMap && s != nil {
			v = structpb.NewStructValue(merged(below.StructValue, s))
		}
		if out.Fields == nil {
			out.Fields = map[string]*structpb.Value{}
		}
		out.Fields[key] = v
	}
	return out
}
