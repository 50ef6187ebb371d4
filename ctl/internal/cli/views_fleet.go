package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func revisionView(allProjects bool) view[*v1.Revision] {
	return view[*v1.Revision]{
		kind: "revision", name: metaName[*v1.Revision],
		table: func(a *app, items []*v1.Revision) *table.Table {
			t := &table.Table{Columns: columns(left("NAME", "MODULE", "REVISION"), right("OBJECTS", "CLUSTERS"), left("AGE", "BY"), prose("WHY"),
				wide("REF", "ARTIFACT", "BUNDLE"))}
			for _, r := range items {
				m := r.GetMetadata()
				why := strings.Join(slices.DeleteFunc([]string{m.GetChangeReason(), r.GetGoesBack()}, func(s string) bool { return s == "" }), "; ")
				t.Add(text(m.GetName()), text(r.GetModule()), text(revision(r.GetNumber())), num(r.GetObjects()), num(r.GetClusters()),
					text(a.since(m.GetCreationTimestamp())), text(orDash(m.GetChangedBy())), text(orDash(why)),
					text(orDash(r.GetResolvedRef())), text(orDash(r.GetArtifact())), text(orDash(bundleText(r))))
			}
			return withProject(allProjects, t, func(i int) string { return items[i].GetMetadata().GetProject() })
		},
	}
}

// bundleText is the bundle of a revision, or how many it has.
func bundleText(r *v1.Revision) string {
	if n := len(r.GetVariants()); n > 0 {
		return count(int32(n), "variant")
	}
	return r.GetBundle()
}

func rolloutView(allProjects bool) view[*v1.Rollout] {
	return view[*v1.Rollout]{
		kind: "rollout", name: (*v1.Rollout).GetId,
		table: func(a *app, items []*v1.Rollout) *table.Table {
			t := &table.Table{Columns: spare(columns(left("ROLLOUT", "REVISION", "STATE"), right("DONE", "FAILED", "DEFERRED"),
				left("STARTED", "TOOK", "BY"), prose("WHY")), "TOOK", "DEFERRED")}
			for _, r := range items {
				t.Add(a.rolloutRow(r)...)
			}
			return withProject(allProjects, t, func(i int) string { return items[i].GetMetadata().GetProject() })
		},
	}
}

func (a *app) rolloutRow(r *v1.Rollout) []table.Cell {
	s := r.GetStatus()
	started, took := "-", "-"
	if s.GetStarted() != nil {
		started = a.since(s.GetStarted()) + " ago"
		end := a.Now()
		if s.GetEnded() != nil {
			end = s.GetEnded().AsTime()
		}
		took = span(end.Sub(s.GetStarted().AsTime()))
	}
	return []table.Cell{
		colored(table.Cyan, r.GetId()), text(move(r.GetFromRevision(), r.GetRevision())), state(s.GetState()),
		text(fmt.Sprintf("%d/%d", s.GetSucceeded(), s.GetTotal())), bad(s.GetFailed()), graded(table.Grey, s.GetDeferred()),
		text(started), text(took), text(orDash(s.GetStartedBy())), text(orDash(s.GetStartReason())),
	}
}

var trackerView = view[*v1.Tracker]{
	kind: "tracker",
	name: func(t *v1.Tracker) string { return moduleName(t.GetProject(), t.GetModule()) + "@" + t.GetCluster() },
	table: func(a *app, items []*v1.Tracker) *table.Table {
		out := &table.Table{Columns: spare(columns(left("CLUSTER", "MODULE", "REV", "SYNC", "HEALTH"), right("OBJECTS", "HEALTHY", "DRIFT", "EXTRA"),
			left("SINCE"), prose("WHAT"), wide("REVISIONS", "GENERATION", "CORRECTIONS", "LAST HEARD")), "SINCE", "EXTRA", "OBJECTS")}
		for _, t := range items {
			health, healthy, drift := state(t.GetHealth()), num(t.GetHealthy()), graded(table.Yellow, t.GetDrifted())
			if t.GetLastHeard() != nil {
				health, healthy, drift = was(t.GetHealth(), t.GetWasHealth()), colored(table.Grey, "?"), colored(table.Grey, "?")
				if t.GetWasHealth() != "" {
					healthy = colored(table.Grey, fmt.Sprintf("? (was %d)", t.GetWasHealthy()))
				}
			}
			what := cmp.Or(a.trackerSays(t), t.GetReason())
			out.Add(text(t.GetCluster()), text(moduleName(t.GetProject(), t.GetModule())), text(revision(t.GetRevision())), state(t.GetSync()),
				health, num(t.GetObjects()), healthy, drift, num(t.GetExtra()),
				text(a.since(t.GetSince())), text(orDash(what)),
				text(partsText(t)), text(fmt.Sprintf("%d/%d", t.GetObservedGeneration(), t.GetGeneration())), num(t.GetCorrections()), text(a.stamp(t.GetLastHeard())))
		}
		return out
	},
}

