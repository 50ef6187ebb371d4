package fleet

import (
	"encoding/json"
	"slices"
)

// Policy says how the objects it matches are treated. An empty field says nothing.
type Policy struct {
	Match     PolicyMatch `json:"match,omitzero"`
	Prune     string      `json:"prune,omitempty"`
	Drift     string      `json:"drift,omitempty"`
	Adopt     string      `json:"adopt,omitempty"`
	Conflict  string      `json:"conflict,omitempty"`
	Recreate  string      `json:"recreate,omitempty"`
	Delete    string      `json:"delete,omitempty"`
	PruneWhen string      `json:"pruneWhen,omitempty"`
	Health    string      `json:"health,omitempty"`

	// KeepLegacy keeps what a revision drops until a person deletes the tracker of the revision that listed it last.
	KeepLegacy   *bool         `json:"keepLegacy,omitempty"`
	IgnoreFields *IgnoreFields `json:"ignoreFields,omitempty"`
	ApplyOnce    *ApplyOnce    `json:"applyOnce,omitempty"`
	// Shared: several modules of a cluster that all say so may list the object. The first has it, and the others have it after that one.
	Shared *bool `json:"shared,omitempty"`
	// TakeFrom are the tools, of Tools, from which adopt: Always takes an object; none: it takes it from whoever has it.
	TakeFrom []string `json:"takeFrom,omitempty"`
	// ReadOnly: the object is somebody else's, has to be there, and is never written.
	ReadOnly *bool `json:"readOnly,omitempty"`
}

// Reads reports that the object is to be there and is not to be written.
func (p Policy) Reads() bool { return p.ReadOnly != nil && *p.ReadOnly }

// Shares reports that other modules which say so, too, may list the object.
func (p Policy) Shares() bool { return p.Shared != nil && *p.Shared }

// IgnoreFields are fields that are set when an object is made, and are nobody's business afterwards.
type IgnoreFields struct {
	// JSONPointers say where they are in the manifest (FieldPath).
	JSONPointers []string `json:"jsonPointers,omitempty"`
	// Managers are field managers that have what they hold for as long as they hold it.
	Managers []string `json:"managers,omitempty"`
}

// ApplyOnce are fields that are applied when an object is made, and not again by a revision, as a correction, or both.
type ApplyOnce struct {
	// Paths are as JSONPointers of IgnoreFields, or OnceAll alone.
	Paths []string `json:"paths,omitempty"`
	// When is OnceOnUpdate, OnceOnDrift or OnceAlways; empty: OnceAlways.
	When string `json:"when,omitempty"`
}

// OnceAll is the path of the whole object.
const OnceAll = "*"

// HealthRule judges the objects of a group and kind in CEL; pkg/health says how.
type HealthRule struct {
	Group       string `json:"group,omitempty"`
	Kind        string `json:"kind"`
	Healthy     string `json:"healthy,omitempty"`
	Progressing string `json:"progressing,omitempty"`
	Degraded    string `json:"degraded,omitempty"`
	Message     string `json:"message,omitempty"`
}

// PolicySet is what a revision says of the treatment of its objects: the content that a sync's policies digest names.
type PolicySet struct {
	Policies    []Policy     `json:"policies,omitempty"`
	HealthRules []HealthRule `json:"healthRules,omitempty"`
	// Watch are objects that the module only watches.
	Watch []WatchedObject `json:"watch,omitempty"`
	// Substitution is set where placeholders are more than ${NAME}.
	Substitution *Substitution `json:"substitution,omitempty"`
	// Bindings are those that the agent evaluates.
	Bindings []LateBinding `json:"bindings,omitempty"`
	// Waves is WavesWaitHealthy where a wave begins when the one before is healthy; empty: when it is applied.
	Waves string `json:"waves,omitempty"`
	// Uncounted are objects whose health does not count for whether the module, or their wave, is ready.
	Uncounted []PolicyMatch `json:"uncounted,omitempty"`
}

// Values of waves.
const (
	WavesWaitHealthy = "WaitHealthy"
	WavesWaitApplied = "WaitApplied"
)

// Uncounts reports that the health of an object does not count.
func (s PolicySet) Uncounts(id ObjectID) bool {
	return slices.ContainsFunc(s.Uncounted, func(m PolicyMatch) bool { return m.matches(id, nil) })
}

// WatchedObject is an object that a module does not apply, and whose health counts for its own. Namespace and Name may contain
// ${NAME}.
type WatchedObject struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// Entry is the object as an entry of a bundle that has no content.
func (o WatchedObject) Entry() BundleEntry {
	return BundleEntry{Version: o.Version, ID: ObjectID{Group: o.Group, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}}
}

// PolicyMatch selects objects; empty lists match all.
type PolicyMatch struct {
	Groups     []string  `json:"groups,omitempty"`
	Kinds      []string  `json:"kinds,omitempty"`
	Namespaces []string  `json:"namespaces,omitempty"`
	Names      []string  `json:"names,omitempty"`
	Labels     *Selector `json:"labelSelector,omitempty"`
}

// Values of policies.
const (
	PruneOnUpdate       = "OnUpdate"
	PruneOnModuleDelete = "OnModuleDelete"
	PruneNever          = "Never"
	DriftCorrect        = "Correct"
	DriftReport         = "Report"
	DriftIgnore         = "Ignore"
	AdoptNever          = "Never"
	AdoptIfNoDiff       = "IfNoDiff"
	AdoptAlways         = "Always"
	ConflictFail        = "Fail"
	ConflictForce       = "Force"
	RecreateNever       = "Never"
	RecreateIfImmutable = "IfImmutable"
	DeleteDelete        = "Delete"
	DeleteOrphan        = "Orphan"
	PruneAfterReady     = "AfterReady"
	PruneAfterApply     = "AfterApply"
	PruneFirst          = "First"
	HealthLenient       = "Lenient"
	HealthStrict        = "Strict"
	OnceOnUpdate        = "OnUpdate"
	OnceOnDrift         = "OnDrift"
	OnceAlways          = "Always"
)

