package wire

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/rollout"
)

// maxInlineBytes bounds the files inside a module: they are part of its record.
const maxInlineBytes = 1 << 20

// Module is the validated value of a Module message.
type Module struct {
	Ref       fleet.ModuleRef
	Labels    map[string]string
	Source    *towlinev1.Source
	Follow    *follow.Plan // nil: the source is not followed
	Path      string       // of a plain package
	Package   render.Package
	Namespace string
	Bindings  []fleet.Binding
	// Overrides are what is different in some clusters.
	Overrides []fleet.Override
	Placement fleet.Placement
	Policies  []fleet.Policy
	// HealthRules are the module's own; those of its project come after them.
	HealthRules []fleet.HealthRule
	// Watch are objects that the module only watches.
	Watch      []fleet.WatchedObject
	Strategy   rollout.Strategy
	External   bool
	AllowEmpty bool
	// Strict refuses ${NAME} of names that are not declared.
	Strict bool
	// DependsOn are modules that come first in the same cluster, in the order of their names; DependsOnSets those that do in others.
	DependsOn     []fleet.ModuleRef
	DependsOnSets []SetDependency
	// Waves is WavesWaitHealthy or WavesWaitApplied; empty: as the objects have it (WavesOf).
	Waves string
}

// WavesOf says when waves of a module's objects begin, as a PolicySet has it: those of a chart's hooks wait for each other, unless the module
// says otherwise.
func (m *Module) WavesOf(objects []manifest.Object) string {
	waits := m.Waves == fleet.WavesWaitHealthy || m.Waves == "" && slices.ContainsFunc(objects, func(o manifest.Object) bool { return o.Hook })
	if !waits {
		return ""
	}
	return fleet.WavesWaitHealthy
}

// DeclaredNames are the names of the bindings.
func (m *Module) DeclaredNames() []string {
	names := make([]string, len(m.Bindings))
	for i, b := range m.Bindings {
		names[i] = b.Name
	}
	return names
}

// Placeholders is how the module's manifests are read.
func (m *Module) Placeholders() manifest.Options {
	o := manifest.Options{Namespace: m.Namespace, Declared: m.DeclaredNames(), Strict: m.Strict, Types: map[string]fleet.BindingType{}}
	for _, b := range m.Bindings {
		if b.Optional && b.Default == nil && b.Value == nil && b.Field == "" {
			o.Optional = append(o.Optional, b.Name)
		}
		if b.Type != "" {
			o.Types[b.Name] = b.Type
		}
	}
	for _, b := range m.Late() {
		o.Late = append(o.Late, b.Name)
	}
	return o
}

// Late are the bindings that agents evaluate.
func (m *Module) Late() []fleet.LateBinding {
	late, _ := assemble.Late(m.Bindings) // checked when it was read
	return late
}

// ModuleFromProto validates a module. Errors are fleet.FieldErrors below the module, such as
// "spec.placement: is required".
func ModuleFromProto(in *towlinev1.Module) (*Module, error) {
	ref, err := moduleRef(in)
	if err != nil {
		return nil, err
	}
	spec := in.GetSpec()
	if spec == nil {
		return nil, fleet.Invalid("spec", "is required")
	}
	under := strings.Trim(spec.GetSource().GetGit().GetPath()+spec.GetSource().GetOci().GetPath(), "/") // a source is of one kind
	m := &Module{Ref: ref, Labels: in.GetMetadata().GetLabels(), Source: spec.GetSource(), Namespace: spec.GetNamespace(),
		Path: path.Join(under, spec.GetPackage().GetPlain().GetPath()), AllowEmpty: spec.GetAllowEmpty(), External: spec.GetRollout().GetExternal() != nil}
	if m.Namespace != "" {
		if err := fleet.ValidateLabel(m.Namespace); err != nil {
			return nil, fleet.Invalid("spec.namespace", err.Error())
		}
	}
	if err := validateSource(spec.GetSource()); err != nil {
		return nil, fleet.Join("spec.source", err)
	}
	if m.Follow, err = followed(spec.GetSource()); err != nil {
		return nil, fleet.Join("spec.source", err)
	}
	if m.Package, err = packageOf(packageFor(spec), m.Ref, m.Namespace, under); err != nil {
		return nil, fleet.Join("spec.package", err)
	}
	if m.Overrides, err = overrides(spec.GetOverrides(), m.Package, spec, under); err != nil {
		return nil, fleet.Join("spec.overrides", err)
	}
	if m.Bindings, err = bindings(spec.GetBindings(), m.Namespace); err != nil {
		return nil, fleet.Join("spec.bindings", err)
	}
	if m.Strict, err = strict(spec.GetBindingsMode()); err != nil {
		return nil, err
	}
	if err = Choice("spec.waves", spec.GetWaves(), fleet.WavesWaitHealthy, fleet.WavesWaitApplied); err != nil {
		return nil, err
	}
	m.Waves = spec.GetWaves()
	if m.DependsOn, m.DependsOnSets, err = dependencies(ref, spec.GetDependsOn()); err != nil {
		return nil, fleet.Join("spec.dependsOn", err)
	}
	if m.External && len(m.DependsOnSets) > 0 {
		return nil, fleet.Invalid("spec.dependsOn", "with clusters says what the hub's rollouts wait for, and another program does those of this module (spec.rollout.external): have that wait")
	}
	if m.Placement, err = PlacementFromProto(spec.GetPlacement()); err != nil {
		return nil, fleet.Join("spec.placement", err)
	}
	if m.Policies, err = policies(spec.GetPolicies()); err != nil {
		return nil, fleet.Join("spec.policies", err)
	}
	if m.Watch, err = watched(spec.GetWatch(), m); err != nil {
		return nil, fleet.Join("spec.watch", err)
	}
	if m.HealthRules, err = HealthRulesFromProto(spec.GetHealthRules()); err != nil {
		return nil, fleet.Join("spec", err)
	}
	if m.Strategy, err = StrategyFromProto(spec.GetRollout()); err != nil {
		return nil, fleet.Join("spec.rollout", err)
	}
	return m, nil
}

