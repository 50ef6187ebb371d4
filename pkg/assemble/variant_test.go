package assemble_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

func labelled(name string, labels ...string) fleet.Cluster {
	c := fleet.Cluster{Name: fleet.ClusterName(name), Labels: map[string]string{}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		c.Labels[key] = value
	}
	return c
}

func matching(key, value string) fleet.Override {
	return fleet.Override{Selector: &fleet.Selector{MatchLabels: map[string]string{key: value}}}
}

// TestVariants: the overrides that match a cluster are its variant; clusters that the same ones match share it.
func TestVariants(t *testing.T) {
	overrides := []fleet.Override{matching("env", "prod"), matching("region", "eu"), {Selector: &fleet.Selector{}}}
	clusters := []fleet.Cluster{labelled("a", "env=prod", "region=eu"), labelled("b", "region=eu"), labelled("c"), labelled("d", "region=eu", "x=y"),
		labelled("e", "env=prod")}
	got, err := assemble.Variants(overrides, clusters)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(got); text != "[overrides[0] + overrides[1] + overrides[2] overrides[0] + overrides[2] overrides[1] + overrides[2] overrides[2]]" {
		t.Errorf("variants: %s", text)
	}
	if a, b := assemble.VariantOf(overrides, clusters[1]), assemble.VariantOf(overrides, clusters[3]); a.Key() != b.Key() || a.Key() != "1 2" {
		t.Errorf("%q and %q are the variants of clusters that the same overrides match", a.Key(), b.Key())
	}
	if none, err := assemble.Variants(overrides[:2], nil); err != nil || len(none) != 1 || none[0].Key() != "" {
		t.Errorf("without clusters: %v, %v", none, err)
	}
}

func TestTooManyVariants(t *testing.T) {
	var overrides []fleet.Override
	var clusters []fleet.Cluster
	for i := range 101 {
		overrides = append(overrides, matching("n", fmt.Sprint(i)))
		clusters = append(clusters, labelled(fmt.Sprint("c", i), fmt.Sprint("n=", i)))
	}
	if _, err := assemble.Variants(overrides, clusters[:100]); err != nil {
		t.Errorf("100 variants: %v", err)
	}
	if _, err := assemble.Variants(overrides, clusters); err == nil || !strings.Contains(err.Error(), "101 variants") {
		t.Errorf("101 variants: %v", err)
	}
}

func TestUnmatchedOverrides(t *testing.T) {
	quiet := matching("env", "nowhere")
	quiet.AllowEmpty = true
	overrides := []fleet.Override{matching("env", "prod"), matching("env", "prdo"), quiet}
	if got := assemble.Unmatched(overrides, []fleet.Cluster{labelled("a", "env=prod")}); !slices.Equal(got, []string{"overrides[1]"}) {
		t.Errorf("unmatched: %v", got)
	}
	if got := assemble.Unmatched(overrides, nil); got != nil {
		t.Errorf("unmatched, in no cluster: %v", got)
	}
}
