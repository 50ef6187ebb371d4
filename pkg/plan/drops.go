package plan

import "towline.dev/towline/pkg/fleet"

// Drops reports that an object goes when its module comes to list it no more, by the policies of the module's sync.
func Drops(policies []fleet.Policy, id fleet.ObjectID, labels map[string]string) bool {
	p := effective(policies, id, labels)
	in := PruneInput{Policies: policies}
	return p.Prune == fleet.PruneOnUpdate && !p.KeepsLegacy() && !in.Releases(Record{ID: id})
}
