package wire

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Limits of an index. The hub's own checks are tighter; these protect the agent's memory.
const (
	maxIndexSyncs = 10_000
	maxSyncValues = assemble.MaxValues
	maxValueBytes = assemble.MaxValueBytes
)

// moduleFrom reads a module as the agent protocol writes it: always project/name.
func moduleFrom(s string) (fleet.ModuleRef, error) {
	m, err := fleet.ParseModuleRef(s)
	if err != nil {
		return m, err
	}
	if m.String() != s {
		return m, fleet.Invalidf("module", "%.80q is no project/name", s)
	}
	return m, nil
}

// digestFrom reads a digest that must be there.
func digestFrom(path string, b []byte) (fleet.Digest, error) {
	d, err := fleet.DigestFromBytes(b)
	switch {
	case err != nil:
		return d, fleet.Invalid(path, err.Error())
	case d.IsZero():
		return d, fleet.Invalid(path, "is required")
	}
	return d, nil
}

// SyncFromProto validates a sync. Errors are by field path below it. Beside an error that is not about the module's name stands all that can
// be read: an index is proved by what it says, whether each of its syncs is valid or not.
func SyncFromProto(in *agentv1.Sync) (fleet.Sync, error) {
	s := fleet.Sync{Generation: in.GetGeneration(), Revision: in.GetRevision(), Objects: int(in.GetObjects()), Hold: in.GetHold(),
		PruneConfirmed: in.GetPruneConfirmed(), Watched: int(min(in.GetWatched(), MaxWatched)), Values: maps.Clone(in.GetValues()),
		Held: in.GetHeld(), PruneShown: in.GetPruneShown()}
	var err error
	if s.Module, err = moduleFrom(in.GetModule()); err != nil {
		return s, err
	}
	s.Bundle, err = digestFrom("bundle", in.GetBundle())
	policies, policiesErr := fleet.DigestFromBytes(in.GetPolicies())
	if policiesErr != nil {
		policiesErr = fleet.Invalid("policies", policiesErr.Error())
	}
	s.Policies = policies
	err = cmp.Or(err, policiesErr, checkNumbers(in), checkValues(in.GetValues()))
	heirs, heirsErr := HeirsFromProto(in.GetHeirs())
	recycles, recyclesErr := RecyclesFromProto(in.GetRecycles())
	dependsOn, dependsErr := dependsOnFrom(s.Module, in.GetDependsOn())
	yields, yieldsErr := YieldsFromProto(in)
	s.Heirs, s.Recycles, s.DependsOn, s.Yields = heirs, recycles, dependsOn, yields
	return s, cmp.Or(err, heirsErr, recyclesErr, checkOrder("held", in.GetHeld()), checkOrder("pruneShown", in.GetPruneShown()), dependsErr, yieldsErr)
}

func checkNumbers(in *agentv1.Sync) error {
	switch {
	case in.GetGeneration() == 0:
		return fleet.Invalid("generation", "is required")
	case in.GetRevision() < 0:
		return fleet.Invalidf("revision", "%d is below 0", in.GetRevision())
	case in.GetObjects() > assemble.MaxBundleObjects:
		return fleet.Invalidf("objects", "%d are too many; at most %d", in.GetObjects(), assemble.MaxBundleObjects)
	}
	return nil
}

// dependsOnFrom reads modules that come before one: others, sorted, each once. Beside an error stands what can be read.
func dependsOnFrom(of fleet.ModuleRef, in []string) ([]fleet.ModuleRef, error) {
	var bad error
	if len(in) > MaxDependencies {
		bad = fleet.Invalidf("dependsOn", "%d are too many; at most %d", len(in), MaxDependencies)
	}
	var out []fleet.ModuleRef
	for i, name := range in {
		m, err := moduleFrom(name)
		switch {
		case err != nil:
			err = fleet.Join(fmt.Sprintf("dependsOn[%d]", i), err)
		case m == of:
			err = fleet.Invalidf("dependsOn", "%s is the module itself", m)
		case i > 0 && in[i-1] >= name:
			err = fleet.Invalidf("dependsOn", "%s is listed twice or out of order", m)
		}
		bad = cmp.Or(bad, err)
		out = append(out, m)
	}
	return out, bad
}

