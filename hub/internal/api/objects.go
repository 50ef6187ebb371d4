package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/counts"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// place is a module in a cluster.
type place struct {
	cluster fleet.ClusterName
	module  fleet.ModuleRef
}

// key begins the keys of the objects there.
func (p place) key() string {
	return string(p.cluster) + "\x00" + p.module.Project + "\x00" + p.module.Name + "\x00"
}

// behind is a key after all of those.
func (p place) behind() string { return p.key() + "\xff" }

// objectList lists objects in the order of clusters and modules. The sums say in which of these to look, so that it costs what
// is on the page; and how many there are, where every object counts.
type objectList struct {
	filter *towlinev1.ObjectFilter
	where  *condition
	all    bool // the filter takes every object of a module in a cluster
	named  bool // the filter takes objects by what a bundle says of them
	after  string
	pager  *pager[*towlinev1.Object]
	// fitting are the modules that may have what is named, sorted.
	fitting []fleet.ModuleRef

	places    []place // to list
	unsure    []place // to count
	corrected []place
	more      bool // there are places behind those to list
	total     int
	away      map[fleet.ClusterName]bool
}

// ListObjects reads one row for each object and cluster.
func (a *API) ListObjects(ctx context.Context, req *towlinev1.ListObjectsRequest) (*towlinev1.ListObjectsResponse, error) {
	after, err := tokenOf(req)
	if err != nil {
		return nil, err
	}
	where, err := a.conditionOf(req.GetFilter(), listedRows)
	if err != nil {
		return nil, err
	}
	l := &objectList{filter: req.GetFilter(), where: where, all: everything(req.GetFilter()), named: byIdentity(req.GetFilter()), after: after,
		pager: newPager[*towlinev1.Object](req), away: map[fleet.ClusterName]bool{}}
	resp := &towlinev1.ListObjectsResponse{}
	err = a.view(ctx, req.GetMinRevision(), func(r store.Reader) error {
		in, err := scopeOf(r, req.GetFilter())
		if err != nil {
			return err
		}
		// Contents are fetched when the sums are let go.
		if l.named {
			if l.fitting, err = a.fitting(ctx, req.GetFilter(), in); err != nil {
				return err
			}
		}
		if err := a.counts.Read(ctx, func(v *counts.View) error {
			l.choose(v, in)
			return nil
		}); err != nil {
			return err
		}
		resp.CorrectionsDay = a.correctionsOfDay(r, l.corrected)
		return a.fill(ctx, r, l)
	})
	resp.Objects, resp.NextPageToken, resp.Total, resp.Away = l.pager.rows, l.pager.next, totalOf(req, l.total), int32(len(l.away))
	return resp, err
}

// fitting are the modules that have an object of the kind, namespace and name anywhere, or may have: where all is listed in
// bundles, these say so for all clusters at once.
func (a *API) fitting(ctx context.Context, f *towlinev1.ObjectFilter, in scope) (out []fleet.ModuleRef, err error) {
	bundles := map[fleet.ModuleRef][]fleet.Digest{}
	err = a.counts.Read(ctx, func(v *counts.View) error {
		for _, ref := range v.Modules() {
			m, _ := v.Module(ref)
			switch {
			case !in.module(ref):
			case m.Unlisted > 0:
				bundles[ref] = nil
			default:
				bundles[ref] = m.Bundles()
			}
		}
		return nil
	})
	for ref, of := range bundles {
		if of == nil || slices.ContainsFunc(of, func(d fleet.Digest) bool { return a.mayList(ctx, d, f) }) {
			out = append(out, ref)
		}
	}
	slices.SortFunc(out, compareRefs)
	return out, err
}

// mayList reports that a bundle has an object of the kind, namespace and name, that its names are not known before a cluster's
// values are, or that it cannot be read: who lists its objects says why.
func (a *API) mayList(ctx context.Context, d fleet.Digest, f *towlinev1.ObjectFilter) bool {
	if d.IsZero() {
		return false
	}
	b, err := a.o.Bundles.Get(ctx, d)
	return err != nil || assemble.HasPlaceholders(b.Entries) ||
		slices.ContainsFunc(b.Entries, func(e fleet.BundleEntry) bool { return takes(f, e.ID, e.Version) })
}

func compareRefs(a, b fleet.ModuleRef) int {
	return cmp.Or(strings.Compare(a.Project, b.Project), strings.Compare(a.Name, b.Name))
}

// fits reports that a module may have what is named.
func (l *objectList) fits(ref fleet.ModuleRef) bool {
	_, found := slices.BinarySearchFunc(l.fitting, ref, compareRefs)
	return found
}

// choose says where to look.
func (l *objectList) choose(v *counts.View, in scope) {
	room := l.pager.limit
	for _, c := range v.Clusters() {
		sum := v.Cluster(c)
		if !in.cluster(c) {
			continue
		}
		whole := l.all && in.everyModule() && sum.Unsure == 0 && sum.Corrected == 0
		if whole {
			l.total += sum.Rows
			if sum.Unseen > 0 {
				l.away[c] = true
			}
		}
		if whole && (room < 0 || string(c)+"\x01" <= l.after) || !whole && l.passes(sum) {
			l.more = l.more || room < 0 && sum.Rows > 0
			continue
		}
		refs := v.ModulesIn(c)
		if l.named && sum.Corrected == 0 && (!l.asksNow() || sum.Unseen == 0 && sum.Unsure == 0) {
			refs = l.fitting // nothing is asked of the others
		}
		for _, ref := range refs {
			if cell, has := v.Cell(c, ref); has && in.module(ref) {
				l.consider(place{c, ref}, cell, whole, &room)
			}
		}
	}
}

