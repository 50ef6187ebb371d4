package rollouts

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestAlike: revisions are alike where a cluster gets the same objects by both, whatever their numbers.
func TestAlike(t *testing.T) {
	literal := func(name, value string) *towlinev1.Binding { return &towlinev1.Binding{Name: name, Value: &value} }
	rev := func(bundle string, bindings ...*towlinev1.Binding) *storev1.RevisionRecord {
		return &storev1.RevisionRecord{Bundle: []byte(bundle), Revision: &towlinev1.Revision{Spec: &towlinev1.ModuleSpec{Bindings: bindings}}}
	}
	variants := func(bundles ...string) *storev1.RevisionRecord {
		r := rev("")
		for _, b := range bundles {
			r.Variants = append(r.Variants, &storev1.VariantRecord{Bundle: []byte(b)})
		}
		return r
	}
	for name, tc := range map[string]struct {
		a, b *storev1.RevisionRecord
		want bool
	}{
		"the same":                             {rev("a"), rev("a"), true},
		"another bundle":                       {rev("a"), rev("b"), false},
		"another literal":                      {rev("a", literal("TAG", "bad")), rev("a", literal("TAG", "good")), false},
		"a literal more":                       {rev("a"), rev("a", literal("TAG", "good")), false},
		"literals in another order":            {rev("a", literal("A", "1"), literal("B", "2")), rev("a", literal("B", "2"), literal("A", "1")), true},
		"variants in another order":            {variants("a", "b"), variants("b", "a"), true},
		"another variant":                      {variants("a", "b"), variants("a", "c"), false},
		"a variant that was rendered later":    {variants("a", "b"), variants("a", "b", "c"), true},
		"a variant that failed to render":      {variants("", "a"), variants("b", "a"), true},
		"a variant that failed in both":        {variants("", "a"), variants("", "a"), true},
		"nothing is rendered":                  {variants(""), variants(""), false},
		"an override that is for nobody there": {variants("a"), rev("a"), true},
		"one that is not there":                {rev("a"), nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if alike(tc.a, tc.b) != tc.want || alike(tc.b, tc.a) != tc.want {
				t.Errorf("alike: %v, other way round %v", alike(tc.a, tc.b), alike(tc.b, tc.a))
			}
		})
	}
}
