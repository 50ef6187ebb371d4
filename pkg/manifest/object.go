package manifest

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"

	"towline.dev/towline/pkg/fleet"
)

const (
	reservedDomain      = "towline.dev"
	maxAnnotationsBytes = 256 << 10
	maxFinalizers       = 20
)

// serverFields of metadata are written by the API server. They come along when a manifest was exported from a cluster
// and are dropped, as is status.
var serverFields = []string{"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
	"deletionGracePeriodSeconds", "managedFields", "selfLink"}

// builder makes checked objects out of values.
type builder struct {
	opts     Options
	declared map[string]bool
	scopes   scopes
}

func newBuilder(opts Options) *builder {
	b := &builder{opts: opts, declared: map[string]bool{}, scopes: newScopes()}
	for _, name := range opts.Declared {
		b.declared[name] = true
	}
	return b
}

// draft is an object on its way.
type draft struct {
	*builder
	obj   map[string]any
	meta  map[string]any
	at    place
	out   Object
	label string // what messages call it
	// declared is empty of an object that is exempt.
	declared map[string]bool
	exempt   bool
}

func (d *draft) fail(format string, args ...any) error {
	return fleet.Invalid(d.at.String(), d.label+fmt.Sprintf(format, args...))
}

// build checks a value and takes it over: it changes obj.
func (b *builder) build(obj map[string]any, at place) (Object, error) {
	d := &draft{builder: b, declared: b.declared, obj: obj, at: at, out: Object{File: at.file, Line: at.line}}
	for _, step := range []func() error{d.readExempt, d.readKind, d.readName, d.strip, d.readNamespace, d.checkNames, d.checkLabels,
		d.checkAnnotations, d.checkFinalizers, d.checkSecret, d.checkSubjects, d.readPlaceholders, d.encode} {
		if err := step(); err != nil {
			return Object{}, err
		}
	}
	return d.out, nil
}

// readExempt has the placeholders of an object be text whose annotation says so.
func (d *draft) readExempt() error {
	if d.exempt = exempt(d.obj); d.exempt {
		d.declared = nil
	}
	return nil
}

func (d *draft) readKind() error {
	version, err := d.text(d.obj, "apiVersion", "apps/v1")
	if err != nil {
		return err
	}
	kind, err := d.text(d.obj, "kind", "Deployment")
	if err != nil {
		return err
	}
	d.label = clip(kind) + ": "
	if d.holdsPlaceholder(version) || d.holdsPlaceholder(kind) {
		return d.fail("apiVersion and kind cannot hold a placeholder: the hub must know what it delivers")
	}
	group, v, found := strings.Cut(version, "/")
	if !found {
		group, v = "", version
	}
	if found && len(validation.IsDNS1123Subdomain(group)) > 0 || len(validation.IsDNS1035Label(v)) > 0 {
		return d.fail("apiVersion %q is no group/version, such as apps/v1, or v1", clip(version))
	}
	if len(validation.IsDNS1035Label(strings.ToLower(kind))) > 0 {
		return d.fail("kind %q is no kind: use letters and digits, as in Deployment", clip(kind))
	}
	if right, ok := spelling(group, kind); ok {
		return d.fail("kind is spelled %s", right)
	}
	if group == "kustomize.config.k8s.io" {
		return d.fail("is a kustomization, not an object: build it (kustomize build) or keep it out of the package's path")
	}
	d.out.ID.Group, d.out.ID.Kind, d.out.Version = group, kind, v
	return nil
}

// text is a required string of m.
func (d *draft) text(m map[string]any, field, example string) (string, error) {
	v, ok := m[field]
	if !ok || v == nil || v == "" {
		return "", d.fail("%s is missing: every document is one Kubernetes object; write, for example, %s: %s", field, field, example)
	}
	s, ok := v.(string)
	if !ok {
		return "", d.fail("%s is %s, not a string: quote it", field, typeName(v))
	}
	return s, nil
}