// DependsOnToProto is the wire form of modules that come first.
func DependsOnToProto(list []fleet.ModuleRef) []string {
	var out []string
	for _, m := range list {
		out = append(out, m.String())
	}
	return out
}

func checkValues(in map[string]string) error {
	if len(in) > maxSyncValues {
		return fleet.Invalidf("values", "%d are too many; at most %d", len(in), maxSyncValues)
	}
	for name, v := range in {
		if err := fleet.ValidateBindingName(name); err != nil {
			return fleet.Invalid("values", err.Error())
		}
		if len(v) > maxValueBytes {
			return fleet.Invalidf("values."+name, "has %d bytes; at most %d", len(v), maxValueBytes)
		}
	}
	return nil
}

// SyncToProto is the wire form of a sync.
func SyncToProto(s fleet.Sync) *agentv1.Sync {
	return &agentv1.Sync{Module: s.Module.String(), Generation: s.Generation, Revision: s.Revision, Bundle: s.Bundle.Bytes(),
		Values: maps.Clone(s.Values), Policies: s.Policies.Bytes(), Hold: s.Hold, PruneConfirmed: s.PruneConfirmed,
		Objects: uint32(s.Objects), Watched: uint32(s.Watched), Yields: YieldsToProto(s.Yields), Heirs: HeirsToProto(s.Heirs),
		Recycles: RecyclesToProto(s.Recycles), Held: slices.Clone(s.Held), PruneShown: slices.Clone(s.PruneShown), DependsOn: DependsOnToProto(s.DependsOn)}
}

// TombstoneFromProto validates a tombstone. Beside an error that is not about the module's name stands all that can be read, as in a sync.
func TombstoneFromProto(in *agentv1.Tombstone) (fleet.Tombstone, error) {
	m, err := moduleFrom(in.GetModule())
	if err != nil {
		return fleet.Tombstone{}, err
	}
	switch {
	case in.GetGeneration() == 0:
		err = fleet.Invalid("generation", "is required")
	case in.GetPolicy() != fleet.DeleteDelete && in.GetPolicy() != fleet.DeleteOrphan:
		err = fleet.Invalidf("policy", "%.40q is unknown; use %s or %s", in.GetPolicy(), fleet.DeleteDelete, fleet.DeleteOrphan)
	}
	if len(in.GetPolicies()) > 0 {
		if _, policiesErr := PolicySetFromContent(in.GetPolicies()); policiesErr != nil {
			err = cmp.Or(err, fleet.Join("policies", policiesErr))
		}
	}
	dependsOn, dependsErr := dependsOnFrom(m, in.GetDependsOn())
	heirs, heirsErr := HeirsFromProto(in.GetHeirs())
	return fleet.Tombstone{Module: m, Generation: in.GetGeneration(), Policy: in.GetPolicy(), Hold: in.GetHold(), Heirs: heirs,
		Policies: string(in.GetPolicies()), DependsOn: dependsOn}, cmp.Or(err, dependsErr, heirsErr)
}

// LeaveFromProto validates an order to leave the fleet. What is not understood deletes nothing.
func LeaveFromProto(in *agentv1.Leave) (fleet.Leave, error) {
	out := fleet.Leave{Objects: fleet.LeaveKeep, Hold: in.GetHold()}
	if in.GetObjects() == fleet.LeaveDelete {
		out.Objects = fleet.LeaveDelete
	}
	for _, name := range in.GetHeld() {
		m, err := fleet.ParseModuleRef(name)
		if err != nil {
			return fleet.Leave{}, fleet.Invalidf("held", "%v", err)
		}
		out.Held = append(out.Held, m)
	}
	return out, nil
}

// TombstoneToProto is the wire form of a tombstone.
func TombstoneToProto(t fleet.Tombstone) *agentv1.Tombstone {
	return &agentv1.Tombstone{Module: t.Module.String(), Generation: t.Generation, Policy: t.Policy, Hold: t.Hold, Heirs: HeirsToProto(t.Heirs),
		Policies: []byte(t.Policies), DependsOn: DependsOnToProto(t.DependsOn)}
}