// Tools from which an object may be taken.
const (
	TakeArgoCD  = "ArgoCD"
	TakeFlux    = "Flux"
	TakeHelm    = "Helm"
	TakeKubectl = "kubectl"
)

// Tools are all that may stand in takeFrom.
func Tools() []string { return []string{TakeArgoCD, TakeFlux, TakeHelm, TakeKubectl} }

// DefaultPolicy is what holds where no entry says otherwise (DESIGN §8).
func DefaultPolicy() Policy {
	return Policy{Prune: PruneOnUpdate, Drift: DriftCorrect, Adopt: AdoptIfNoDiff, Conflict: ConflictFail,
		Recreate: RecreateNever, Delete: DeleteDelete, PruneWhen: PruneAfterReady,
		Health: HealthLenient, KeepLegacy: new(bool)}
}

// KeepsLegacy reports that what a revision drops stays until a person deletes its tracker.
func (p Policy) KeepsLegacy() bool { return p.KeepLegacy != nil && *p.KeepLegacy }

// Resolve is the policy for an object: for each field the first entry that sets it and matches wins.
func Resolve(policies []Policy, id ObjectID, objectLabels map[string]string) Policy {
	out := Said(policies, id, objectLabels)
	out.fill(DefaultPolicy())
	return out
}

// Said is what the policies themselves say of an object: as Resolve, but a field that no entry sets is empty.
func Said(policies []Policy, id ObjectID, objectLabels map[string]string) Policy {
	var out Policy
	for i := range policies {
		if policies[i].Match.matches(id, objectLabels) {
			out.fill(policies[i])
		}
	}
	return out
}

// PolicyFields are the names of the fields in the order of Rules.
var PolicyFields = [...]string{"prune", "drift", "adopt", "conflict", "recreate", "delete", "pruneWhen", "health", "keepLegacy", "ignoreFields", "applyOnce", "readOnly", "takeFrom", "shared"}

// Decision says which entry of a module's policies decided one field for an object.
type Decision struct {
	// Field is one of PolicyFields, Value what holds: of ignoreFields and applyOnce as JSON; what says nothing is empty.
	Field, Value string
	// Entry is the index of the entry; -1: none sets the field, and the default holds.
	Entry int
}

// Decisions are those of all fields, in order: what Resolve comes to, and why.
func Decisions(policies []Policy, id ObjectID, objectLabels map[string]string) []Decision {
	out := make([]Decision, len(PolicyFields))
	for i, value := range Resolve(policies, id, objectLabels).Rules() {
		out[i] = Decision{Field: PolicyFields[i], Value: value, Entry: slices.IndexFunc(policies, func(p Policy) bool {
			return p.Rules()[i] != "" && p.Match.matches(id, objectLabels)
		})}
	}
	return out
}

// Rules are the values of PolicyFields as text; empty: the policy says nothing of the field.
type Rules [len(PolicyFields)]string

// Rules are the fields in order, to tell policies apart by; what they match is left out.
func (p Policy) Rules() Rules {
	return Rules{p.Prune, p.Drift, p.Adopt, p.Conflict, p.Recreate, p.Delete, p.PruneWhen, p.Health, textOf(p.KeepLegacy), textOf(p.IgnoreFields),
		textOf(p.ApplyOnce), textOf(p.ReadOnly), listOf(p.TakeFrom), textOf(p.Shared)}
}

// listOf is a list as text; empty: there is none.
func listOf(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return textOf(&list)
}

// textOf is a part of a policy as text; empty: it says nothing.
func textOf[T any](part *T) string {
	if part == nil {
		return ""
	}
	text, _ := json.Marshal(part)
	return string(text)
}

func (p *Policy) fill(from Policy) {
	set := func(dst *string, v string) {
		if *dst == "" {
			*dst = v
		}
	}
	set(&p.Prune, from.Prune)
	set(&p.Drift, from.Drift)
	set(&p.Adopt, from.Adopt)
	set(&p.Conflict, from.Conflict)
	set(&p.Recreate, from.Recreate)
	set(&p.Delete, from.Delete)
	set(&p.PruneWhen, from.PruneWhen)
	set(&p.Health, from.Health)
	if p.KeepLegacy == nil {
		p.KeepLegacy = from.KeepLegacy
	}
	if p.IgnoreFields == nil {
		p.IgnoreFields = from.IgnoreFields
	}
	if p.ApplyOnce == nil {
		p.ApplyOnce = from.ApplyOnce
	}
	if p.ReadOnly == nil {
		p.ReadOnly = from.ReadOnly
	}
	if len(p.TakeFrom) == 0 {
		p.TakeFrom = from.TakeFrom
	}
	if p.Shared == nil {
		p.Shared = from.Shared
	}
}

func (m PolicyMatch) matches(id ObjectID, objectLabels map[string]string) bool {
	in := func(list []string, v string) bool { return len(list) == 0 || slices.Contains(list, v) }
	return in(m.Groups, id.Group) && in(m.Kinds, id.Kind) && in(m.Namespaces, id.Namespace) && in(m.Names, id.Name) &&
		(m.Labels == nil || m.Labels.Matches(objectLabels))
}
