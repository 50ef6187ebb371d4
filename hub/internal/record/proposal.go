package record

import (
	"slices"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Proposal is what a put of a module would come to.
type Proposal struct {
	// Plan names it.
	Plan fleet.Digest
	// Variants are what it renders to for the clusters that are selected now; without overrides it is one.
	Variants []Proposed
	// Can is what the clusters that are selected now can do, where that makes a difference.
	Can map[fleet.ClusterName]fleet.Digest
}

// Proposed is a variant of a proposal.
type Proposed struct {
	Overrides []int32
	// Capabilities are those that it is for, where they make a difference.
	Capabilities []*storev1.CapabilitiesSum
	// Bundle and Policies are stored contents, Entries what the bundle lists.
	Bundle, Policies fleet.Digest
	Entries          []fleet.BundleEntry
	// Waits says that waves wait for each other.
	Waits bool
}

// Waves are those that wait for each other, ascending; none: there are not several that do.
func (p Proposal) Waves() (out []int32) {
	for _, v := range p.Variants {
		for _, e := range v.Entries {
			if v.Waits && !slices.Contains(out, e.Wave) {
				out = append(out, e.Wave)
			}
		}
	}
	if len(out) < 2 {
		return nil
	}
	slices.Sort(out)
	return out
}

// In is what a cluster would have. One that has come since, to a variant that nobody had, is an error.
func (p Proposal) In(m *wire.Module, c fleet.Cluster) (Proposed, error) {
	v := assemble.VariantOf(m.Overrides, c)
	v.Capabilities = p.Can[c.Name]
	i := slices.IndexFunc(p.Variants, func(x Proposed) bool {
		return isFor(&storev1.VariantRecord{Overrides: x.Overrides, Capabilities: x.Capabilities}, v)
	})
	if i < 0 {
		return Proposed{}, fleet.Errorf(fleet.ErrUnavailable, "cluster %s has come to %s just now, which is not rendered yet: ask again", c.Name, v)
	}
	return p.Variants[i], nil
}

// Objects is how many objects there are in a cluster; the most of a variant.
func (p Proposal) Objects() (n int) {
	for _, v := range p.Variants {
		n = max(n, len(v.Entries))
	}
	return n
}

// Plan names what a spec comes to with what its source renders to: two puts with the same one assign the same. rendered is the bundle, or
// the source where there are variants: which is up to the clusters.
func Plan(spec, rendered, policies fleet.Digest) fleet.Digest {
	return fleet.DigestOf(slices.Concat(spec.Bytes(), rendered.Bytes(), policies.Bytes()))
}

// PlanOf is the plan that a revision came of.
func PlanOf(rev *storev1.RevisionRecord, spec fleet.Digest) fleet.Digest {
	rendered := Digest(rev.GetBundle())
	if HasVariants(rev) {
		rendered = Digest(rev.GetArtifact())
	}
	return Plan(spec, rendered, Digest(rev.GetPolicies()))
}

// OtherPlan is why a put that is bound to a plan comes to nothing.
const OtherPlan = "what this comes to is not what it was for the plan any more: its spec, its source or its project's rules differ; nothing was changed; look at the difference again (towline diff)"
