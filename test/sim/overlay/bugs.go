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
	changes []change
}

// bugs are those that were seen to be found.
var bugs = []bug{
	{"a-hub-that-is-away-wants-nothing", []change{{"agent/internal/session/loop.go", "\tvar drain errDrain\n\tswitch {\n", `	if held := l.o.Desired.Held(); PLANTED {
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
	{"an-edit-by-hand-stays", []change{{"agent/internal/apply/record.go", "\tscaled := !replicasFree && r.ReplicasDiffer(v)\n",
		"\tif PLANTED {\n\t\treturn plan.MatchYes\n\t}\n\tscaled := !replicasFree && r.ReplicasDiffer(v)\n"}}},
}
