package render

import (
	"slices"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// Kept are the policies of a module with what its chart says by helm.sh/resource-policy: keep: such an object is not deleted, neither when
// a revision drops it nor with the module. A policy that says something of prune for it counts before that.
func Kept(policies []fleet.Policy, objects []manifest.Object) ([]fleet.Policy, error) {
	type group struct{ group, kind, namespace string }
	names := map[group][]string{}
	var order []group
	for _, o := range objects {
		if !o.Keep || saysPrune(policies, o) {
			continue
		}
		if len(o.IdentityPlaceholders) > 0 {
			return nil, fleet.Invalidf(o.Place(), "%s has the annotation %s: keep, which cannot be kept to where a placeholder is part of its name or namespace: say it by a policy, such as {match: {kinds: [%s]}, prune: Never}",
				o.ID.Short(), manifest.KeepAnnotation, o.ID.Kind)
		}
		g := group{o.ID.Group, o.ID.Kind, o.ID.Namespace}
		if names[g] == nil {
			order = append(order, g)
		}
		names[g] = append(names[g], o.ID.Name)
	}
	out := slices.Clip(policies)
	for _, g := range order {
		match := fleet.PolicyMatch{Groups: []string{g.group}, Kinds: []string{g.kind}, Names: names[g]}
		if g.namespace != "" {
			match.Namespaces = []string{g.namespace}
			if _, known := manifest.Namespaced(g.group, g.kind); !known { // it may have no namespaces, so that its object goes by none in a cluster
				match.Namespaces = append(match.Namespaces, "")
			}
		}
		out = append(out, fleet.Policy{Match: match, Prune: fleet.PruneNever})
	}
	return out, nil
}

// Uncounted are the objects that say by towline.dev/ready: ignore that their module is ready without them. Identities stand as in the bundle,
// with their placeholders.
func Uncounted(objects []manifest.Object) (out []fleet.PolicyMatch) {
	type group struct{ group, kind, namespace string }
	at := map[group]int{}
	for _, o := range objects {
		if !o.Uncounted {
			continue
		}
		g := group{o.ID.Group, o.ID.Kind, o.ID.Namespace}
		i, known := at[g]
		if !known {
			i = len(out)
			at[g] = i
			out = append(out, fleet.PolicyMatch{Groups: []string{g.group}, Kinds: []string{g.kind}, Namespaces: []string{g.namespace}})
		}
		out[i].Names = append(out[i].Names, o.ID.Name)
	}
	return out
}

// saysPrune reports that a policy says what becomes of an object that a revision drops.
func saysPrune(policies []fleet.Policy, o manifest.Object) bool {
	const unsaid = "unsaid"
	return fleet.Resolve(append(slices.Clip(policies), fleet.Policy{Prune: unsaid}), o.ID, o.Labels).Prune != unsaid
}