// IndexFromAssemblage is the complete index of an assemblage.
func IndexFromAssemblage(a fleet.Assemblage) *agentv1.Index {
	out := &agentv1.Index{Complete: true, ResultsIn: a.Digest.Bytes(), Generation: a.Generation, Hold: a.Hold}
	for _, s := range a.Syncs {
		out.Syncs = append(out.Syncs, SyncToProto(s))
	}
	for _, t := range a.Tombstones {
		out.Tombstones = append(out.Tombstones, TombstoneToProto(t))
	}
	return out
}

// AssemblageFromIndex is the assemblage that an index results in. A delta applies to base, which must have its
// applies_to as digest; a complete index needs no base. The result's digest is computed and must be results_in. An
// index that does not fit is fleet.ErrCorrupt, one that is malformed fleet.ErrInvalid.
func AssemblageFromIndex(in *agentv1.Index, base fleet.Assemblage) (fleet.Assemblage, error) {
	a, invalid, err := ReadIndex(in, base)
	if err == nil && len(invalid) > 0 {
		err = firstInvalid(in, invalid)
	}
	if err != nil {
		return fleet.Assemblage{}, err
	}
	return a, nil
}

// ReadIndex is AssemblageFromIndex for one who takes what is valid: syncs and tombstones that are not, or not to this version, are in the
// assemblage, and invalid says of the modules why. They are of an index that fits as a whole: one that does not is an error.
func ReadIndex(in *agentv1.Index, base fleet.Assemblage) (a fleet.Assemblage, invalid map[fleet.ModuleRef]error, err error) {
	if n := len(in.GetSyncs()) + len(in.GetTombstones()); n > maxIndexSyncs {
		return a, nil, fleet.Invalidf("index", "%d syncs and tombstones are too many; at most %d", n, maxIndexSyncs)
	}
	merged, err := indexModules(in)
	if err != nil {
		return a, nil, fleet.Join("index", err)
	}
	if !in.GetComplete() {
		if err := merged.addBase(in, base); err != nil {
			return a, nil, err
		}
	}
	a = assemble.Build(merged.syncs, merged.tombstones, in.GetHold(), in.GetGeneration())
	want, err := fleet.DigestFromBytes(in.GetResultsIn())
	switch {
	case err != nil:
		return a, nil, fleet.Invalid("index.resultsIn", err.Error())
	case a.Digest != want && len(merged.invalid) > 0: // what cannot be read is not in the digest
		return a, nil, firstInvalid(in, merged.invalid)
	case a.Digest != want:
		return a, nil, fleet.Errorf(fleet.ErrCorrupt, "index: results in %s, not in %s as it says", a.Digest.Short(), want.Short())
	case a.Generation != in.GetGeneration():
		return a, nil, fleet.Invalidf("index.generation", "%d is below %d, that of a sync in it", in.GetGeneration(), a.Generation)
	}
	return a, merged.invalid, nil
}

// firstInvalid is what is wrong with the first part of an index that is not valid, by its place.
func firstInvalid(in *agentv1.Index, invalid map[fleet.ModuleRef]error) error {
	why := func(part, module string, at int) error {
		m, _ := moduleFrom(module)
		if err := invalid[m]; err != nil {
			return fleet.Join("index", fleet.Join(fmt.Sprintf("%s[%d]", part, at), err))
		}
		return nil
	}
	for i, x := range in.GetSyncs() {
		if err := why("syncs", x.GetModule(), i); err != nil {
			return err
		}
	}
	for i, x := range in.GetTombstones() {
		if err := why("tombstones", x.GetModule(), i); err != nil {
			return err
		}
	}
	return nil
}

// indexParts collects an assemblage; modules is every module that is spoken of, and invalid why what is said of one is not valid.
type indexParts struct {
	syncs      []fleet.Sync
	tombstones []fleet.Tombstone
	modules    map[fleet.ModuleRef]bool
	invalid    map[fleet.ModuleRef]error
}