// consider takes a module in a cluster, or passes it over. counted says that its rows are in the total already, room how many
// rows more than a page are wanted.
func (l *objectList) consider(p place, cell counts.Cell, counted bool, room *int) {
	if cell.Corrected {
		l.corrected = append(l.corrected, p)
	}
	if !counted && (l.all || l.asksNow() && !cell.Seen) {
		l.count(p, cell)
	}
	switch {
	case !l.all && l.may(cell) && (!l.named || l.fits(p.module)):
		l.places = append(l.places, p)
	case !l.all:
	case p.behind() <= l.after:
	case *room < 0:
		l.more = l.more || cell.Rows > 0 || cell.Unsure
	default:
		l.places = append(l.places, p)
		if !cell.Unsure && p.key() > l.after { // of the one in which the page begins some are on the page before
			*room -= cell.Rows
		}
	}
}

// count takes the rows of a module in a cluster as they are summed, or has them counted. How objects of a cluster that is away are now is
// unknown, so a filter that asks for that counts the cluster, too.
func (l *objectList) count(p place, cell counts.Cell) {
	if cell.Unsure {
		l.unsure = append(l.unsure, p)
		return
	}
	if !cell.Seen && cell.Rows > 0 {
		l.away[p.cluster] = true
	}
	if l.all {
		l.total += cell.Rows
	}
}

// passes reports that no object of a cluster can match, and that nothing else is asked of it.
func (l *objectList) passes(sum counts.Cluster) bool {
	if l.all || sum.Extras > 0 || sum.Unseen > 0 || sum.Unsure > 0 || sum.Corrected > 0 || sum.Uncounted > 0 {
		return false
	}
	return l.drifting() && sum.Drifted == 0 || l.bad() && sum.Bad == 0
}

// may reports that objects of a module in a cluster may match.
func (l *objectList) may(cell counts.Cell) bool {
	switch {
	case l.filter.GetRevision() != 0 && l.filter.GetRevision() != cell.Revision && !cell.Extras:
		return false
	case cell.Extras || cell.Unsure || !cell.Seen || cell.Uncounted:
		return true
	}
	return !(l.drifting() && cell.Counts.Drifted == 0 || l.bad() && cell.Counts.Bad == 0)
}

// asksNow reports that the filter takes objects by how they are now, or may do so.
func (l *objectList) asksNow() bool {
	f := l.filter
	return f.GetDrift() != "" || f.GetHealth() != "" || f.GetReason() != "" || l.where != nil
}

// drifting reports that the filter takes only what drifts.
func (l *objectList) drifting() bool {
	d := l.filter.GetDrift()
	return d == "*" || slices.ContainsFunc(driftingNow, func(x fleet.Drift) bool { return strings.EqualFold(d, string(x)) })
}

// bad reports that the filter takes only what is bad.
func (l *objectList) bad() bool {
	h := l.filter.GetHealth()
	return strings.EqualFold(h, string(fleet.HealthDegraded)) || strings.EqualFold(h, string(fleet.HealthMissing))
}

// fill makes the rows.
func (a *API) fill(ctx context.Context, r store.Reader, l *objectList) error {
	at := a.visitor(r)
	for _, p := range l.unsure {
		found, err := a.objectsAt(ctx, at, p, &towlinev1.ObjectFilter{}, nil)
		if err != nil {
			return err
		}
		rows := len(found.lines) + found.unlisted
		if !found.seen && rows > 0 {
			l.away[p.cluster] = true
		}
		if l.all {
			l.total += rows
		}
	}
	for _, p := range l.places {
		if l.all && l.pager.full() {
			return nil
		}
		found, err := a.objectsAt(ctx, at, p, l.filter, l.where)
		if err != nil {
			return err
		}
		l.add(p, found)
	}
	if l.more && !l.pager.full() {
		l.pager.last = l.places[len(l.places)-1].behind()
		l.pager.end()
	}
	return nil
}

// add takes the rows of a place.
func (l *objectList) add(p place, found foundObjects) {
	if !l.all {
		l.total += len(found.lines)
		if !found.seen && len(found.lines) > 0 {
			l.away[p.cluster] = true
		}
	}
	for _, row := range found.lines {
		if row.key > l.after {
			l.pager.add(row.key, row.show())
		}
	}
}

// visitor returns what finds a module in a cluster. It is quick for many of one cluster after the other.
func (a *API) visitor(r store.Reader) func(place) (record.Tracked, bool) {
	var at *record.Place
	var last fleet.ClusterName
	return func(p place) (record.Tracked, bool) {
		if at == nil || p.cluster != last {
			at, last = record.At(r, p.cluster, a.o.Sessions.Connected(p.cluster)), p.cluster
		}
		return at.Track(p.module)
	}
}

// foundObjects are those of a module in a cluster that a filter takes, sorted.
type foundObjects struct {
	lines    []line[*towlinev1.Object]
	unlisted int // how many more there are, whose names nobody knows
	seen     bool
}

func (a *API) objectsAt(ctx context.Context, at func(place) (record.Tracked, bool), p place, f *towlinev1.ObjectFilter, where *condition) (foundObjects, error) {
	t, ok := at(p)
	if !ok {
		return foundObjects{}, nil
	}
	rows, err := a.objectsOf(ctx, f, where, []record.Tracked{t})
	if err != nil {
		return foundObjects{}, err
	}
	lines := shownAll(rows, objectKey)
	sortLines(lines)
	t.ListExtras()
	return foundObjects{lines, t.Unlisted(), t.Input.Seen()}, nil
}

func (a *API) correctionsOfDay(r store.Reader, places []place) (n int64) {
	now := a.now()
	for _, p := range places {
		o, _, _ := store.Get[*storev1.ObservedRecord](r, store.ObservedKey(p.cluster, p.module))
		n += record.CorrectionsOfDay(o, now)
	}
	return n
}
