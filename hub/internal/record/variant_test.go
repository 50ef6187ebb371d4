package record

import (
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
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

// TestDamagedCapabilitiesAreNoLess: what a cluster can do cannot be read. The next revision comes to it as it did before the damage, and not as to
// one of which nothing was ever told, where a chart leaves out what it asks for.
func TestDamagedCapabilitiesAreNoLess(t *testing.T) {
	b := memory.New()
	st := storetest.On(t, b, engine.Options{StandIn: StandIn})
	ref, can := fleet.ModuleRef{Project: "default", Name: "mon"}, fleet.DigestOf([]byte("monitors"))
	if _, err := st.Update(t.Context(), func(w store.Writer) error {
		w.Put(store.CapabilityKey("a"), &storev1.CapabilitiesRecord{Epoch: 1, Sum: &storev1.CapabilitiesSum{Digest: can.Bytes()}})
		w.Put(store.DesiredKey("a", ref), &storev1.DesiredRecord{Capabilities: can.Bytes(), ChosenGeneration: 4, Sync: &agentv1.Sync{Module: ref.String(), Generation: 4, Revision: 1}})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	storetest.Damage(t, b, store.CapabilityKey("a"))
	if _, err := st.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	rev := &storev1.RevisionRecord{ByCapabilities: true, Revision: &towlinev1.Revision{Number: 2}}
	if err := st.View(t.Context(), 0, func(r store.Reader) error {
		for module, want := range map[fleet.ModuleRef]fleet.Digest{ref: can, {Project: "default", Name: "new"}: {}} {
			if v := VariantFor(r, module, rev, nil, fleet.Cluster{Name: "a"}); v.Capabilities != want {
				t.Errorf("%s: rendered for %s, want %s", module, v.Capabilities.Short(), want.Short())
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
