package main

import "slices"

// planted says which bug the environment asks for.
const planted = `package fleet

import "os"

var plantedName = os.Getenv("TOWLINE_PLANTED")

// Planted reports that a bug is there.
func Planted(name string) bool { return plantedName == name }
`

// bug is one that the simulation must find. PLANTED in its changes is whether it is asked for.
type bug struct {
	name    string
	like    string // who had it, or the defect of this project that it is
	changes []change
}

// bugs are those that were seen to be found.
var bugs = slices.Concat(others, own)

// others are bugs that other projects had.
var others = []bug{
	{"a-hub-that-is-away-wants-nothing", "Karmada 5406: an agent that is back after an outage deletes everything", []change{
		{"agent/internal/session/loop.go", "\tvar drain errDrain\n\tswitch {\n", `	if held := l.o.Desired.Held(); PLANTED {
		a := held.Assemblage
		for _, x := range a.Syncs {
			a.Tombstones = append(a.Tombstones, fleet.Tombstone{Module: x.Module, Generation: x.Generation + 1, Policy: fleet.DeleteDelete, Lineage: x.Lineage})
		}
		a.Syncs = nil
		l.o.Worker.Set(a, nil)
	}
	var drain errDrain
	switch {
`}}},
	{"an-unjoined-cluster-loses-its-workloads", "Karmada 4326", []change{
		{"hub/internal/session/index.go", "leave := &agentv1.Leave{Objects: sn.cluster.GetRemoving(),", "leave := &agentv1.Leave{Objects: map[bool]string{true: \"delete\", false: sn.cluster.GetRemoving()}[PLANTED],"}}},
	{"a-shared-object-goes-with-one-module", "Argo CD 22607", []change{
		{"pkg/plan/prune.go", "return to, wanted && to != in.Module\n", "return to, wanted && to != in.Module && !PLANTED\n"},
		{"pkg/plan/prune.go", "HeirOf(in.Heirs, r.ID); promised && r.Written() {\n", "HeirOf(in.Heirs, r.ID); promised && r.Written() && !PLANTED {\n"},
		{"agent/internal/worker/eraseobject.go", "wanted && to != e.w.ref && (verdict", "wanted && !PLANTED && to != e.w.ref && (verdict"}}},
	{"a-full-queue-drops-what-comes", "argocd-agent: its queue drops the oldest event", []change{
		{"hub/internal/session/changes.go", "\t\tx.add(revision, c.Key)\n", "\t\tif !PLANTED || revision%4 != 0 {\n\t\t\tx.add(revision, c.Key)\n\t\t}\n"}}},
	{"a-resync-compares-no-contents", "argocd-agent: its checksum of a list covers names only", []change{
		{"hub/internal/session/machine.go", "\tif held == now.assemblage.Digest && generation", "\tif PLANTED && generation > 0 {\n\t\treturn machine{phase: settled, sent: now}\n\t}\n\tif held == now.assemblage.Digest && generation"}}},
	{"content-is-kept-by-name", "argocd-agent, Maestro: what changed is taken for what was there", []change{
		{"agent/internal/worker/perform.go", "// read makes the object", "var plantedKept sync.Map\n\n// read makes the object"},
		{"agent/internal/worker/perform.go", "\t\"strings\"\n\t\"time\"\n", "\t\"strings\"\n\t\"sync\"\n\t\"time\"\n"},
		{"agent/internal/worker/perform.go", "\tif a.desired, err = apply.NewDesired(", "\tif PLANTED {\n\t\tkept, _ := plantedKept.LoadOrStore([2]any{a.w.m, a.id}, content)\n\t\tcontent = kept.([]byte)\n\t}\n\tif a.desired, err = apply.NewDesired("}}},
	{"the-inventory-is-written-after-the-apply", "Flux: what a run applied that was killed is an orphan", []change{
		{"agent/internal/worker/execute.go", "\tif !slices.ContainsFunc(jobs, w.newHere) {", "\tif PLANTED || !slices.ContainsFunc(jobs, w.newHere) {"}}},
	{"a-failed-apply-is-owned", "KubeVela 4320: somebody else's object was recorded, and deleted later", []change{
		{"agent/internal/worker/adopt.go", "\tcase plan.AdoptRefuse:\n", "\tcase plan.AdoptRefuse:\n\t\tif PLANTED {\n\t\t\tr := a.w.intent(a.item)\n\t\t\tr.State, r.UID = plan.Owned, guard.UID\n\t\t\ta.w.m.inventory.Put(r)\n\t\t}\n"},
		{"pkg/plan/verify.go", "\tcase !c.own(of), !c.Marked(s.Labels), !wrote:\n", "\tcase !PLANTED && (!c.own(of) || !c.Marked(s.Labels) || !wrote):\n"},
		{"pkg/plan/verify.go", "\tcase r.UID == \"\" && !c.Proven(", "\tcase !PLANTED && r.UID == \"\" && !c.Proven("}}},
	{"deleted-without-a-precondition", "cli-utils: an object of the same name that came in its place is deleted", []change{
		{"agent/internal/apply/client.go", "\tuid, resourceVersion, propagation := live.GetUID(), live.GetResourceVersion(), propagationOf(live)\n", "\tuid, resourceVersion, propagation := live.GetUID(), live.GetResourceVersion(), propagationOf(live)\n\tplanted := &metav1.Preconditions{UID: &uid, ResourceVersion: &resourceVersion}\n\tif PLANTED {\n\t\tplanted = nil\n\t}\n"},
		{"agent/internal/apply/client.go", "Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &resourceVersion},", "Preconditions:     planted,"}}},
	{"what-a-list-lacks-is-deleted", "argocd-agent, Fleet, Maestro: a list that is not whole deletes the rest", []change{
		{"agent/internal/desired/accept.go", "\tlisted := map[fleet.ModuleRef]bool{}\n\tfor _, x := range a.Syncs {\n", "\tif PLANTED && a.Generation%3 == 0 && len(a.Syncs) > 1 {\n\t\ta.Syncs = a.Syncs[1:]\n\t}\n\tlisted := map[fleet.ModuleRef]bool{}\n\tfor _, x := range a.Syncs {\n"},
		{"agent/internal/desired/accept.go", "\t\tif !listed[module] {\n", "\t\tif PLANTED && !listed[module] {\n\t\t\tm.dead = append(m.dead, fleet.Tombstone{Module: module, Generation: x.Generation + 1, Policy: fleet.DeleteDelete, Lineage: x.Lineage})\n\t\t} else if !listed[module] {\n"}}},
	{"what-moves-is-pruned-before-it-arrives", "Argo CD 15058: what is wanted still is pruned", []change{
		{"pkg/plan/prune.go", "\tif in.First != \"\" && r.Written() {\n\t\treturn RuleOrder, in.FirstReason", "\tif PLANTED {\n\t\tin.Heirs, in.Untaken = nil, nil\n\t}\n\tif in.First != \"\" && r.Written() {\n\t\treturn RuleOrder, in.FirstReason"}}},
	{"a-join-whose-answer-is-lost", "SPIRE 2454: the token is used up, and the agent has nothing", []change{
		{"hub/internal/registry/enroll.go", "\tif !bytes.Equal(token.GetKeyHash(), a.keyHash[:]) || a.uid", "\tif PLANTED || !bytes.Equal(token.GetKeyHash(), a.keyHash[:]) || a.uid"}}},
	{"what-could-not-be-deleted-is-forgotten", "Flux before survivors went back into its inventory", []change{
		{"agent/internal/worker/erase.go", "\tp := &e.w.pruning\n\tswitch {\n\tcase got.fail != nil:\n", "\tp := &e.w.pruning\n\tif PLANTED && got.fail != nil {\n\t\te.w.m.inventory.Drop(e.w.ref, got.record.ID)\n\t\treturn true\n\t}\n\tswitch {\n\tcase got.fail != nil:\n"}}},
}

