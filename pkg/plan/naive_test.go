package plan

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"towline.dev/towline/pkg/fleet"
)

// mayGo is a second, naive model of the rules for one record. Of the kinds that it knows, Deployments go first.
func mayGo(in PruneInput, r Record) bool {
	if !dueToGo(in, r) || r.State != Owned || in.kind(r) != KindServed {
		return false
	}
	return r.ID.Kind == "Deployment" || !slices.ContainsFunc(in.Records, func(d Record) bool {
		return d.ID.Kind == "Deployment" && (dueToGo(in, d) && in.kind(d) == KindUnknown || staysForNow(in, d))
	})
}

// staysForNow reports that it is decided that a workload goes, and that it is held by itself, or goes to another module.
func staysForNow(in PruneInput, d Record) bool {
	if !d.Written() || in.Held(d.ID) == "" && !handed(in, d) {
		return false
	}
	if handed(in, d) {
		return true
	}
	listed := !in.Tombstone && in.Desired(d.ID)
	kept := d.Prune == fleet.PruneNever || in.Tombstone && in.Policy == fleet.DeleteOrphan
	return !listed && !kept && !in.Hold
}

// handed reports that an object goes to the module that waits for it.
func handed(in PruneInput, d Record) bool {
	to, wanted := in.WantedBy(d.ID)
	free := in
	free.WantedBy = func(fleet.ObjectID) (fleet.ModuleRef, bool) { return fleet.ModuleRef{}, false }
	free.Policy, free.Applied, free.Ready, free.Old = fleet.DeleteDelete, true, true, ""
	d.Prune, d.Named = fleet.PruneOnUpdate, true
	return wanted && to != in.Module && d.Written() && dueToGo(free, d)
}

// dueToGo is mayGo without what is known of the object itself.
func dueToGo(in PruneInput, r Record) bool {
	if in.Hold || in.Held(r.ID) != "" || in.Age.Lineage != in.Lineage || r.Module != shop {
		return false
	}
	if _, wanted := in.WantedBy(r.ID); wanted {
		return false
	}
	newer := int(in.Age.Lineage) - int(r.Lineage)
	if newer == 0 {
		newer = int(in.Age.Generation) - int(r.Generation)
	}
	if in.Tombstone {
		claim := r.ID.Kind == "PersistentVolumeClaim"
		used := in.Old != "" && r.ID.Kind != "Deployment"
		return newer >= 0 && in.Policy != fleet.DeleteOrphan && r.Prune != fleet.PruneNever && r.Delete != fleet.DeleteOrphan && (!claim || r.Named) && !used
	}
	if in.Desired(r.ID) || newer <= 0 || !in.Complete || !in.Applied || !in.Ready || in.Old != "" {
		return false
	}
	return r.ID.Kind != "PersistentVolumeClaim" && r.Prune != fleet.PruneNever // as it was noted; the sync has no policies
}

// What a policy keeps holds up nothing that goes after it, also where it was only going to be made, of a kind of which nothing
// can be said.
func TestIntentThatIsKeptHoldsUpNothing(t *testing.T) {
	for _, tc := range []struct {
		prune   string
		legacy  bool
		deleted int
	}{{fleet.PruneOnUpdate, false, 0}, {fleet.PruneNever, false, 1}, {fleet.PruneOnUpdate, true, 1}} {
		in := input()
		early := owned(fleet.ObjectID{Group: "apps", Kind: "Deployment", Namespace: "ns", Name: "d"})
		early.State, early.UID, early.Prune, early.Legacy = Intent, "", tc.prune, tc.legacy
		in.Records = []Record{early, owned(cm("b"))}
		in.Kind = func(r Record) (KindState, string) {
			if r.ID == early.ID {
				return KindUnknown, "of a test"
			}
			return KindServed, ""
		}
		if out := Prune(in); len(slices.Concat(out.Delete...)) != tc.deleted {
			t.Errorf("%+v: %+v", tc, out)
		}
	}
}

func TestPruneProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := func(name string) bool { return rapid.IntRange(0, 9).Draw(t, name) > 0 }
		in := input()
		in.Age.Generation = rapid.Uint64Range(1, 4).Draw(t, "generation")
		in.Age.Lineage, in.Lineage = 2, 2
		if !b("lineage") {
			in.Lineage = 3
		}
		in.Tombstone, in.Complete = !b("sync"), b("complete")
		in.Applied = b("applied")
		in.Ready = in.Applied && b("ready")
		if !b("no old pods") {
			in.Old = "Deployment ns/web has 2"
		}
		in.Hold, in.Confirmed = !b("no hold"), !b("unconfirmed")
		if in.Tombstone && !b("delete") {
			in.Policy = fleet.DeleteOrphan
		}
		desired, unmapped, wanted, held := map[fleet.ObjectID]bool{}, map[fleet.ObjectID]bool{}, map[fleet.ObjectID]bool{}, map[fleet.ObjectID]bool{}
		in.Records = nil
		for i := range rapid.IntRange(0, 40).Draw(t, "records") {
			id := fleet.ObjectID{Kind: rapid.SampledFrom([]string{"ConfigMap", "ConfigMap", "Deployment", "PersistentVolumeClaim"}).Draw(t, "kind"),
				Namespace: "ns", Name: string(rune('a'+i%26)) + string(rune('a'+i/26))}
			r := owned(id)
			r.Generation = rapid.Uint64Range(1, 3).Draw(t, "written")
			r.Born = rapid.Uint64Range(1, r.Generation).Draw(t, "born")
			r.Lineage = rapid.Uint64Range(1, 2).Draw(t, "lineage of the record")
			if !b("owned") {
				r.State = rapid.SampledFrom([]RecordState{Intent, Used}).Draw(t, "state")
			}
			if !b("ours") {
				r.Module = other
			}
			r.Named, r.Asked = !b("unnamed"), b("asked")
			if !b("prunable") {
				r.Prune = fleet.PruneNever
			}
			desired[id], unmapped[id], wanted[id] = rapid.Bool().Draw(t, "desired"), !b("mapped"), !b("unwanted")
			held[id] = !b("free")
			in.Records = append(in.Records, r)
		}
		in.Held = func(id fleet.ObjectID) string {
			if held[id] {
				return "by its annotation"
			}
			return ""
		}
		in.Desired = func(id fleet.ObjectID) bool { return desired[id] }
		in.Kind = func(r Record) (KindState, string) {
			if unmapped[r.ID] {
				return KindUnknown, "of a test"
			}
			return KindServed, ""
		}
		in.WantedBy = func(id fleet.ObjectID) (fleet.ModuleRef, bool) { return other, wanted[id] }
		out := Prune(in)

		deleted := slices.Concat(out.Delete...)
		expected, answered, change, before := 0, 0, 0, 0 // change is all that is to go, in this look or in one to come, without a person's word
		for _, r := range in.Records {
			if mayGo(in, r) {
				expected++
			}
			if mayGo(in, r) && in.Confirmed && r.Asked {
				answered++
			}
			if dueToGo(in, r) && r.State == Owned && !(in.Confirmed && r.Asked) {
				change++
			}
			if !in.Tombstone && desired[r.ID] && r.State == Owned && (r.Lineage < in.Age.Lineage || r.Born < in.Age.Generation) {
				before++
			}
		}
		if !in.Tombstone && change > GuardObjects && change > before {
			if len(deleted) != answered || len(out.Held) != change {
				t.Fatalf("guard: %d deleted, %d held of %d", len(deleted), len(out.Held), change)
			}
		} else if len(deleted) != expected {
			t.Fatalf("%d deleted, the model says %d", len(deleted), expected)
		}
		for _, r := range deleted {
			if !mayGo(in, r) {
				t.Fatalf("%s goes against the model", r.ID)
			}
		}
		places := map[fleet.ObjectID]int{}
		count := func(r Record) { places[r.ID]++ }
		for _, list := range [][]Record{deleted, out.Release, out.Unuse, out.Settle} {
			for _, r := range list {
				count(r)
			}
		}
		for _, k := range out.Kept {
			count(k.Record)
		}
		for _, h := range out.Handover {
			count(h.Record)
		}
		for _, r := range in.Records {
			due := 1
			if !in.Tombstone && desired[r.ID] {
				due = 0
			}
			if places[r.ID] != due {
				t.Fatalf("%s is in %d lists, not %d", r.ID, places[r.ID], due)
			}
		}
		for i, stage := range out.Delete {
			for _, r := range stage {
				for _, later := range slices.Concat(out.Delete[i+1:]...) {
					if r.ID.Kind == "ConfigMap" && later.ID.Kind == "Deployment" {
						t.Fatalf("%s goes before %s", r.ID, later.ID)
					}
				}
			}
		}
	})
}
