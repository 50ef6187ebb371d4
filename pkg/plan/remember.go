package plan

import (
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// Remember is a record that its sync does not list any more, with what the policies of the sync say of the object: a
// tombstone comes without them. Which labels the object has is not known here. Where they make a difference, what was
// noted stays if it is one of the answers, and else the answer counts that keeps the object. Where no policy says anything what was
// noted stays, too: the policy that keeps an object is dropped with it as often as not.
func Remember(policies []fleet.Policy, r Record) Record {
	policies = lasting(policies, r)
	said := answers(policies, r.ID)
	r.Prune = surest(r.Prune, said, func(p fleet.Policy) string { return p.Prune }, fleet.PruneNever)
	r.Delete = surest(r.Delete, said, func(p fleet.Policy) string { return p.Delete }, fleet.DeleteOrphan)
	r.Named, r.Legacy = Named(policies, r.ID), slices.ContainsFunc(said, fleet.Policy.KeepsLegacy)
	return r
}

// answers are what the policies may say of an object: what they say of one without labels, and then, for each that asks for labels, of one
// that has those alone, so that none speaks for another one.
func answers(policies []fleet.Policy, id fleet.ObjectID) []fleet.Policy {
	out := []fleet.Policy{effective(policies, id, nil)}
	for i := range policies {
		if policies[i].Match.Labels == nil {
			continue
		}
		var alone []fleet.Policy
		for j, p := range policies {
			if p.Match.Labels == nil || j == i {
				p.Match.Labels = nil
				alone = append(alone, p)
			}
		}
		out = append(out, effective(alone, id, nil))
	}
	return out
}

// MayStay reports that the policies of a sync keep or leave an object that it does not list any more, or do so if it has labels that they
// ask for.
func MayStay(policies []fleet.Policy, r Record) bool {
	return MayBeLeft(policies, r) || slices.ContainsFunc(answers(lasting(policies, r), r.ID), func(p fleet.Policy) bool {
		return p.Prune != fleet.PruneOnUpdate || p.KeepsLegacy()
	})
}

// MayBeLeft reports that the policies leave such an object in the cluster without the module's marks, or do so if it has such labels.
func MayBeLeft(policies []fleet.Policy, r Record) bool {
	return slices.ContainsFunc(answers(lasting(policies, r), r.ID), func(p fleet.Policy) bool { return p.Delete == fleet.DeleteOrphan })
}

// lasting are the policies of a sync for an object that it does not list any more, with what was noted of it where none of them
// says anything, whatever its labels are.
func lasting(policies []fleet.Policy, r Record) []fleet.Policy {
	probe := fleet.Policy{Prune: unsaid, Delete: unsaid, KeepLegacy: new(bool)}
	said := fleet.Resolve(append(unlabelled(policies), probe), r.ID, nil)
	var noted fleet.Policy
	if said.Prune == unsaid {
		noted.Prune = r.Prune
	}
	if said.Delete == unsaid {
		noted.Delete = r.Delete
	}
	if said.KeepLegacy == probe.KeepLegacy && r.Legacy {
		noted.KeepLegacy = &r.Legacy
	}
	return append(slices.Clone(policies), noted)
}

const unsaid = "unsaid"

// unlabelled are the policies as they are for an object that has all the labels that they ask for.
func unlabelled(policies []fleet.Policy) []fleet.Policy {
	out := slices.Clone(policies)
	for i := range out {
		out[i].Match.Labels = nil
	}
	return out
}

// RememberRead is a record of a module that goes, with what the policies of the module's last sync say of what is only read: the agent
// may not have had that sync before the tombstone came in its place.
func RememberRead(policies []fleet.Policy, r Record) Record {
	if slices.ContainsFunc(answers(policies, r.ID), fleet.Policy.Reads) {
		r.Delete = fleet.DeleteOrphan
	}
	return r
}

// effective is the policy for an object in what it comes to: what is only to be read is never deleted.
func effective(policies []fleet.Policy, id fleet.ObjectID, labels map[string]string) fleet.Policy {
	return Effective(fleet.Resolve(policies, id, labels))
}

// Effective is a resolved policy in what it comes to.
func Effective(p fleet.Policy) fleet.Policy {
	if p.Reads() {
		p.Delete = fleet.DeleteOrphan
	}
	return p
}

// RememberSeen is a record whose object stays by what the policies say of the labels that were seen on it.
func RememberSeen(policies []fleet.Policy, r Record, labels map[string]string) Record {
	p := effective(policies, r.ID, labels)
	r.Prune, r.Delete, r.Legacy = p.Prune, p.Delete, p.KeepsLegacy()
	return r
}

func surest(noted string, said []fleet.Policy, of func(fleet.Policy) string, keeps string) string {
	is := func(word string) bool {
		return slices.ContainsFunc(said, func(p fleet.Policy) bool { return of(p) == word })
	}
	switch first := of(said[0]); {
	case noted == first, noted != "" && is(noted):
		return noted
	case is(keeps):
		return keeps
	default:
		return first
	}
}