func (d *draft) readName() error {
	meta, ok := d.obj["metadata"].(map[string]any)
	if !ok {
		return d.fail("metadata is missing: write metadata with a name")
	}
	d.meta = meta
	if _, has := meta["generateName"]; has {
		return d.fail("metadata.generateName is refused: an object must keep its name; write metadata.name")
	}
	switch name := meta["name"].(type) {
	case nil:
		return d.fail("metadata.name is missing")
	case string:
		if name == "" {
			return d.fail("metadata.name is missing")
		}
		d.out.ID.Name = name
		d.label = d.out.ID.Kind + " " + clip(name) + ": "
		return nil
	default:
		return d.fail("metadata.name is %s, not a string: quote it", typeName(name))
	}
}

// strip drops what the API server writes and refuses what would tie the object to one cluster.
func (d *draft) strip() error {
	delete(d.obj, "status")
	for _, field := range serverFields {
		delete(d.meta, field)
	}
	switch owners := d.meta["ownerReferences"].(type) {
	case nil:
	case []any:
		if len(owners) > 0 {
			return d.fail("metadata.ownerReferences is refused: it names a UID of one cluster; remove it")
		}
	default:
		return d.fail("metadata.ownerReferences is refused: remove it")
	}
	delete(d.meta, "ownerReferences")
	return nil
}

func (d *draft) readNamespace() error {
	var namespace string
	switch v := d.meta["namespace"].(type) {
	case nil:
	case string:
		namespace = v
	default:
		return d.fail("metadata.namespace is %s, not a string: quote it", typeName(v))
	}
	delete(d.meta, "namespace")
	namespaced, known := d.scopes[kindKey{d.out.ID.Group, d.out.ID.Kind}]
	if known && !namespaced {
		return nil
	}
	if namespace == "" {
		namespace = d.opts.Namespace
	}
	if namespace == "" {
		if !known {
			return nil
		}
		return d.fail("has no namespace: write metadata.namespace, or spec.namespace of the module")
	}
	d.meta["namespace"] = namespace
	d.out.ID.Namespace = namespace
	d.label = d.out.ID.Short() + ": "
	return nil
}

// checkNames checks the identity with every placeholder as if it were "x".
func (d *draft) checkNames() error {
	id := d.out.ID
	d.out.IdentityPlaceholders = d.namesIn(id.Namespace, id.Name)
	for _, name := range d.out.IdentityPlaceholders {
		if slices.Contains(d.opts.Late, name) {
			return d.fail("name and namespace cannot hold ${%s}, which only the agent evaluates: the hub must know what it delivers", name)
		}
	}
	stand := func(s string) string {
		return ExpandFunc(s, func(name string) (string, bool) { return "x", d.declared[name] })
	}
	id.Namespace, id.Name = stand(id.Namespace), stand(id.Name)
	if msg := checkIdentity(id); msg != "" {
		return d.fail("%s", msg)
	}
	return nil
}

// checkIdentity reports what is wrong with an identity; placeholders are no names.
func checkIdentity(id fleet.ObjectID) string {
	if msg := checkName(id); msg != "" {
		return "metadata.name " + msg + placeholderHint(id.Name)
	}
	if id.Namespace != "" {
		if err := fleet.ValidateLabel(id.Namespace); err != nil {
			return "metadata.namespace " + err.Error() + placeholderHint(id.Namespace)
		}
	}
	return fleet.OfAgent(id, fleet.AgentNamespace)
}

// checkSubjects refuses to grant anything to the agent.
func (d *draft) checkSubjects() error {
	if msg := fleet.BindsAgent(d.out.ID, d.obj, fleet.AgentNamespace); msg != "" {
		return d.fail("%s", msg)
	}
	return nil
}

