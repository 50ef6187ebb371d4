package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// trackerNamed reads MODULE@CLUSTER.
func (a *app) trackerNamed(name string) (fleet.ModuleRef, string, error) {
	module, cluster, found := strings.Cut(name, "@")
	if !found || module == "" || cluster == "" {
		return fleet.ModuleRef{}, "", usagef("tracker %s: write MODULE@CLUSTER", name)
	}
	ref, err := a.moduleRef(module)
	return ref, cluster, err
}

func (a *app) tracker(ctx context.Context, c *client.Client, name string) (*v1.Tracker, error) {
	ref, cluster, err := a.trackerNamed(name)
	if err != nil {
		return nil, err
	}
	resp, err := c.Trackers.GetTracker(ctx, &v1.GetTrackerRequest{Project: ref.Project, Module: ref.Name, Cluster: cluster})
	return resp.GetTracker(), err
}

func trackerName(t *v1.Tracker) string {
	return moduleName(t.GetProject(), t.GetModule()) + "@" + t.GetCluster()
}

// describeTracker writes what a module has in a cluster: a line for each revision, and each object that the current one does not list.
func (a *app) describeTracker(ctx context.Context, c *client.Client, s *sheet, name string) error {
	t, err := a.tracker(ctx, c, name)
	if err != nil {
		return err
	}
	objects, _, err := a.objects(ctx, c, &v1.ObjectFilter{Project: t.GetProject(), Module: t.GetModule(), Cluster: t.GetCluster()})
	if err != nil {
		return err
	}
	s.line("Tracker", "%s", trackerName(t))
	s.line("Revision", "%s", revision(t.GetRevision()))
	s.line("Sync", "%s", t.GetSync())
	s.line("Health", "%s%s", was(t.GetHealth(), t.GetWasHealth()).Text, sinceText(a.clock(t.GetSince())))
	if says := cmp.Or(a.trackerSays(t), t.GetReason()); says != "" {
		s.line("What", "%s", says)
	}
	s.line("Generation", "%d, reported %d", t.GetGeneration(), t.GetObservedGeneration())
	if t.GetLastHeard() != nil {
		s.line("Last heard", "%s", a.clock(t.GetLastHeard()))
	}
	s.section("Trackers")
	s.table(a, partTable(t))
	s.lefts(a, objects)
	return nil
}

// partTable has a row for what lives as long as the module, and one for each revision.
func partTable(t *v1.Tracker) *table.Table {
	out := &table.Table{Columns: append(append(left("TRACKER"), right("OBJECTS")...), prose("WHAT")...)}
	root := int32(0)
	for _, p := range t.GetRevisions() {
		root += p.GetRoot()
	}
	if root > 0 {
		out.Add(text("root"), num(root), text("of those below: kept as long as the module, or longer"))
	}
	for _, p := range t.GetRevisions() {
		out.Add(text(partName(p)), num(p.GetObjects()), text(partSays(t, p)))
	}
	return out
}

func partName(p *v1.TrackerRevision) string {
	switch {
	case p.GetCurrent():
		return revision(p.GetRevision()) + " (current)"
	case p.GetRevision() == 0:
		return "unknown"
	}
	return revision(p.GetRevision())
}

// partSays is why a revision still has objects in the cluster, and what becomes of them.
func partSays(t *v1.Tracker, p *v1.TrackerRevision) string {
	var out []string
	switch n := count(p.GetLegacy(), "object"); {
	case p.GetLegacy() == 0:
	case p.GetOrdered():
		out = append(out, n+" to be deleted")
	default:
		out = append(out, fmt.Sprintf("%s kept until it is deleted: towline delete tracker %s --revision %d", n, trackerName(t), p.GetRevision()))
	}
	if p.GetLeaving() > 0 {
		says := fmt.Sprintf("%d to go: %s", p.GetLeaving(), p.GetReason())
		if p.GetReason() == fleet.TrackerReleasing {
			says = fmt.Sprintf("%d to stay, without our marks", p.GetLeaving())
		}
		if p.GetMessage() != "" {
			says += ", " + p.GetMessage()
		}
		out = append(out, says)
	}
	return orDash(strings.Join(out, "; "))
}

// lefts lists the objects that the current revision does not list.
func (s *sheet) lefts(a *app, objects []*v1.Object) {
	t := &table.Table{Columns: append(left("OBJECT", "TRACKER", "REASON"), prose("WHAT")...)}
	any := false
	for _, o := range objects {
		if o.GetExtra() {
			any = true
			t.Add(text(objectText(o.GetObject())), text(partName(&v1.TrackerRevision{Revision: o.GetRevision()})), text(orDash(o.GetReason())), text(orDash(a.objectSays(o))))
		}
	}
	if any {
		s.section("Not listed by the current revision")
		s.table(a, t)
	}
}

