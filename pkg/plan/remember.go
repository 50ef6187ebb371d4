package plan

import (
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// Remember is a record that its sync does not list any more, with what the policies of the sync say of the object: a
// tombstone comes without them. Which labels the object has is not known here. Where they make a difference, what was
// noted stays if it is one of the answers, and else the answer counts that keeps the object.
func Remember(policies []fleet.Policy, r Record) Record {
	without, with := fleet.Resolve(policies, r.ID, nil), fleet.Resolve(unlabelled(policies), r.ID, nil)
	r.Prune = surest(r.Prune, without.Prune, with.Prune, fleet.PruneNever)
	r.Delete = surest(r.Delete, without.Delete, with.Delete, fleet.DeleteOrphan)
	r.Named = Named(policies, r.ID)
	return r
}

// unlabelled are the policies as they are for an object that has all the labels that they ask for.
func unlabelled(policies []fleet.Policy) []fleet.Policy {
	out := slices.Clone(policies)
	for i := range out {
		out[i].Match.Labels = nil
	}
	return out
}

// RememberSeen is a record whose object stays by what the policies say of the labels that were seen on it.
func RememberSeen(policies []fleet.Policy, r Record, labels map[string]string) Record {
	p := fleet.Resolve(policies, r.ID, labels)
	r.Prune, r.Delete = p.Prune, p.Delete
	return r
}

func surest(noted, a, b, keeps string) string {
	switch {
	case noted == a, noted == b && noted != "":
		return noted
	case a == keeps || b == keeps:
		return keeps
	}
	return a
}
