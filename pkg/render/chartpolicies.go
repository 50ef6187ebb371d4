package render

import (
	"slices"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// chartRule is what a chart says of an object by an annotation, and the policy that has it so.
type chartRule struct {
	annotation string
	says       func(manifest.Object) bool
	policy     fleet.Policy
	text       string // the policy as people write it
}

// chartRules are those of ChartPolicies.
var chartRules = []chartRule{
	{manifest.KeepAnnotation + ": keep", func(o manifest.Object) bool { return o.Keep }, fleet.Policy{Prune: fleet.PruneNever}, "prune: Never"},
	{manifest.HookAnnotation + " of installing only", func(o manifest.Object) bool { return o.Once },
		fleet.Policy{ApplyOnce: &fleet.ApplyOnce{Paths: []string{fleet.OnceAll}}}, `applyOnce: {paths: ["*"]}`},
}

// ChartPolicies are the policies of a module with what its chart says of objects. By helm.sh/resource-policy: keep such an object is not
// deleted, neither when a revision drops it nor with the module; what is a hook of installing only is made, and not written again. A policy
// that says something of the same for it counts before that.
func ChartPolicies(policies []fleet.Policy, objects []manifest.Object) ([]fleet.Policy, error) {
	out := slices.Clip(policies)
	for _, rule := range chartRules {
		matches, err := rule.matches(policies, objects)
		if err != nil {
			return nil, err
		}
		for _, match := range matches {
			p := rule.policy
			p.Match = match
			out = append(out, p)
		}
	}
	return out, nil
}

// matches select the objects of which a chart says so, and no policy anything of the same.
func (rule chartRule) matches(policies []fleet.Policy, objects []manifest.Object) (out []fleet.PolicyMatch, err error) {
	type group struct{ group, kind, namespace string }
	at := map[group]int{}
	for _, o := range objects {
		if !rule.says(o) || rule.said(policies, o) {
			continue
		}
		if len(o.IdentityPlaceholders) > 0 {
			return nil, fleet.Invalidf(o.Place(), "%s has the annotation %s, which cannot be kept to where a placeholder is part of its name or namespace: say it by a policy, such as {match: {kinds: [%s]}, %s}",
				o.ID.Short(), rule.annotation, o.ID.Kind, rule.text)
		}
		g := group{o.ID.Group, o.ID.Kind, o.ID.Namespace}
		i, known := at[g]
		if !known {
			i = len(out)
			at[g] = i
			out = append(out, fleet.PolicyMatch{Groups: []string{g.group}, Kinds: []string{g.kind}, Namespaces: namespacesOf(o.ID)})
		}
		out[i].Names = append(out[i].Names, o.ID.Name)
	}
	return out, nil
}

// namespacesOf are those by which an object may go in a cluster; none: any.
func namespacesOf(id fleet.ObjectID) []string {
	if id.Namespace == "" {
		return nil
	}
	if _, known := manifest.Namespaced(id.Group, id.Kind); !known { // it may have no namespaces, so that its object goes by none in a cluster
		return []string{id.Namespace, ""}
	}
	return []string{id.Namespace}
}

// said reports that a policy says something of what the rule does for an object.
func (rule chartRule) said(policies []fleet.Policy, o manifest.Object) bool {
	return fleet.Said(policies, o.ID, o.Labels).Rules() == fleet.Said(append(slices.Clip(policies), rule.policy), o.ID, o.Labels).Rules()
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
