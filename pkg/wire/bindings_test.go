package wire

import (
	"fmt"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
)

// What a module may say must be no more than what an agent takes: else one module stops the sessions of all.
func TestBindingsAreWithinWhatAgentsTake(t *testing.T) {
	long := strings.Repeat("x", assemble.MaxValueBytes+1)
	many := make([]*towlinev1.Binding, assemble.MaxValues+1)
	for i := range many {
		v := "x"
		many[i] = &towlinev1.Binding{Name: fmt.Sprintf("A%d", i), Value: &v}
	}
	for says, in := range map[string][]*towlinev1.Binding{
		"CERT has 65537 bytes; at most 65536": {{Name: "CERT", Value: &long}},
		"ZONE has 65537 bytes; at most 65536": {{Name: "ZONE", ClusterLabel: "zone", Default: &long}},
		"513 are too many; at most 512":       many,
		"[0].name":                            {nil},
	} {
		if _, err := bindings(in, ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want one that says %q", err, says)
		}
	}
	if _, err := bindings(many[:assemble.MaxValues], ""); err != nil {
		t.Error(err)
	}
}

// TestBindingsAreChecked: what no cluster could have a value of is refused where it is written.
func TestBindingsAreChecked(t *testing.T) {
	text := func(s string) *string { return &s }
	region := &towlinev1.Binding{Name: "REGION", ClusterLabel: "region", Optional: true}
	for says, in := range map[string][]*towlinev1.Binding{
		"A: set exactly one of value, clusterField, clusterLabel, clusterAnnotation, object and secret": {{Name: "A", ClusterLabel: "a", ClusterAnnotation: "a"}},
		`[0].type: "Int" is unknown; use String, Integer, Number, Boolean`:                              {{Name: "A", Value: text("1"), Type: "Int"}},
		"[0].optional: A has a value in every cluster: remove optional":                                 {{Name: "A", Value: text("1"), Optional: true}},
		"[1].value: A: ${REGION}: the binding is optional":                                              {region, {Name: "A", Value: text("x ${REGION}")}},
		"[1].value: A: ${REGION:-…}: what stands in for a value is text, and cannot hold":               {region, {Name: "A", Value: text("${REGION:-${A}}")}},
		"[1].default: A: ${REGION}: the binding is optional":                                            {region, {Name: "A", ClusterLabel: "a", Default: text("${REGION}")}},
	} {
		if _, err := bindings(in, ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want one that says %q", err, says)
		}
	}
	got, err := bindings([]*towlinev1.Binding{region, {Name: "A", Value: text("${REGION:-eu} $${REGION}")}, {Name: "N", ClusterAnnotation: "n", Default: text("1"), Type: "Integer", Optional: true}}, "")
	if err != nil || got[2].Type != "Integer" || got[2].Annotation != "n" {
		t.Errorf("%v, %v", got, err)
	}
	if opts := (&Module{Bindings: got}).Placeholders(); len(opts.Optional) != 1 || opts.Optional[0] != "REGION" {
		t.Errorf("%v: one that has a default has a value everywhere", opts.Optional)
	}
}
