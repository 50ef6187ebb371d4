package record

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// CapabilitiesSum is what a cluster can do, in short, as its agent told last; nil: it has not told.
func CapabilitiesSum(r store.Reader, c fleet.ClusterName) *storev1.CapabilitiesSum {
	return capabilitiesRecord(r, c).GetSum()
}

// capabilitiesRecord is what a cluster's agent told; nil: it has not told. What another cluster could do that had the name before, as one
// that was made anew, says nothing of this one.
func capabilitiesRecord(r store.Reader, c fleet.ClusterName) *storev1.CapabilitiesRecord {
	rec, _, _ := store.Get[*storev1.CapabilitiesRecord](r, store.CapabilityKey(c))
	if since := Anew(r, c).GetAnewEpoch(); since > 0 && rec.GetEpoch() <= since {
		return nil
	}
	return rec
}

// Anew is a cluster's record, which says since when another Kubernetes cluster has the name; nil: there is none. No commit depends on it.
func Anew(r store.Reader, c fleet.ClusterName) *storev1.ClusterRecord {
	rec, _, _ := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(c))
	return rec
}

// TakeName notes in a cluster's record that another Kubernetes cluster takes its name: what is known of the one before, and what is ordered in this
// moment, is no word of this one.
func TakeName(w store.Writer, c fleet.ClusterName, rec *storev1.ClusterRecord) {
	s, _, _ := store.Get[*storev1.SessionRecord](w, store.SessionKey(c))
	rec.AnewEpoch, rec.AnewGeneration = s.GetEpoch(), LastGeneration(w)
	rec.AnewTake = takes(w) + 1
	w.Put(store.TakenKey, &storev1.Counter{Value: rec.AnewTake})
}

// AnewGeneration is the last generation that was given out before another Kubernetes cluster took the name; 0: none did.
func AnewGeneration(r store.Reader, c fleet.ClusterName) uint64 {
	return Anew(r, c).GetAnewGeneration()
}

// Taken tells the Kubernetes cluster that has a name from those that had it before; 0: it is the first. The generation alone does not: two that take the
// name one after the other, with no order in between, have the same.
func Taken(c *storev1.ClusterRecord) uint64 { return c.GetAnewGeneration() + c.GetAnewTake() }

// capabilities is the digest of what a cluster can do; zero: it has not told.
func capabilities(r store.Reader, c fleet.ClusterName) fleet.Digest {
	return Digest(CapabilitiesSum(r, c).GetDigest())
}

// Capable are capabilities that some cluster has, by their digests.
type Capable map[fleet.Digest]Able

// Able is what clusters can do, with its short form.
type Able struct {
	Sum *storev1.CapabilitiesSum
	All fleet.Capabilities
}

// Add reads what a cluster can do, and returns its digest; zero: it has not told.
func (x Capable) Add(r store.Reader, c fleet.ClusterName) fleet.Digest {
	rec := capabilitiesRecord(r, c)
	digest := Digest(rec.GetSum().GetDigest())
	if _, known := x[digest]; digest.IsZero() || known {
		return digest
	}
	all, err := wire.Capabilities(rec.GetSum().GetKubernetesVersion(), rec.GetApis())
	if err != nil { // it was checked when it came
		return fleet.Digest{}
	}
	x[digest] = Able{Sum: rec.GetSum(), All: all}
	return digest
}

// Find reads capabilities that a cluster has.
func (x Capable) Find(r store.Reader, wanted fleet.Digest) (Able, bool) {
	if able, known := x[wanted]; known || wanted.IsZero() {
		return able, known
	}
	store.Scan(store.Untracked(r), store.CapabilityPrefix, func(rec *storev1.CapabilitiesRecord, e store.Entry) bool {
		if bytes.Equal(rec.GetSum().GetDigest(), wanted.Bytes()) {
			// What one has that was made anew, or whose record is damaged, does not count: others may be able to do the same.
			return x.Add(store.Untracked(r), fleet.ClusterName(e.Key[len(store.CapabilityPrefix):])).IsZero()
		}
		return true
	})
	able, known := x[wanted]
	return able, known
}

// VariantFor is the variant of a revision that is a cluster's: by its labels, and by what it can do now, or could when the revision was
// chosen for it. A revision does not change under a cluster that has it: it keeps what it was given even if it can do something else
// since, as long as the revision has that for its labels. What was chosen before the cluster told anything does not count, nor what was
// chosen for another cluster that had the name, once this one has told.
func VariantFor(r store.Reader, ref fleet.ModuleRef, rev *storev1.RevisionRecord, overrides []fleet.Override, c fleet.Cluster) fleet.Variant {
	if !rev.GetByCapabilities() {
		return assemble.VariantOf(overrides, c)
	}
	return variantFor(r, ref, rev, overrides, c, func(v fleet.Variant) bool {
		_, err := VariantIn(rev, v)
		return err == nil
	})
}

// variantFor is that of a revision which differs by what clusters can do; has says which variants the revision has.
func variantFor(r store.Reader, ref fleet.ModuleRef, rev *storev1.RevisionRecord, overrides []fleet.Override, c fleet.Cluster, has func(fleet.Variant) bool) fleet.Variant {
	v := assemble.VariantOf(overrides, c)
	r = store.Untracked(r)
	d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(c.Name, ref))
	can := capabilities(r, c.Name)
	anothers := !can.IsZero() && ChosenGeneration(d) <= AnewGeneration(r, c.Name)
	if chosen := Digest(d.GetCapabilities()); !chosen.IsZero() && !anothers && d.GetSync().GetRevision() == rev.GetRevision().GetNumber() {
		v.Capabilities = chosen
		if has(v) {
			return v
		}
	}
	if can.IsZero() && ChosenGeneration(d) > AnewGeneration(r, c.Name) {
		can = Digest(d.GetCapabilities()) // what it told is lost by damage, and it can do no less until it tells again
	}
	v.Capabilities = can
	return v
}