func moduleRef(in *towlinev1.Module) (fleet.ModuleRef, error) {
	if v := in.GetApiVersion(); v != "" && v != fleet.APIVersion {
		return fleet.ModuleRef{}, fleet.Invalidf("apiVersion", "%q is unknown; this hub speaks %s", v, fleet.APIVersion)
	}
	meta := in.GetMetadata()
	ref := fleet.ModuleRef{Project: meta.GetProject(), Name: meta.GetName()}
	if ref.Project == "" {
		ref.Project = fleet.DefaultProject
	}
	if err := fleet.ValidateLabel(ref.Name); err != nil {
		return ref, fleet.Invalid("metadata.name", err.Error())
	}
	if err := fleet.ValidateLabel(ref.Project); err != nil {
		return ref, fleet.Invalid("metadata.project", err.Error())
	}
	if n := len(ref.Project) + len(ref.Name); n > fleet.MaxModuleName {
		return ref, fleet.Invalidf("metadata.name", "project and name have %d characters together; at most %d", n, fleet.MaxModuleName)
	}
	return ref, validateLabels("metadata.labels", meta.GetLabels())
}

func validateLabels(path string, labels map[string]string) error {
	for k, v := range labels {
		if msgs := validation.IsQualifiedName(k); len(msgs) > 0 {
			return fleet.Invalidf(path, "key %q: %s", k, msgs[0])
		}
		if msgs := validation.IsValidLabelValue(v); len(msgs) > 0 {
			return fleet.Invalidf(path+"."+k, "value %q: %s", v, msgs[0])
		}
	}
	return nil
}

// Duration reads a Go duration; empty is the default. Negative ones are errors.
func Duration(path, s string, def time.Duration) (time.Duration, error) {
	if s == "" {
		return def, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fleet.Invalidf(path, "%q is no duration; write 90s, 5m or 2h", s)
	}
	return d, nil
}

// PlacementFromProto reads where a module is to be.
func PlacementFromProto(in *towlinev1.Placement) (fleet.Placement, error) {
	if in.GetSelector() == nil && len(in.GetClusters()) == 0 {
		return fleet.Placement{}, fleet.Invalid("", "is empty and would select no cluster; set selector ({} selects every cluster) or clusters")
	}
	sel, err := SelectorFromProto(in.GetSelector())
	if err != nil {
		return fleet.Placement{}, fleet.Join("selector", err)
	}
	p := fleet.Placement{Selector: sel}
	for i, c := range in.GetClusters() {
		if err := fleet.ValidateLabel(c); err != nil {
			return p, fleet.Invalid(fmt.Sprintf("clusters[%d]", i), err.Error())
		}
		p.Clusters = append(p.Clusters, fleet.ClusterName(c))
	}
	for _, t := range in.GetTolerations() {
		p.Tolerations = append(p.Tolerations, fleet.Toleration{Key: t.GetKey(), Value: t.Value})
	}
	return p, nil
}

// SelectorFromProto compiles a selector; nil stays nil.
func SelectorFromProto(in *towlinev1.LabelSelector) (*fleet.Selector, error) {
	if in == nil {
		return nil, nil
	}
	s := &fleet.Selector{MatchLabels: in.GetMatchLabels()}
	for _, e := range in.GetMatchExpressions() {
		s.MatchExpressions = append(s.MatchExpressions, fleet.Requirement{Key: e.GetKey(), Operator: e.GetOperator(), Values: e.GetValues()})
	}
	return s, s.Compile()
}