// indexModules reads what an index says. Whose module is not known, or is listed twice, is an error of the whole.
func indexModules(in *agentv1.Index) (*indexParts, error) {
	p := &indexParts{modules: make(map[fleet.ModuleRef]bool, len(in.GetSyncs())), invalid: map[fleet.ModuleRef]error{}}
	for i, raw := range in.GetSyncs() {
		s, err := SyncFromProto(raw)
		if err := p.claim(s.Module, err); err != nil {
			return nil, fleet.Join(fmt.Sprintf("syncs[%d]", i), err)
		}
		p.syncs = append(p.syncs, s)
	}
	for i, raw := range in.GetTombstones() {
		t, err := TombstoneFromProto(raw)
		if err := p.claim(t.Module, err); err != nil {
			return nil, fleet.Join(fmt.Sprintf("tombstones[%d]", i), err)
		}
		p.tombstones = append(p.tombstones, t)
	}
	return p, nil
}

// claim notes that a module is spoken of, and what is wrong with that.
func (p *indexParts) claim(m fleet.ModuleRef, invalid error) error {
	switch {
	case m == fleet.ModuleRef{}:
		return invalid
	case p.modules[m]:
		return fleet.Invalidf("module", "%s is listed twice", m)
	case invalid != nil:
		p.invalid[m] = invalid
	}
	p.modules[m] = true
	return nil
}

// addBase adds what a delta leaves as it is.
func (p *indexParts) addBase(in *agentv1.Index, base fleet.Assemblage) error {
	from, err := fleet.DigestFromBytes(in.GetAppliesTo())
	if err != nil {
		return fleet.Invalid("index.appliesTo", err.Error())
	}
	if from != base.Digest {
		return fleet.Errorf(fleet.ErrCorrupt, "index: applies to %s, held is %s", from.Short(), base.Digest.Short())
	}
	forgotten := make(map[fleet.ModuleRef]bool, len(in.GetForgotten()))
	for i, s := range in.GetForgotten() {
		m, err := moduleFrom(s)
		if err != nil {
			return fleet.Join(fmt.Sprintf("index.forgotten[%d]", i), err)
		}
		forgotten[m] = true
	}
	for _, s := range base.Syncs {
		if !p.modules[s.Module] {
			p.syncs = append(p.syncs, s)
		}
	}
	for _, t := range base.Tombstones {
		if !p.modules[t.Module] && !forgotten[t.Module] {
			p.tombstones = append(p.tombstones, t)
		}
	}
	return nil
}

// BundleEntryFromProto reads one object's place in a bundle, or the object that a query names.
func BundleEntryFromProto(in *agentv1.BundleEntry) (fleet.BundleEntry, error) {
	d, err := fleet.DigestFromBytes(in.GetDigest())
	switch {
	case err != nil:
		return fleet.BundleEntry{}, fleet.Invalid("digest", err.Error())
	case in.GetKind() == "":
		return fleet.BundleEntry{}, fleet.Invalid("kind", "is required")
	case in.GetName() == "":
		return fleet.BundleEntry{}, fleet.Invalid("name", "is required")
	case in.GetVersion() == "":
		return fleet.BundleEntry{}, fleet.Invalid("version", "is required")
	case strings.Contains(in.GetName()+in.GetNamespace()+in.GetKind()+in.GetGroup()+in.GetVersion(), "/"):
		return fleet.BundleEntry{}, fleet.Invalid("name", "has a '/'")
	}
	return fleet.BundleEntry{Digest: d, Version: in.GetVersion(), Wave: in.GetWave(),
		ID: fleet.ObjectID{Group: in.GetGroup(), Kind: in.GetKind(), Namespace: in.GetNamespace(), Name: in.GetName()}}, nil
}

// BundleEntryToProto is the wire form of an entry.
func BundleEntryToProto(e fleet.BundleEntry) *agentv1.BundleEntry {
	return &agentv1.BundleEntry{Digest: e.Digest.Bytes(), Group: e.ID.Group, Version: e.Version, Kind: e.ID.Kind,
		Namespace: e.ID.Namespace, Name: e.ID.Name, Wave: e.Wave}
}
