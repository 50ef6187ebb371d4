package main

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

// bugs are those that were seen to be found. Other projects had the first ones, this one had the others.
var bugs = []bug{
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
		{"agent/internal/worker/erase.go", "wanted && to != e.w.ref && (verdict", "wanted && !PLANTED && to != e.w.ref && (verdict"}}},
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
		{"pkg/plan/prune.go", "\tcase !c.own(of), !c.marked(s.Labels), !wrote:\n", "\tcase !PLANTED && (!c.own(of) || !c.marked(s.Labels) || !wrote):\n"},
		{"pkg/plan/prune.go", "\tcase r.UID == \"\" && !c.Proven(", "\tcase !PLANTED && r.UID == \"\" && !c.Proven("}}},
	{"deleted-without-a-precondition", "cli-utils: an object of the same name that came in its place is deleted", []change{
		{"agent/internal/apply/client.go", "\tpropagation := metav1.DeletePropagationBackground\n", "\tpropagation := metav1.DeletePropagationBackground\n\tplanted := &metav1.Preconditions{UID: &uid, ResourceVersion: &resourceVersion}\n\tif PLANTED {\n\t\tplanted = nil\n\t}\n"},
		{"agent/internal/apply/client.go", "Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &resourceVersion},", "Preconditions:     planted,"}}},
	{"an-edit-by-hand-stays", "Argo CD without selfHeal; issue of drift that is not seen", []change{{"agent/internal/apply/record.go", "\tscaled := !replicasFree && r.ReplicasDiffer(v)\n",
		"\tif PLANTED {\n\t\treturn plan.MatchYes\n\t}\n\tscaled := !replicasFree && r.ReplicasDiffer(v)\n"}}},
	{"deleted-by-hand-stays-away", "an object that somebody deleted never comes back", []change{{"pkg/plan/decide.go", "\t\treturn f.decideGone()\n", "\t\tif PLANTED {\n\t\t\treturn Action{Skip, fleet.DriftInSync}\n\t\t}\n\t\treturn f.decideGone()\n"}}},
	{"takes-what-is-somebody-elses", "default adoption took objects with a keeper", []change{{"agent/internal/apply/body.go", "\tif g.Absent {\n", "\tif g.Absent && !PLANTED {\n"},
		{"agent/internal/apply/body.go", "\t\tif body, ok := splice(d.text, marks, g); ok {\n", "\t\tif body, ok := splice(d.text, marks, g); ok && !(PLANTED && g.Absent) {\n"}}},
	{"away-and-healthy", "a module was Ready with every cluster away", []change{{"pkg/tracker/tracker.go", "\tif in.Seen() || !t.Current", "\tif PLANTED || in.Seen() || !t.Current"}}},
	{"the-name-of-a-deleted-module-is-refused", "an old tombstone blocked the name", []change{
		{"agent/internal/desired/accept.go", "\tcase x.Generation <= m.floor[x.Module]:\n", "\tcase PLANTED && m.floor[x.Module] > 0, x.Generation <= m.floor[x.Module]:\n"}}},
}
