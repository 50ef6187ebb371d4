package assemble

import (
	"fmt"
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// MaxVariants is how many variants a module may have: each is rendered, and each is a bundle.
const MaxVariants = 100

// VariantOf is which of the overrides match the cluster. What the cluster can do is left open.
func VariantOf(overrides []fleet.Override, c fleet.Cluster) fleet.Variant {
	var out []int32
	for i := range overrides {
		if overrides[i].Selector.Matches(c.Labels) {
			out = append(out, int32(i))
		}
	}
	return fleet.Variant{Overrides: out}
}

// Variants are the distinct variants of the clusters, in order of their overrides; where there are no clusters it is that of none, so that
// what cannot be rendered at all is found. More than MaxVariants are an error.
func Variants(overrides []fleet.Override, clusters []fleet.Cluster) ([]fleet.Variant, error) {
	seen := map[string]bool{}
	var out []fleet.Variant
	for _, c := range clusters {
		if v := VariantOf(overrides, c); !seen[v.Key()] {
			seen[v.Key()] = true
			out = append(out, v)
		}
	}
	if len(out) > MaxVariants {
		return nil, fleet.Invalidf("overrides", "the selected clusters have %d variants, which is how many different sets of overrides match them; at most %d are rendered: merge overrides, or put what differs into bindings",
			len(out), MaxVariants)
	}
	if len(out) == 0 {
		out = append(out, fleet.Variant{})
	}
	slices.SortFunc(out, fleet.Variant.Compare)
	return out, nil
}

// Bounded refuses more than MaxVariants of what a chart renders to by what clusters can do.
func Bounded(bundles int) error {
	if bundles <= MaxVariants {
		return nil
	}
	return fleet.Invalidf("package.helm", "by what the selected clusters can do the chart comes to more than %d different bundles, and a revision has at most that many: "+declare, MaxVariants)
}

// TooManyAnswers refuses a chart of which clusters that can do different things are more than are rendered.
func TooManyAnswers(most int) error {
	return fleet.Invalidf("package.helm", "the selected clusters give more than %d different answers to what the chart asks of .Capabilities, and at most that many are rendered: "+declare, most)
}

// declare is what helps.
const declare = "set kubeVersion and apiVersions to what it is to see in all of them, or place it in fewer"

// Unmatched names the overrides that match none of the clusters and do not say that they may. Where there are no clusters nothing is misspelt.
func Unmatched(overrides []fleet.Override, clusters []fleet.Cluster) (names []string) {
	if len(clusters) == 0 {
		return nil
	}
	for i, o := range overrides {
		if !o.AllowEmpty && !slices.ContainsFunc(clusters, func(c fleet.Cluster) bool { return o.Selector.Matches(c.Labels) }) {
			names = append(names, fmt.Sprintf("overrides[%d]", i))
		}
	}
	return names
}