// Chosen is what an assignment notes of the capabilities that it was chosen for, and the generation that chose them: its own where they are
// what the cluster can do now, else that of what it keeps.
func Chosen(r store.Reader, ref fleet.ModuleRef, rev *storev1.RevisionRecord, overrides []fleet.Override, c fleet.Cluster, old *storev1.DesiredRecord, generation uint64) ([]byte, uint64) {
	v := VariantFor(r, ref, rev, overrides, c)
	if v.Capabilities.IsZero() {
		return nil, 0
	}
	if v.Capabilities != capabilities(store.Untracked(r), c.Name) {
		generation = ChosenGeneration(old)
	}
	return v.Capabilities.Bytes(), generation
}

// ChosenGeneration is the generation that chose the capabilities of a record; 0: it has none.
func ChosenGeneration(d *storev1.DesiredRecord) uint64 {
	if len(d.GetCapabilities()) == 0 {
		return 0
	}
	return cmp.Or(d.GetChosenGeneration(), Generation(d))
}

// Outgrown is a cluster that has a revision, and can do something else than when that was chosen for it.
type Outgrown struct {
	// Now is the variant that the revision would have for it now.
	Now fleet.Variant
	// Bundle is what it has.
	Bundle fleet.Digest
}

// OutgrownBy are the clusters that can do something else than when a revision was chosen for them, as far as it is not known that it has
// the same for that.
func OutgrownBy(r store.Reader, ref fleet.ModuleRef, rev *storev1.RevisionRecord) (out []Outgrown) {
	if !rev.GetByCapabilities() {
		return nil
	}
	m, err := wire.ModuleFromProto(ModuleOfRevision(ref, rev))
	if err != nil {
		return nil
	}
	r = store.Untracked(r)
	bundles, known := bundlesOf(rev), map[string]bool{}
	renders := func(v fleet.Variant) bool {
		_, has := bundles[v.Key()]
		return has
	}
	for _, rec := range Clusters(r) {
		c := Cluster(rec)
		d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(c.Name, ref))
		if d.GetSync().GetRevision() != rev.GetRevision().GetNumber() || d.GetTombstone() != nil || len(d.GetCapabilities()) == 0 {
			continue
		}
		has := variantFor(r, ref, rev, m.Overrides, c, renders)
		x := Outgrown{Now: fleet.Variant{Overrides: has.Overrides, Capabilities: capabilities(r, c.Name)}, Bundle: Digest(d.GetSync().GetBundle())}
		if was, there := bundles[has.Key()]; !there || was != x.Bundle { // other labels are on their way to it
			continue
		}
		if x.Now.Capabilities.IsZero() || x.Now.Capabilities == has.Capabilities {
			continue
		}
		key := x.Now.Key() + " " + x.Bundle.String()
		if now, there := bundles[x.Now.Key()]; there && now == x.Bundle || known[key] {
			continue
		}
		known[key] = true
		out = append(out, x)
	}
	return out
}

// bundlesOf are the bundles of a revision by the keys of what they are for: of many clusters each may be for its own.
func bundlesOf(rev *storev1.RevisionRecord) map[string]fleet.Digest {
	out := map[string]fleet.Digest{}
	for _, v := range Variants(rev) {
		if v.GetProblem() != "" {
			continue
		}
		for _, form := range FormsOf(v) {
			out[form.Key()] = Digest(v.GetBundle())
		}
	}
	return out
}

// FormsOf are the variants that a part of a revision is for: one, or one for each of the capabilities.
func FormsOf(v *storev1.VariantRecord) (out []fleet.Variant) {
	if len(v.GetCapabilities()) == 0 {
		return []fleet.Variant{{Overrides: v.GetOverrides()}}
	}
	for _, sum := range v.GetCapabilities() {
		out = append(out, fleet.Variant{Overrides: v.GetOverrides(), Capabilities: Digest(sum.GetDigest())})
	}
	return out
}

// isFor reports that a part of a revision is for a variant.
func isFor(x *storev1.VariantRecord, v fleet.Variant) bool {
	if !slices.Equal(x.GetOverrides(), v.Overrides) {
		return false
	}
	if len(x.GetCapabilities()) == 0 {
		return v.Capabilities.IsZero()
	}
	return slices.ContainsFunc(x.GetCapabilities(), func(s *storev1.CapabilitiesSum) bool { return Digest(s.GetDigest()) == v.Capabilities })
}

// CapabilitiesShown are capabilities as people see them, each once.
func CapabilitiesShown(sums []*storev1.CapabilitiesSum) (out []*towlinev1.Capabilities) {
	for _, s := range sums {
		if !slices.ContainsFunc(out, func(x *towlinev1.Capabilities) bool {
			return x.GetKubernetesVersion() == s.GetKubernetesVersion() && x.GetApis() == s.GetApis()
		}) {
			out = append(out, &towlinev1.Capabilities{KubernetesVersion: s.GetKubernetesVersion(), Apis: s.GetApis()})
		}
	}
	slices.SortFunc(out, func(a, b *towlinev1.Capabilities) int {
		return cmp.Or(strings.Compare(a.GetKubernetesVersion(), b.GetKubernetesVersion()), cmp.Compare(a.GetApis(), b.GetApis()))
	})
	return out
}