func checkName(id fleet.ObjectID) string {
	var problems []string
	switch {
	case id.Group == "rbac.authorization.k8s.io":
		problems = checkPathSegment(id.Name)
	case id.Group == "" && (id.Kind == "Namespace" || id.Kind == "Service"):
		problems = validation.IsDNS1123Label(id.Name)
	default:
		problems = validation.IsDNS1123Subdomain(id.Name)
	}
	if len(problems) == 0 {
		return ""
	}
	return fmt.Sprintf("%q is no name: %s", clip(id.Name), problems[0])
}

// checkPathSegment allows what may stand between two slashes of a URL, such as system:node.
func checkPathSegment(name string) []string {
	switch {
	case name == "." || name == ".." || strings.ContainsAny(name, "/%") || strings.ContainsFunc(name, unicode.IsControl):
		return []string{"it must not be . or .., nor contain / or %"}
	case len(name) > validation.DNS1123SubdomainMaxLength:
		return []string{validation.MaxLenError(validation.DNS1123SubdomainMaxLength)}
	}
	return nil
}

func placeholderHint(s string) string {
	if !strings.Contains(s, "${") {
		return ""
	}
	return "; declare the placeholder's name in spec.bindings"
}

func (d *draft) checkLabels() error {
	labels, err := d.textMap("labels")
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return d.fail("label %q: %s", clip(key), problems[0])
		}
		if reserved(key) {
			return d.fail("label %s is Towline's own: remove it", key)
		}
		value := labels[key]
		if problems := validation.IsValidLabelValue(value); len(problems) > 0 && !d.holdsPlaceholder(value) {
			return d.fail("label %s: value %q: %s", key, clip(value), problems[0])
		}
	}
	d.out.Labels = labels
	return nil
}

func (d *draft) checkAnnotations() error {
	if m, ok := d.meta["annotations"].(map[string]any); ok {
		delete(m, fleet.LastApplied)
	}
	annotations, err := d.textMap("annotations")
	if err != nil {
		return err
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if problems := validation.IsQualifiedName(strings.ToLower(key)); len(problems) > 0 {
			return d.fail("annotation %q: %s", clip(key), problems[0])
		}
		if key == fleet.HoldAnnotation || key == fleet.HoldUntilAnnotation {
			return d.fail("annotation %s is for live objects, and would hold this one for ever: remove it; to hold it, use kubectl annotate in its cluster, or towline hold", key)
		}
		if key == fleet.SubstituteAnnotation && annotations[key] != fleet.SubstituteDisabled {
			return d.fail("annotation %s: %q is unknown; use %s, or remove it", key, clip(annotations[key]), fleet.SubstituteDisabled)
		}
		if key == fleet.ReadyAnnotation && annotations[key] != fleet.ReadyIgnore {
			return d.fail("annotation %s: %q is unknown; use %s, or remove it", key, clip(annotations[key]), fleet.ReadyIgnore)
		}
		if reserved(key) && key != fleet.WaveAnnotation && key != fleet.SubstituteAnnotation && key != fleet.ReadyAnnotation {
			return d.fail("annotation %s is Towline's own: remove it", key)
		}
		size += len(key) + len(annotations[key])
	}
	if size > maxAnnotationsBytes {
		return d.fail("annotations have %d bytes; Kubernetes takes at most %d", size, maxAnnotationsBytes)
	}
	if !d.opts.Chart && isOfOtherTimes(annotations) {
		return d.fail("is a hook for when a release of Helm is deleted, rolled back or tested (annotation %s: %s), and would be applied at once: leave it out, as helm template --no-hooks does, or remove the annotation to have it applied",
			HookAnnotation, clip(annotations[HookAnnotation]))
	}
	d.out.Keep = d.opts.Chart && keeps(annotations)
	d.out.Uncounted = annotations[fleet.ReadyAnnotation] == fleet.ReadyIgnore
	d.out.Hook = d.opts.Chart && isHook(annotations)
	d.out.Once = d.opts.Chart && isOfInstalling(annotations)
	wave, has := annotations[fleet.WaveAnnotation]
	if !has {
		if d.opts.Chart {
			d.out.Wave = hookWave(annotations)
		}
		return nil
	}
	n, err := strconv.ParseInt(wave, 10, 32)
	if err != nil {
		return d.fail("annotation %s: %q is no whole number between -2147483648 and 2147483647", fleet.WaveAnnotation, clip(wave))
	}
	d.out.Wave = int32(n)
	return nil
}