func policies(in []*towlinev1.Policy) ([]fleet.Policy, error) {
	out := make([]fleet.Policy, 0, len(in))
	for i, p := range in {
		sel, err := SelectorFromProto(p.GetMatch().GetLabelSelector())
		if err != nil {
			return nil, fleet.Join(fmt.Sprintf("[%d].match.labelSelector", i), err)
		}
		m := p.GetMatch()
		v := fleet.Policy{Prune: p.GetPrune(), Drift: p.GetDrift(), Adopt: p.GetAdopt(), Conflict: p.GetConflict(),
			Recreate: p.GetRecreate(), Delete: p.GetDelete(), PruneWhen: p.GetPruneWhen(), Health: p.GetHealth(), KeepLegacy: p.KeepLegacy,
			IgnoreFields: ignoreFields(p.GetIgnoreFields()), ApplyOnce: applyOnce(p.GetApplyOnce()), ReadOnly: p.ReadOnly, TakeFrom: p.GetTakeFrom(), Shared: p.Shared,
			Match: fleet.PolicyMatch{Groups: m.GetGroups(), Kinds: m.GetKinds(), Namespaces: m.GetNamespaces(), Names: m.GetNames(), Labels: sel}}
		if err := validatePolicy(v); err != nil {
			return nil, fleet.Join(fmt.Sprintf("[%d]", i), err)
		}
		out = append(out, v)
	}
	return out, nil
}

func validatePolicy(p fleet.Policy) error {
	for _, f := range []struct {
		name, value string
		choices     []string
	}{
		{"prune", p.Prune, []string{fleet.PruneOnUpdate, fleet.PruneOnModuleDelete, fleet.PruneNever}},
		{"drift", p.Drift, []string{fleet.DriftCorrect, fleet.DriftReport, fleet.DriftIgnore}},
		{"adopt", p.Adopt, []string{fleet.AdoptNever, fleet.AdoptIfNoDiff, fleet.AdoptAlways}},
		{"conflict", p.Conflict, []string{fleet.ConflictFail, fleet.ConflictForce}},
		{"recreate", p.Recreate, []string{fleet.RecreateNever, fleet.RecreateIfImmutable}},
		{"delete", p.Delete, []string{fleet.DeleteDelete, fleet.DeleteOrphan}},
		{"pruneWhen", p.PruneWhen, []string{fleet.PruneAfterReady, fleet.PruneAfterApply, fleet.PruneFirst}},
		{"health", p.Health, []string{fleet.HealthLenient, fleet.HealthStrict}},
	} {
		if err := Choice(f.name, f.value, f.choices...); err != nil {
			return err
		}
	}
	return validateLeft(p)
}

// validateTaken checks takeFrom: it says of whom adopt: Always takes, so that it stands beside that.
func validateTaken(p fleet.Policy) error {
	for i, tool := range p.TakeFrom {
		field := fmt.Sprintf("takeFrom[%d]", i)
		if tool == "" || slices.Contains(p.TakeFrom[:i], tool) {
			return fleet.Invalidf(field, "names each tool once: %s", strings.Join(fleet.Tools(), ", "))
		}
		if err := Choice(field, tool, fleet.Tools()...); err != nil {
			return err
		}
	}
	if len(p.TakeFrom) > 0 && p.Adopt != fleet.AdoptAlways {
		return fleet.Invalidf("takeFrom", "says from whom adopt: %s takes an object; set that in the same entry", fleet.AdoptAlways)
	}
	return nil
}

// validateLeft checks what a policy leaves to others, and what it takes from them.
func validateLeft(p fleet.Policy) error {
	if err := validateTaken(p); err != nil {
		return err
	}
	if err := validateIgnored(p.IgnoreFields); err != nil {
		return err
	}
	return validateOnce(p.ApplyOnce)
}

func applyOnce(in *towlinev1.ApplyOnce) *fleet.ApplyOnce {
	if in == nil {
		return nil
	}
	return &fleet.ApplyOnce{Paths: in.GetPaths(), When: in.GetWhen()}
}

