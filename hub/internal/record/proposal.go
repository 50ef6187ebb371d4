package record

import "towline.dev/towline/pkg/fleet"

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

// OtherPlan is why a put that is bound to a plan comes to nothing.
const OtherPlan = "the source is not what it was for the plan any more, so that nothing was changed; look at the difference again (towline diff)"