// was is a state of something that cannot be seen, and its last word.
func was(now, then string) table.Cell {
	if then == "" || then == now {
		return colored(table.Grey, now)
	}
	return colored(table.Grey, fmt.Sprintf("%s (was %s)", now, then))
}

// wasObject is the last word of an object that cannot be seen.
func wasObject(o *v1.Object) string {
	if o.GetWasHealth() == "" {
		return "-"
	}
	return strings.Join([]string{o.GetWasSync(), o.GetWasHealth(), o.GetWasDrift()}, ", ")
}

func objectView(drift bool) view[*v1.Object] {
	v := view[*v1.Object]{
		kind: "object",
		name: func(o *v1.Object) string {
			ref := o.GetObject()
			return fmt.Sprintf("%s/%s/%s/%s", o.GetCluster(), ref.GetKind(), orDash(ref.GetNamespace()), ref.GetName())
		},
		table: objectTable,
	}
	if drift {
		v.table = driftTable
	}
	return v
}

func objectTable(a *app, items []*v1.Object) *table.Table {
	t := &table.Table{Columns: spare(columns(left("CLUSTER", "MODULE", "OBJECT", "REV", "SYNC", "HEALTH", "DRIFT", "SINCE"), prose("WHAT"),
		wide("API VERSION", "REASON", "WAS", "LAST HEARD")), "SINCE", "REV", "DRIFT")}
	for _, o := range items {
		rev := revision(o.GetRevision())
		if o.GetExtra() {
			rev = "older"
		}
		t.Add(text(o.GetCluster()), text(moduleName(o.GetProject(), o.GetModule())), text(objectText(o.GetObject())), text(rev),
			syncCell(o), objectHealth(o), driftCell(o), text(a.since(o.GetSince())), text(orDash(a.objectSays(o))),
			text(o.GetObject().GetApiVersion()), text(orDash(o.GetReason())), text(wasObject(o)), text(a.stamp(o.GetLastHeard())))
	}
	return t
}

// syncCell says of what a module only watches that it does, rather than that it is as the module says.
func syncCell(o *v1.Object) table.Cell {
	if o.GetWatched() && fleet.SyncState(o.GetSync()) == fleet.SyncSynced {
		return text("Watched")
	}
	return state(o.GetSync())
}

func driftCell(o *v1.Object) table.Cell {
	if fleet.Drift(o.GetDrift()) == fleet.DriftInSync {
		return text(o.GetDrift())
	}
	return state(o.GetDrift())
}

func driftTable(a *app, items []*v1.Object) *table.Table {
	t := &table.Table{Columns: columns(left("CLUSTER", "MODULE", "OBJECT", "DRIFT", "FIELD", "WANT", "LIVE", "CHANGED BY", "SINCE"), right("SEEN"), left("NOW"), wide("FIRST CHANGED", "LAST CHANGED", "API VERSION", "REASON"))}
	for _, o := range items {
		t.Add(text(o.GetCluster()), text(moduleName(o.GetProject(), o.GetModule())), text(objectText(o.GetObject())), driftCell(o),
			text(orDash(o.GetField())), text(orDash(o.GetWant())), text(orDash(o.GetLive())), text(orDash(o.GetChangedBy())), text(a.clockAs(o.GetSince(), "15:04")), num(o.GetSeen()), text(orDash(driftSays(o))),
			text(a.stamp(o.GetFirstChanged())), text(a.stamp(o.GetLastChanged())), text(o.GetObject().GetApiVersion()), text(orDash(o.GetReason())))
	}
	return t
}
