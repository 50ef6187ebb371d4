package record

import (
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// Proposal is what a put of a module would come to.
type Proposal struct {
	// Plan names it.
	Plan fleet.Digest
	// Bundle and Policies are stored contents, Entries what the bundle lists.
	Bundle, Policies fleet.Digest
	Entries          []fleet.BundleEntry
	// Needs are features that agents must have.
	Needs []string
}

// Plan names what a spec comes to with what its source renders to: two puts with the same one assign the same.
func Plan(spec, bundle, policies fleet.Digest) fleet.Digest {
	return fleet.DigestOf(slices.Concat(spec.Bytes(), bundle.Bytes(), policies.Bytes()))
}

// OtherPlan is why a put that is bound to a plan comes to nothing.
const OtherPlan = "what this comes to is not what it was for the plan any more: its spec, its source or its project's rules differ; nothing was changed; look at the difference again (towline diff)"