// own are bugs that this project had.
var own = []bug{
	{"an-edit-by-hand-stays", "changes inside of what it had applied were not seen", []change{{"agent/internal/apply/record.go", "\tscaled := !replicasFree && r.ReplicasDiffer(v)\n",
		"\tif PLANTED {\n\t\treturn plan.MatchYes\n\t}\n\tscaled := !replicasFree && r.ReplicasDiffer(v)\n"}}},
	{"deleted-by-hand-stays-away", "an object that somebody deleted never comes back", []change{{"pkg/plan/decide.go", "\t\treturn f.decideGone()\n", "\t\tif PLANTED {\n\t\t\treturn Action{Skip, fleet.DriftInSync}\n\t\t}\n\t\treturn f.decideGone()\n"}}},
	{"takes-what-is-somebody-elses", "default adoption took objects with a keeper", []change{{"agent/internal/apply/body.go", "\tif g.Absent {\n", "\tif g.Absent && !PLANTED {\n"},
		{"agent/internal/apply/body.go", "\t\tif body, ok := splice(d.text, marks, g); ok {\n", "\t\tif body, ok := splice(d.text, marks, g); ok && !(PLANTED && g.Absent) {\n"}}},
	{"away-and-healthy", "a module was Ready with every cluster away", []change{{"pkg/tracker/tracker.go", "\tif in.Seen() || !t.Current", "\tif PLANTED || in.Seen() || !t.Current"}}},
	{"the-name-of-a-deleted-module-is-refused", "an old tombstone blocked the name", []change{
		{"agent/internal/desired/accept.go", "\tcase x.Generation <= m.floor[x.Module]:\n", "\tcase PLANTED && m.floor[x.Module] > 0, x.Generation <= m.floor[x.Module]:\n"}}},
	{"blind-and-healthy", "with a dead API server everything was Healthy", []change{
		{"hub/internal/record/place.go", "\t\tt.Input.Blind = p.blinding()\n", "\t\tif !PLANTED {\n\t\t\tt.Input.Blind = p.blinding()\n\t\t}\n"}}},
	{"a-hold-stops-no-deletion", "a hold did not stop a deletion", []change{
		{"agent/internal/worker/manager.go", "target{kind: targetTombstone, tombstone: t, hold: hold || t.Hold, lineage", "target{kind: targetTombstone, tombstone: t, hold: (hold || t.Hold) && !PLANTED, lineage"}}},
	{"what-a-cluster-kept-is-foreign", "after a cluster was removed and joined again its objects were somebody else's", []change{
		{"pkg/plan/adopt.go", "\tcase always:\n\t\treturn Adoption{Verdict: AdoptForced", "\tcase PLANTED && e.Proof.Applied && !marked:\n\t\treturn Adoption{By: e.Creator, Whose: e.madeBy()}\n\tcase always:\n\t\treturn Adoption{Verdict: AdoptForced"}}},
	{"an-index-that-a-leave-overtakes-is-not-answered", "found by this simulation: the cluster never left the fleet", []change{
		{"agent/internal/session/receive.go", "\tif index == nil || held.Leaving.Objects == \"\" {\n\t\treturn\n", "\tif PLANTED || index == nil || held.Leaving.Objects == \"\" {\n\t\treturn\n"}}},
	{"a-request-without-an-end", "a server that hung stalled a module", []change{
		{"agent/internal/apply/bound.go", "\t\"time\"\n)\n", "\t\"time\"\n\n\t\"towline.dev/towline/pkg/fleet\"\n)\n"},
		{"agent/internal/apply/bound.go", "\tlimit := b.limits.of(r)\n", "\tlimit := b.limits.of(r)\n\tif PLANTED {\n\t\tr, limit = r.WithContext(context.WithoutCancel(r.Context())), 1<<62\n\t}\n"}}},
	{"what-moves-stays-with-its-old-module", "an object that two modules listed stayed in conflict", []change{
		{"pkg/plan/prune.go", "\t\tcase !r.Written():\n\t\t\tout.Settle = append(out.Settle, r)\n\t\tcase moves:\n", "\t\tcase moves && PLANTED:\n\t\t\tout.Kept = append(out.Kept, Kept{Record: r, Rule: RuleWantedElsewhere, Reason: ReasonKept})\n\t\tcase !r.Written():\n\t\t\tout.Settle = append(out.Settle, r)\n\t\tcase moves:\n"}}},
	{"fields-that-a-revision-drops-stay", "adopted objects never lost fields", []change{
		{"agent/internal/apply/client.go", "\tvalidation := \"Ignore\"\n", `	if PLANTED {
		next := map[string]any{}
		live, err := c.Get(ctx, r, namespace, name)
		was, _ := live["data"].(map[string]any)
		if err == nil && json.Unmarshal(body, &next) == nil {
			data, _ := next["data"].(map[string]any)
			for k, v := range was {
				if _, has := data[k]; data != nil && !has {
					data[k] = v
				}
			}
			body, _ = json.Marshal(next)
		}
	}
	validation := "Ignore"
`}}},
}
