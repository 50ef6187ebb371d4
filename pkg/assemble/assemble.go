// Package assemble turns a revision and a cluster into the sync that the cluster gets, and all syncs of a cluster into
// its assemblage with one digest. It is pure: the same inputs give the same bytes. It must not know where the inputs
// are stored or how the result travels.
package assemble

import (
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// Limits of the values of a sync: what goes over one of them could be assigned, but no agent would take it.
const (
	MaxValues     = 512
	MaxValueBytes = 64 << 10
)

// Values evaluates bindings for a cluster, but for those that its agent evaluates (Late). A binding may refer to others of the same list as
// ${NAME}, at any depth. A binding without a value or default, or one that refers to itself, is an error that names it: never an empty string.
func Values(bindings []fleet.Binding, cluster fleet.Cluster) (map[string]string, error) {
	if len(bindings) == 0 {
		return nil, nil
	}
	e := evaluator{cluster: cluster, byName: make(map[string]fleet.Binding, len(bindings)), done: make(map[string]string, len(bindings))}
	for _, b := range bindings {
		e.byName[b.Name] = b
	}
	e.late = lateNames(bindings)
	for _, b := range bindings {
		if e.late[b.Name] {
			continue
		}
		if _, err := e.value(b.Name); err != nil {
			return nil, err
		}
	}
	return e.done, nil
}

type evaluator struct {
	cluster fleet.Cluster
	late    map[string]bool
	byName  map[string]fleet.Binding
	done    map[string]string
	path    []string
}

func (e *evaluator) value(name string) (string, error) {
	if v, ok := e.done[name]; ok {
		return v, nil
	}
	if slices.Contains(e.path, name) {
		return "", fleet.Invalidf("bindings", "%s refers to itself: %s", name, strings.Join(append(e.path, name), " → "))
	}
	e.path = append(e.path, name)
	defer func() { e.path = e.path[:len(e.path)-1] }()
	v, written, err := e.raw(e.byName[name])
	if written && err == nil {
		v, err = e.expand(name, v)
	}
	if err != nil {
		return "", err
	}
	if err := e.fits(e.byName[name], v); err != nil {
		return "", err
	}
	e.done[name] = v
	return v, nil
}

// raw is what a binding has before other values are put in. written says that it is a text of the module, which may refer to others: what an
// annotation of a cluster holds is somebody else's, and text.
func (e *evaluator) raw(b fleet.Binding) (raw string, written bool, err error) {
	switch {
	case b.Value != nil:
		return *b.Value, true, nil
	case b.Field == "metadata.name":
		return string(e.cluster.Name), false, nil
	}
	from, kind, key := e.cluster.Labels, "label", b.Label
	if b.Annotation != "" {
		from, kind, key = e.cluster.Annotations, "annotation", b.Annotation
	}
	if v, ok := from[key]; ok && key != "" {
		if len(v) > MaxValueBytes {
			return "", false, e.tooLong(b.Name)
		}
		return v, false, nil
	}
	switch {
	case b.Default != nil:
		return *b.Default, true, nil
	case b.Optional:
		return "", false, nil
	}
	return "", false, fleet.Invalidf("bindings", "%s has no value in cluster %s: it has no %s %q; set the %s or a default", b.Name, e.cluster.Name, kind, key, kind)
}

// fits checks the type of a value. What is optional may be empty: then something else stands in for it.
func (e *evaluator) fits(b fleet.Binding, v string) error {
	if b.Optional && v == "" {
		return nil
	}
	if _, err := b.Type.Parse(v); err != nil {
		return fleet.Invalidf("bindings", "the value of %s in cluster %s %v", b.Name, e.cluster.Name, err)
	}
	return nil
}

// expand puts the values of declared names in; other ${…} is text. References multiply, so the length is bounded on the
// way.
func (e *evaluator) expand(of, s string) (string, error) {
	var failed error
	room := MaxValueBytes
	declared := func(name string) bool { _, is := e.byName[name]; return is }
	out := manifest.ExpandDeclared(s, declared, func(name string) (string, bool) {
		if !declared(name) || failed != nil || room < 0 {
			return "", false
		}
		if e.late[name] {
			failed = fleet.Invalidf("bindings", "%s refers to %s in cluster %s, which only the agent there can evaluate: use it in a value", of, name, e.cluster.Name)
			return "", false
		}
		var v string
		if v, failed = e.value(name); failed != nil {
			return "", false
		}
		room -= len(v)
		return v, room >= 0
	})
	if failed == nil && (room < 0 || len(out) > MaxValueBytes) {
		failed = e.tooLong(of)
	}
	return out, failed
}

func (e *evaluator) tooLong(name string) error {
	return fleet.Invalidf("bindings", "%s has more than %d bytes in cluster %s", name, MaxValueBytes, e.cluster.Name)
}

// Watched are the objects that a module only watches in a cluster, by the identities that they have there. One that has no valid name
// by the values, or is another one of the list or of the module's own by them, is an error.
func Watched(list []fleet.WatchedObject, own []fleet.BundleEntry, values map[string]string) ([]fleet.BundleEntry, error) {
	if len(list) == 0 {
		return nil, nil
	}
	seen := make(map[fleet.ObjectID]bool, len(own)+len(list))
	for _, e := range Resolved(own, values) {
		seen[e.ID] = true
	}
	out := make([]fleet.BundleEntry, len(list))
	for i, o := range list {
		e := o.Entry()
		id, err := manifest.ResolveID(e.ID, values)
		if err != nil {
			return nil, fleet.Join("watch", err)
		}
		if seen[id] {
			return nil, fleet.Invalidf("watch", "%s is among the module's own objects, or watched twice", id.Short())
		}
		seen[id], e.ID = true, id
		out[i] = e
	}
	return out, nil
}

// WatchedApart refuses a module that watches what is its own, as far as that does not depend on the cluster.
func WatchedApart(list []fleet.WatchedObject, own []fleet.BundleEntry) error {
	at := positions(own)
	for i, o := range list {
		if id := o.Entry().ID; !hasPlaceholder(id) {
			if _, listed := at(id); listed {
				return fleet.Invalidf(fmt.Sprintf("spec.watch[%d]", i), "%s is one of the module's own objects", id.Short())
			}
		}
	}
	return nil
}

// Selects reports whether the placement takes the cluster, its taints aside.
func Selects(p fleet.Placement, c fleet.Cluster) bool {
	return slices.Contains(p.Clusters, c.Name) || p.Selector.Matches(c.Labels)
}

// Places reports whether the module is to be in the cluster: the placement takes it, and the module is there already or the
// placement tolerates every taint. To name the cluster tolerates all of them.
func Places(p fleet.Placement, c fleet.Cluster, has bool) bool {
	return Selects(p, c) && (has || slices.Contains(p.Clusters, c.Name) || !slices.ContainsFunc(c.Taints, func(t fleet.Taint) bool { return !tolerates(p, t) }))
}

// MayLeave reports whether a module that is in a cluster may be taken from it: the placement and the cluster are known, and the
// one does not have the module in the other. What is not known never removes anything.
func MayLeave(p *fleet.Placement, c *fleet.Cluster) bool {
	return p != nil && c != nil && !Places(*p, *c, true)
}

func tolerates(p fleet.Placement, t fleet.Taint) bool {
	return slices.ContainsFunc(p.Tolerations, func(x fleet.Toleration) bool {
		return (x.Key == "" || x.Key == t.Key) && (x.Value == nil || *x.Value == t.Value)
	})
}

// Build makes the assemblage of a cluster: sorted, with the highest generation and the digest. floor is the lowest
// generation it may have, so that forgetting a confirmed tombstone does not lower it.
func Build(syncs []fleet.Sync, tombstones []fleet.Tombstone, hold bool, floor uint64) fleet.Assemblage {
	a := fleet.Assemblage{Generation: floor, Syncs: syncs, Tombstones: tombstones, Hold: hold}
	slices.SortFunc(a.Syncs, func(x, y fleet.Sync) int { return compareRef(x.Module, y.Module) })
	slices.SortFunc(a.Tombstones, func(x, y fleet.Tombstone) int { return compareRef(x.Module, y.Module) })
	for _, s := range a.Syncs {
		a.Generation = max(a.Generation, s.Generation)
	}
	for _, t := range a.Tombstones {
		a.Generation = max(a.Generation, t.Generation)
	}
	a.Digest = Digest(a)
	return a
}

// Listed is an assemblage whose syncs and tombstones are shared with others, so that one that differs from another in a few
// costs little.
type Listed struct {
	Generation uint64
	Digest     fleet.Digest
	Syncs      []*fleet.Sync
	Tombstones []*fleet.Tombstone
	Hold       bool
}

// compareRef orders as the names in full do, project/name.
func compareRef(a, b fleet.ModuleRef) int {
	if a.Project == b.Project {
		return strings.Compare(a.Name, b.Name)
	}
	return strings.Compare(a.String(), b.String())
}
