package record

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
)

// TestLookingForAVariantMakesNothing: it is done for each cluster, of a revision that may be for as many capabilities as there are clusters.
func TestLookingForAVariantMakesNothing(t *testing.T) {
	v := &storev1.VariantRecord{}
	for i := range 1000 {
		d := fleet.DigestOf([]byte{byte(i), byte(i >> 8)})
		v.Capabilities = append(v.Capabilities, &storev1.CapabilitiesSum{Digest: d.Bytes()})
	}
	rev := &storev1.RevisionRecord{ByCapabilities: true, Variants: []*storev1.VariantRecord{v}}
	last := fleet.Variant{Capabilities: fleet.DigestOf([]byte{999 & 0xff, 999 >> 8})}
	if n := testing.AllocsPerRun(10, func() {
		if _, err := VariantIn(rev, last); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
