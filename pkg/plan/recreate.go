package plan

import (
	"fmt"

	"towline.dev/towline/pkg/fleet"
)

// Recreation is what Recreate needs about an object whose desired fields the API server does not let change in place.
type Recreation struct {
	// Policies are those of the sync, Policy what they come to for the object.
	Policies []fleet.Policy
	Policy   fleet.Policy
	// Ours says that the live object is the one that we wrote.
	Ours bool
	// Elsewhere says that it carries the label of a hub for which another agent works.
	Elsewhere bool
	// Controller is the object that controls it and would make it again itself, as Kind name; empty: none does.
	Controller string
	// ClaimsGo says that the object takes PersistentVolumeClaims along when it is deleted.
	ClaimsGo bool
	// Inside is what a Namespace holds, or what there is of the kind that a CRD defines: it would go, too.
	Inside []string
}

// Recreate says why an object must not be deleted to be made again, and what would allow it; empty: it may be.
func Recreate(id fleet.ObjectID, r Recreation) string {
	named := namesKind(r.Policies, id, func(p fleet.Policy) bool { return p.Recreate == fleet.RecreateIfImmutable })
	switch {
	case r.Elsewhere:
		return "the agent of another hub has it by now, so that it is not made again: take it out of one of the two modules"
	case !r.Ours:
		return "delete the object"
	case ofCluster(id):
		return "the cluster lives by it, so that it is not made again: list it as it is"
	case r.Policy.Recreate != fleet.RecreateIfImmutable:
		return RecreateAdvice(id)
	case holdsMore(id) && !named:
		return "what it holds may be lost, so that only a policy which names the kind lets it be made again: " + naming(id)
	case r.ClaimsGo && !named:
		return "its claims would be deleted with it, so that only a policy which names the kind lets it be made again: " + naming(id)
	case r.Controller != "":
		return fmt.Sprintf("it is controlled by %s, which would make it again: change it there", r.Controller)
	case len(r.Inside) > 0:
		return "it is not made again, because these would go with it: " + Names(r.Inside)
	}
	return ""
}

// RecreateAdvice says what lets an object be made again that cannot be changed in place.
func RecreateAdvice(id fleet.ObjectID) string {
	if holdsMore(id) {
		return "delete the object, or set the policy " + naming(id)
	}
	return "set the policy recreate: IfImmutable, or delete the object"
}

func naming(id fleet.ObjectID) string {
	return fmt.Sprintf("{match: {kinds: [%s]}, recreate: %s}", id.Kind, fleet.RecreateIfImmutable)
}

// holdsMore reports that more than the object itself may be lost when one of its kind is deleted: of custom kinds only
// their controllers know, and with a Node go the pods that run on it.
func holdsMore(id fleet.ObjectID) bool {
	return sensitive(id) || isNode(id) || IsNamespace(id) || IsCRD(id) || IsCustom(id)
}