func reserved(key string) bool {
	domain, _, found := strings.Cut(key, "/")
	return found && (domain == reservedDomain || strings.HasSuffix(domain, "."+reservedDomain))
}

// textMap is labels or annotations: strings only; nothing reads as the empty string, and none at all are dropped.
func (d *draft) textMap(field string) (map[string]string, error) {
	v, ok := d.meta[field]
	if !ok {
		return nil, nil
	}
	m, isMap := v.(map[string]any)
	if v != nil && !isMap {
		return nil, d.fail("metadata.%s is %s, not a map", field, typeName(v))
	}
	if len(m) == 0 {
		delete(d.meta, field)
		return nil, nil
	}
	out := make(map[string]string, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		switch value := m[key].(type) {
		case nil:
			m[key] = ""
			out[key] = ""
		case string:
			out[key] = value
		default:
			return nil, d.fail("metadata.%s: the value of %s is %s, not a string: quote it", field, clip(key), typeName(value))
		}
	}
	return out, nil
}

func (d *draft) checkFinalizers() error {
	v, ok := d.meta["finalizers"]
	if !ok {
		return nil
	}
	list, isList := v.([]any)
	if v != nil && !isList {
		return d.fail("metadata.finalizers is %s, not a list", typeName(v))
	}
	if len(list) == 0 {
		delete(d.meta, "finalizers")
		return nil
	}
	if len(list) > maxFinalizers {
		return d.fail("metadata.finalizers has %d entries; at most %d are allowed", len(list), maxFinalizers)
	}
	for i, f := range list {
		name, _ := f.(string)
		if len(validation.IsQualifiedName(name)) > 0 {
			return d.fail("metadata.finalizers[%d] is no finalizer: write DOMAIN/NAME", i)
		}
	}
	return nil
}

// checkSecret finds what the API server would refuse in every cluster. It names keys, never values.
func (d *draft) checkSecret() error {
	if d.out.ID.Group != "" || d.out.ID.Kind != "Secret" {
		return nil
	}
	for _, field := range []string{"data", "stringData"} {
		if _, is := d.obj[field].(map[string]any); !is && d.obj[field] != nil {
			return d.fail("%s is %s, not a map of keys and values", field, typeName(d.obj[field]))
		}
	}
	data, _ := d.obj["data"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(data)) {
		value, ok := data[key].(string)
		if !ok && data[key] != nil {
			return d.fail("data: the value of %s is %s, not a string: quote it", clip(key), typeName(data[key]))
		}
		if d.holdsPlaceholder(value) {
			continue
		}
		if _, err := base64.StdEncoding.DecodeString(value); err != nil {
			return d.fail("data: the value of %s is not base64: encode it, or put the text into stringData", clip(key))
		}
	}
	text, _ := d.obj["stringData"].(map[string]any)
	for _, key := range slices.Sorted(maps.Keys(text)) {
		if _, ok := text[key].(string); !ok && text[key] != nil {
			return d.fail("stringData: the value of %s is %s, not a string: quote it", clip(key), typeName(text[key]))
		}
		if text[key] == fleet.Masked {
			return d.fail("stringData: the value of %s is %s: it was read without its value; write the value", clip(key), fleet.Masked)
		}
	}
	return nil
}

func (d *draft) encode() error {
	d.out.Raw = Canonical(d.obj)
	if bytes.Contains(d.out.Raw, []byte(hiddenText)) {
		return d.fail("has a text that was read without the values of the Secret in it (%s); write that text", hiddenText)
	}
	if len(d.out.Raw) > MaxObjectBytes {
		return d.fail("has %d bytes; at most %d are allowed", len(d.out.Raw), MaxObjectBytes)
	}
	return nil
}
