package plan

import (
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// Remember is a record that its sync does not list any more, with what the policies of the sync say of the object: a
// tombstone comes without them. Which labels the object has is not known here. Where they make a difference, what was
// noted stays if it is one of the answers, and else the answer counts that keeps the object. Where no policy says anything, or only some by
// labels, what was noted stays, too: the policy that keeps an object is dropped with it as often as not.
func Remember(policies []fleet.Policy, r Record) Record {
	always := plainly(policies, r.ID)
	policies = lasting(policies, r, nil)
	said := answers(policies, r.ID)
	// That all is kept which has some labels says nothing of one that was written without.
	kept := slices.ContainsFunc(said, fleet.Policy.KeepsLegacy)
	legacy := said[0].KeepsLegacy() || r.Legacy && (kept || always.KeepLegacy == nil) || r.Found && kept
	r.Prune = surest(r.Prune, said, func(p fleet.Policy) string { return p.Prune }, fleet.PruneNever, always.Prune)
	r.Delete = surest(r.Delete, said, func(p fleet.Policy) string { return p.Delete }, fleet.DeleteOrphan, always.Delete)
	r.Named, r.Legacy = Named(policies, r.ID), legacy
	return r
}

// answers are what the policies may say of an object: what they say of one without labels, then, for each that asks for labels, of one
// that has those alone, so that none speaks for another one, and of one that no policy asks for.
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
	if len(out) == 1 {
		return out
	}
	return append(out, effective(plain(policies), id, nil))
}

// askLabels reports that policies may say this or that of whether an object stays, and when it goes, as its labels are.
func askLabels(policies []fleet.Policy, r Record) bool {
	said := answers(withNoted(policies, r), r.ID)
	if r.Found { // what is noted of it is a guess
		said = append(said, answers(policies, r.ID)...)
	}
	return slices.ContainsFunc(said, func(p fleet.Policy) bool {
		return p.Prune != said[0].Prune || p.Delete != said[0].Delete || p.KeepsLegacy() != said[0].KeepsLegacy() || p.PruneWhen != said[0].PruneWhen
	})
}

// MayGoFirst reports that the policies of a sync have an object go before anything is applied, or do so if it has labels that they ask for.
func MayGoFirst(policies []fleet.Policy, id fleet.ObjectID) bool {
	return slices.ContainsFunc(answers(policies, id), func(p fleet.Policy) bool { return p.PruneWhen == fleet.PruneFirst })
}

// MayStay reports that the policies of a sync keep or leave an object that it does not list any more, or do so if it has labels that they
// ask for.
func MayStay(policies []fleet.Policy, r Record) bool {
	return slices.ContainsFunc(answers(withNoted(policies, r), r.ID), keepsOrLeaves)
}

// MayBeLeft reports that the policies leave such an object in the cluster without the module's marks, or do so if it has such labels.
func MayBeLeft(policies []fleet.Policy, r Record) bool {
	return slices.ContainsFunc(answers(withNoted(policies, r), r.ID), func(p fleet.Policy) bool { return p.Delete == fleet.DeleteOrphan })
}

// Stays reports that the policies of a sync keep or leave an object with these labels that it does not list any more.
func Stays(policies []fleet.Policy, r Record, labels map[string]string) bool {
	if labels == nil { // they were seen: it has none
		labels = map[string]string{}
	}
	return keepsOrLeaves(effective(lasting(policies, r, labels), r.ID, labels))
}

func keepsOrLeaves(p fleet.Policy) bool {
	return p.Prune != fleet.PruneOnUpdate || p.KeepsLegacy() || p.Delete == fleet.DeleteOrphan
}

// withNoted are policies with what was noted of an object, for where none of them says anything of it.
func withNoted(policies []fleet.Policy, r Record) []fleet.Policy {
	return append(slices.Clone(policies), fleet.Policy{Prune: r.Prune, Delete: r.Delete, KeepLegacy: new(r.Legacy)})
}

// lasting are the policies of a sync for an object that it does not list any more, with what was noted of it where none of them
// says anything of one with its labels, or whatever they are if they are not known (nil). What was noted of an object that was found
// again is a guess, which any policy undoes that may be for it.
func lasting(policies []fleet.Policy, r Record, labels map[string]string) []fleet.Policy {
	asked := policies
	if labels == nil || r.Found {
		asked = unlabelled(policies)
	}
	said := fleet.Said(asked, r.ID, labels)
	var noted fleet.Policy
	if said.Prune == "" {
		noted.Prune = r.Prune
	}
	if said.Delete == "" {
		noted.Delete = r.Delete
	}
	if said.KeepLegacy == nil && r.Legacy {
		noted.KeepLegacy = &r.Legacy
	}
	return append(slices.Clone(policies), noted)
}

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

// RememberLabels is a record of a module that goes, with what the policies of the module's last sync say by the labels that were seen on
// the object: somebody may have put one on it that keeps it. They keep more than was noted, never less.
func RememberLabels(policies []fleet.Policy, r Record, labels map[string]string) Record {
	with, without := effective(policies, r.ID, labels), effective(policies, r.ID, map[string]string{})
	if with.Prune == fleet.PruneNever && without.Prune != fleet.PruneNever {
		r.Prune = fleet.PruneNever
	}
	if with.Delete == fleet.DeleteOrphan && without.Delete != fleet.DeleteOrphan {
		r.Delete = fleet.DeleteOrphan
	}
	return r
}

// mayBeKeptBy reports that an object may have labels that RememberLabels would note.
func mayBeKeptBy(policies []fleet.Policy, id fleet.ObjectID) bool {
	without := effective(policies, id, map[string]string{})
	return slices.ContainsFunc(answers(policies, id), func(with fleet.Policy) bool {
		return with.Prune == fleet.PruneNever && without.Prune != fleet.PruneNever || with.Delete == fleet.DeleteOrphan && without.Delete != fleet.DeleteOrphan
	})
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
	p := effective(lasting(policies, r, labels), r.ID, labels)
	r.Prune, r.Delete, r.Legacy = p.Prune, p.Delete, p.KeepsLegacy()
	return r
}

// plainly is what policies say of an object whatever labels it has.
func plainly(policies []fleet.Policy, id fleet.ObjectID) fleet.Policy {
	return fleet.Said(plain(policies), id, nil)
}

// plain are the policies that ask for no labels.
func plain(policies []fleet.Policy) []fleet.Policy {
	return slices.DeleteFunc(slices.Clone(policies), func(p fleet.Policy) bool { return p.Match.Labels != nil })
}

// surest is the answer that counts; plain is the one whatever the labels are, or empty.
func surest(noted string, said []fleet.Policy, of func(fleet.Policy) string, keeps, plain string) string {
	is := func(word string) bool {
		return slices.ContainsFunc(said, func(p fleet.Policy) bool { return of(p) == word })
	}
	switch first := of(said[0]); {
	case noted == first, noted != "" && is(noted):
		return noted
	case is(keeps):
		return keeps
	case noted != "" && plain == "":
		return noted
	default:
		return first
	}
}
