package plan

import "towline.dev/towline/pkg/fleet"

// Seen is what a live GET said.
type Seen struct {
	// Found is false if the server said NotFound.
	Found       bool
	UID         string
	Terminating bool
	Finalizers  []string
	Labels      map[string]string
	Annotations map[string]string
	// Listed are the keys of the labels and annotations that are noted for our manager.
	Listed map[string]bool
	Owners []OwnerReference
	// Appliers are the managers beside ours that apply all that ours does, the metadata aside, or that deploy it.
	Appliers []string
	Proof    Proof
}

// Verdict is what a live GET means for an object that is to go.
type Verdict int

// Verdicts.
const (
	// Gone: it is not there any more; forget it.
	Gone Verdict = iota
	// Leaving: it is being deleted; look again.
	Leaving
	// Foreign: it is not ours any more; forget it and touch nothing.
	Foreign
	// Delete it, with the UID and the version that were seen.
	Delete
	// Release it: with its labels known, a policy says that it stays; or somebody has taken it over, and answers for it.
	Release
	// Stay: with its labels known, a policy says that it stays ours.
	Stay
	// Another: the object of the record is gone, and the one in its place proves to be the module's, too. We made it, and did
	// not live to note that.
	Another
)

// ForeignText says why a live object is not the module's any more.
func ForeignText(s Seen, c Claimant, r Record) string {
	c = c.After(&r)
	of, _ := c.Mark(s.Annotations, r.ID)
	switch hub := s.Labels[fleet.HubLabel]; {
	case hub == "":
		return "somebody took the label " + fleet.HubLabel + " from it"
	case !c.Marked(s.Labels):
		return "its label " + fleet.HubLabel + " names another hub, " + hub
	case s.Annotations[fleet.OwnerAnnotation] == "":
		return "somebody took the annotation " + fleet.OwnerAnnotation + " from it"
	case !c.own(of):
		return "its annotation " + fleet.OwnerAnnotation + " names another owner"
	default:
		return "no field of it is ours any more"
	}
}

// Verify holds a record against the live object. A UID that was noted after a write of ours needs the marks of the module
// beside it; without one the object has to prove that we wrote it, and not a copy of it. No copy has the UID: where the API
// server does not say any more that a field is ours, because somebody took its managedFields away, the UID and marks that
// were written for this very object still do. What somebody has taken over is let go: an ExternalSecret has the Secret that it
// comes in place of, a Helm release what its chart lists.
func Verify(in PruneInput, r Record, s Seen, c Claimant) (Verdict, Rule) {
	c = c.After(&r)
	of, exact := c.Mark(s.Annotations, r.ID)
	wrote := s.Proof.Applied || exact && r.State == Owned && r.UID == s.UID && !r.Found
	switch {
	case s.Found && r.UID != "" && s.UID != r.UID && c.Proven(r.ID, s.Labels, s.Annotations, s.Proof):
		return Another, RuleIntentIsNotOwned
	case !s.Found, r.UID != "" && s.UID != r.UID:
		return Gone, RuleOwnershipLive
	case !c.own(of), !c.Marked(s.Labels), !wrote:
		return Foreign, RuleOwnershipLive
	case r.UID == "" && !c.Proven(r.ID, s.Labels, s.Annotations, s.Proof):
		return Foreign, RuleIntentIsNotOwned
	case s.Terminating:
		return Leaving, RuleOrder
	}
	p, _ := in.policy(r, s.Labels)
	switch {
	case in.reads(r.ID), p.Delete == fleet.DeleteOrphan, in.Tombstone && p.Prune == fleet.PruneNever:
		return Release, RuleProtection
	case in.Keeps(r, s.Labels):
		return Stay, RuleProtection
	case ofServer(r, s):
		return Release, RuleSensitiveKind
	case s.TakenBy(r) != "":
		return Release, RuleOwnershipLive
	}
	return Delete, RulePrecondition
}