// partsText is such as "r3:12 r2:1".
func partsText(t *v1.Tracker) string {
	if len(t.GetRevisions()) == 0 {
		return fmt.Sprintf("%s:%d", revision(t.GetRevision()), t.GetObjects())
	}
	out := make([]string, len(t.GetRevisions()))
	for i, p := range t.GetRevisions() {
		name := revision(p.GetRevision())
		if p.GetRevision() == 0 {
			name = "?"
		}
		out[i] = fmt.Sprintf("%s:%d", name, p.GetObjects())
	}
	return strings.Join(out, " ")
}

// deleteTracker deletes what keepLegacy keeps of a revision in a cluster, once somebody has read what that is.
func (a *app) deleteTracker(ctx context.Context, c *client.Client, o *deleteOptions, name string) error {
	number, err := strconv.ParseInt(strings.TrimPrefix(o.revision, "r"), 10, 64)
	if err != nil || number < 0 {
		return usagef("delete tracker %s: say which revision's: --revision r42, or 0 for what is of an unknown one; see: towline describe tracker %s", name, name)
	}
	ref, cluster, err := a.trackerNamed(name)
	if err != nil {
		return err
	}
	module, err := c.Modules.GetModule(ctx, &v1.GetModuleRequest{Project: ref.Project, Name: ref.Name})
	if err != nil {
		return err
	}
	to, err := a.cluster(ctx, cluster)
	if err != nil {
		return err
	}
	req := &v1.DeleteTrackerRequest{Project: ref.Project, Module: ref.Name, Cluster: cluster, Revision: number, Reason: o.reason,
		ModuleUid: module.GetModule().GetMetadata().GetUid(), ClusterUid: to.GetMetadata().GetUid()}
	what := fmt.Sprintf("delete tracker %s of %s", name, revision(number))
	err = a.askOf(o.yes, what, func() (string, error) {
		said, digest, err := a.legacyText(ctx, c, name, number)
		req.Digest = digest
		return said, err
	})
	if err != nil {
		return err
	}
	done, err := c.Trackers.DeleteTracker(ctx, req)
	if err != nil {
		return err
	}
	later := ""
	if t, err := a.tracker(ctx, c, name); err == nil && !t.GetConnected() {
		later = "; the cluster is away and does so when it is back"
	}
	a.printf("tracker/%s of %s: %s to be deleted%s\n", name, revision(number), count(done.GetObjects(), "object"), later)
	return nil
}

// maxShown is how many objects a question names.
const maxShown = 20

// legacyText says what the deletion of a revision's tracker deletes, and the digest that names just that.
func (a *app) legacyText(ctx context.Context, c *client.Client, name string, number int64) (said, digest string, err error) {
	t, err := a.tracker(ctx, c, name)
	if err != nil {
		return "", "", err
	}
	for _, p := range t.GetRevisions() {
		if p.GetRevision() == number && !p.GetCurrent() {
			digest = p.GetDigest()
		}
	}
	if digest == "" {
		return "", "", &exitError{exitFailed, fmt.Errorf("tracker %s: keepLegacy keeps nothing of %s there; see: towline describe tracker %s", name, revision(number), name)}
	}
	objects, _, err := a.objects(ctx, c, &v1.ObjectFilter{Project: t.GetProject(), Module: t.GetModule(), Cluster: t.GetCluster(), Reason: plan.ReasonLegacy})
	var names []string
	for _, o := range objects {
		if o.GetExtra() && o.GetRevision() == number {
			names = append(names, objectText(o.GetObject()))
		}
	}
	said = "deletes " + count(len(names), "object") + ": " + strings.Join(names[:min(len(names), maxShown)], ", ")
	if more := len(names) - maxShown; more > 0 {
		said += fmt.Sprintf(" and %d more", more)
	}
	return said, digest, err
}

// driftSays is what becomes of an object that drifts; the field, the values and the writer stand in columns of their own.
func driftSays(o *v1.Object) string {
	switch {
	case fleet.Drift(o.GetDrift()) == fleet.DriftHeld:
		return "held as it is"
	case o.GetReason() == fleet.ObjectTwoWriters:
		return "stopped: two writers"
	case o.GetReason() == fleet.ObjectLeftSo:
		return "left so by its policy"
	case o.GetReason() == fleet.ObjectDrifted:
		return "being corrected"
	case o.GetReason() == fleet.ObjectShared:
		return "shared, and as the module has it that writes it"
	}
	return o.GetMessage()
}