// validateOnce checks applyOnce; an empty one is an exception from the entries behind it.
func validateOnce(in *fleet.ApplyOnce) error {
	if in == nil {
		return nil
	}
	if err := Choice("applyOnce.when", in.When, fleet.OnceOnUpdate, fleet.OnceOnDrift, fleet.OnceAlways); err != nil {
		return err
	}
	switch {
	case len(in.Paths) == 0 && in.When != "":
		return fleet.Invalidf("applyOnce.paths", "is required: JSON pointers, or %q for the whole object", fleet.OnceAll)
	case len(in.Paths) > maxIgnored:
		return fleet.Invalidf("applyOnce.paths", "has %d entries, more than %d", len(in.Paths), maxIgnored)
	case len(in.Paths) > 1 && slices.Contains(in.Paths, fleet.OnceAll):
		return fleet.Invalidf("applyOnce.paths", "%q is the whole object, and stands alone", fleet.OnceAll)
	}
	for i, path := range in.Paths {
		if path == fleet.OnceAll {
			continue
		}
		if _, err := fleet.ParseFieldPath(path); err != nil {
			return fleet.Invalid(fmt.Sprintf("applyOnce.paths[%d]", i), err.Error())
		}
	}
	return nil
}

func ignoreFields(in *towlinev1.IgnoreFields) *fleet.IgnoreFields {
	if in == nil {
		return nil
	}
	return &fleet.IgnoreFields{JSONPointers: in.GetJsonPointers(), Managers: in.GetManagers()}
}

// maxIgnored bounds the paths and the managers of one entry.
const maxIgnored = 64

// validateIgnored checks ignoreFields; an empty one is an exception from the entries behind it.
func validateIgnored(in *fleet.IgnoreFields) error {
	if in == nil {
		return nil
	}
	if n := len(in.JSONPointers) + len(in.Managers); n > maxIgnored {
		return fleet.Invalidf("ignoreFields", "has %d entries, more than %d", n, maxIgnored)
	}
	for i, path := range in.JSONPointers {
		if _, err := fleet.ParseFieldPath(path); err != nil {
			return fleet.Invalid(fmt.Sprintf("ignoreFields.jsonPointers[%d]", i), err.Error())
		}
	}
	for i, name := range in.Managers {
		field := fmt.Sprintf("ignoreFields.managers[%d]", i)
		switch {
		case name == "" || len(name) > maxManagerName:
			return fleet.Invalidf(field, "is a name of 1 to %d characters, as managedFields has it", maxManagerName)
		case name == fleet.FieldManager || strings.HasPrefix(name, fleet.FieldManager+"/"):
			return fleet.Invalidf(field, "%q is Towline's own", name)
		}
	}
	return nil
}

// maxManagerName is the longest name of a field manager that the API server takes.
const maxManagerName = 128

// Choice reports a value that is neither empty nor one of the choices.
func Choice(path, value string, choices ...string) error {
	if value == "" || slices.Contains(choices, value) {
		return nil
	}
	return fleet.Invalidf(path, "%q is unknown; use %s", value, strings.Join(choices, ", "))
}

// SpecDigest is equal for equal specs. Map order does not matter; it is never stored across versions of the hub as
// anything but a hint for "unchanged": a wrong miss makes one needless revision, a wrong hit is impossible.
func SpecDigest(spec *towlinev1.ModuleSpec) (fleet.Digest, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(spec)
	if err != nil {
		return fleet.Digest{}, fmt.Errorf("spec: %w", err)
	}
	return fleet.DigestOf(b), nil
}

// ClusterOf is the cluster that a message describes, unchecked.
func ClusterOf(in *towlinev1.Cluster) fleet.Cluster {
	c := fleet.Cluster{Name: fleet.ClusterName(in.GetMetadata().GetName()), Labels: in.GetMetadata().GetLabels(), Annotations: in.GetMetadata().GetAnnotations(), Cordoned: in.GetSpec().GetCordoned()}
	for _, t := range in.GetSpec().GetTaints() {
		c.Taints = append(c.Taints, fleet.Taint{Key: t.GetKey(), Value: t.GetValue()})
	}
	return c
}

// ClusterFromProto validates a cluster's name, labels and taints.
func ClusterFromProto(in *towlinev1.Cluster) (fleet.Cluster, error) {
	meta, c := in.GetMetadata(), ClusterOf(in)
	if v := in.GetApiVersion(); v != "" && v != fleet.APIVersion {
		return c, fleet.Invalidf("apiVersion", "%q is unknown; this hub speaks %s", v, fleet.APIVersion)
	}
	if err := fleet.ValidateLabel(meta.GetName()); err != nil {
		return c, fleet.Invalid("metadata.name", err.Error())
	}
	for i, t := range in.GetSpec().GetTaints() {
		path := fmt.Sprintf("spec.taints[%d]", i)
		if t.GetKey() == "" {
			return c, fleet.Invalid(path+".key", "is required")
		}
		if err := Choice(path+".effect", t.GetEffect(), "NoPlacement"); err != nil {
			return c, err
		}
	}
	return c, validateLabels("metadata.labels", meta.GetLabels())
}
