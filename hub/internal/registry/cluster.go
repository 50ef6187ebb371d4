package registry

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// Word is who wants a change of a cluster, and why.
type Word struct{ By, Reason string }

// ClusterPut is what came of the put of a cluster.
type ClusterPut struct {
	// Record is the cluster as it is then.
	Record *storev1.ClusterRecord
	// Created and Changed are false when all was so already.
	Created, Changed bool
	// Did is what of it is other than before, as a text; empty: it is new, or nothing is.
	Did string
	// Revision is that of the commit; 0: it was a dry run.
	Revision int64
}

// Wanted is the cluster that a put comes to: with what it does not say of the spec, and, as the apply of a file, with the labels and
// annotations that others have set.
func (r *Registry) Wanted(ctx context.Context, in *v1.Cluster, apply bool) (out *v1.Cluster, err error) {
	err = r.store.View(ctx, 0, func(rd store.Reader) error {
		rec, _, _ := store.Get[*storev1.ClusterRecord](store.Untracked(rd), store.ClusterKey(fleet.ClusterName(in.GetMetadata().GetName())))
		if out = proto.CloneOf(in); apply {
			out = merge(rec, in)
		}
		out.Spec = specOf(rec.GetCluster().GetSpec(), in.GetSpec())
		return nil
	})
	return out, err
}

// merge is what a file says, and of labels and annotations those besides that no file has said.
func merge(rec *storev1.ClusterRecord, in *v1.Cluster) *v1.Cluster {
	out, now := proto.CloneOf(in), rec.GetCluster().GetMetadata()
	if out.Metadata == nil {
		out.Metadata = &v1.Metadata{}
	}
	out.Metadata.Labels = besides(now.GetLabels(), rec.GetAppliedLabels(), out.GetMetadata().GetLabels())
	out.Metadata.Annotations = besides(now.GetAnnotations(), rec.GetAppliedAnnotations(), out.GetMetadata().GetAnnotations())
	return out
}

func besides(now map[string]string, applied []string, file map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range now {
		if !slices.Contains(applied, k) {
			out[k] = v
		}
	}
	maps.Copy(out, file)
	return out
}

// How says of the put of a cluster who wants it and why, whether it is what a file says, and whether it is only asked what would come of it.
type How struct {
	Word       Word
	Apply, Dry bool
}

// PutCluster creates a cluster, or changes its labels, annotations and spec. A dry run commits nothing.
func (r *Registry) PutCluster(ctx context.Context, in *v1.Cluster, how How) (ClusterPut, error) {
	var put ClusterPut
	uid, now := newUID(), timestamppb.New(r.now())
	word, dry := how.Word, how.Dry
	fn := func(w store.Writer) (err error) {
		if how.Apply {
			put, err = applyCluster(w, in, &v1.Metadata{Uid: uid, CreationTimestamp: now, ChangedBy: word.By, ChangeReason: word.Reason})
			return err
		}
		put, err = putCluster(w, in, &v1.Metadata{Uid: uid, CreationTimestamp: now, ChangedBy: word.By, ChangeReason: word.Reason})
		return err
	}
	if dry {
		err := r.store.View(ctx, 0, func(rd store.Reader) error { return fn(store.Dry(rd)) })
		return put, err
	}
	rev, err := r.store.Update(ctx, fn)
	put.Revision = rev
	return put, err
}

// applyCluster is putCluster of what a file says. What it said is remembered with the cluster.
func applyCluster(w store.Writer, file *v1.Cluster, meta *v1.Metadata) (ClusterPut, error) {
	key := store.ClusterKey(fleet.ClusterName(file.GetMetadata().GetName()))
	rec, _, _ := store.Get[*storev1.ClusterRecord](w, key)
	put, err := putCluster(w, merge(rec, file), meta)
	if err != nil {
		return put, err
	}
	labels, annotations := slices.Sorted(maps.Keys(file.GetMetadata().GetLabels())), slices.Sorted(maps.Keys(file.GetMetadata().GetAnnotations()))
	if slices.Equal(labels, put.Record.GetAppliedLabels()) && slices.Equal(annotations, put.Record.GetAppliedAnnotations()) {
		return put, nil
	}
	put.Record = proto.CloneOf(put.Record)
	put.Record.AppliedLabels, put.Record.AppliedAnnotations = labels, annotations
	w.Put(key, put.Record)
	return put, nil
}

// putCluster takes from meta who changes the cluster and why, and what a new one is given.
func putCluster(w store.Writer, in *v1.Cluster, meta *v1.Metadata) (ClusterPut, error) {
	name := fleet.ClusterName(in.GetMetadata().GetName())
	key := store.ClusterKey(name)
	if err := record.ReadableCluster(w, name); err != nil { // its labels are not all: the identity of its agent is lost, too
		return ClusterPut{}, err
	}
	old, _, exists := store.Get[*storev1.ClusterRecord](w, key)
	if exists && old.GetRemoving() != "" {
		return ClusterPut{}, fleet.Forbids(name.Object(), "cluster %s is being removed", name)
	}
	prev, spec := old.GetCluster().GetMetadata(), specOf(old.GetCluster().GetSpec(), in.GetSpec())
	if err := record.AsSeen(w, key, name.Object(), prev, in.GetMetadata()); err != nil {
		return ClusterPut{}, err
	}
	meta.Name, meta.Labels, meta.Annotations = in.GetMetadata().GetName(), in.GetMetadata().GetLabels(), in.GetMetadata().GetAnnotations()
	if exists && maps.Equal(prev.GetLabels(), meta.GetLabels()) && maps.Equal(prev.GetAnnotations(), meta.GetAnnotations()) && proto.Equal(old.GetCluster().GetSpec(), spec) {
		return ClusterPut{Record: old}, nil
	}
	next := &storev1.ClusterRecord{}
	if exists {
		next = proto.CloneOf(old)
		meta.Uid, meta.CreationTimestamp = prev.GetUid(), prev.GetCreationTimestamp()
	} else {
		w.Grows()
	}
	meta.Generation = prev.GetGeneration() + 1
	next.Cluster = &v1.Cluster{ApiVersion: fleet.APIVersion, Kind: "Cluster", Metadata: meta, Spec: spec}
	w.Put(key, next)
	return ClusterPut{Record: next, Created: !exists, Changed: true, Did: differs(old.GetCluster(), next.GetCluster())}, nil
}

// specOf is what a put wants of a cluster: of what it does not say, what is there.
func specOf(old, put *v1.ClusterSpec) *v1.ClusterSpec {
	if put == nil && old != nil {
		return old
	}
	out := &v1.ClusterSpec{Taints: put.GetTaints()}
	if cordoned := put.GetCordoned() || (put == nil || put.Cordoned == nil) && old.GetCordoned(); cordoned {
		out.Cordoned = new(true)
	}
	return out
}

// Removal is how a cluster is to leave.
type Removal struct {
	// UID is the cluster's that is meant; empty: whichever has the name.
	UID string
	// Objects is what its agent is to do with what it has: keep or delete.
	Objects string
	// Force ends its identity at once: its agent is told nothing any more.
	Force bool
}

// RemoveCluster marks a cluster as one that leaves; the leader forgets it once its agent has said that it is through. told is
// false of one whose agent is not let in, and keeps its objects: of one that is locked until it is unlocked, of one that is revoked, by
// force too, or whose record cannot be read, for good. An agent that can be told nothing is not ordered to delete.
func (r *Registry) RemoveCluster(ctx context.Context, name fleet.ClusterName, q Removal, word Word) (revision int64, told bool, err error) {
	now := timestamppb.New(r.now())
	revision, err = r.store.Update(ctx, func(w store.Writer) error {
		told = store.DamageOf(w, store.ClusterKey(name)) == nil
		next, err := leaving(w, name, q, told, now)
		if err != nil {
			return err
		}
		next.Revoked = next.GetRevoked() || q.Force
		if err := undone(w, name, next, q.Objects); err != nil {
			return err
		}
		if next.Revoked && q.Objects != "keep" {
			return fleet.Forbids(name.Object(), "cluster %s: its agent is told nothing any more, so it deletes nothing; remove it with --objects=keep", name)
		}
		next.Removing, told = q.Objects, told && !next.Revoked && next.GetLock() == nil
		if next.Revoked {
			cutSession(w, name, now.AsTime())
		}
		meta := next.Cluster.Metadata
		meta.DeletionTimestamp, meta.ChangedBy, meta.ChangeReason = now, word.By, word.Reason
		w.Put(store.ClusterKey(name), next)
		return nil
	})
	return revision, told, err
}

// undone refuses a removal that would end what a person said of a module that is being deleted, before the agent has done it: an agent that
// leaves is told one word for all that it has. Nobody waits for one that is told nothing, or has been told to leave before.
func undone(r store.Reader, name fleet.ClusterName, next *storev1.ClusterRecord, objects string) error {
	if next.GetRevoked() || next.GetJoined() == nil || next.GetRemoving() == objects {
		return nil
	}
	against, would := fleet.DeleteDelete, "what it is to delete of that would stay there for good; wait until %s lists that no more, or see towline cluster remove: with --objects=delete all goes that modules have there, with --force it stays"
	if objects == fleet.LeaveDelete {
		against, would = fleet.DeleteOrphan, "what it is to leave of that might be deleted with the rest; wait until %s lists that no more, or have all stay: towline cluster remove with --objects=keep"
	}
	var first fleet.ModuleRef
	for ref, policy := range record.Undone(r, name) {
		if policy == against && (first == fleet.ModuleRef{} || ref.String() < first.String()) {
			first = ref
		}
	}
	if first == (fleet.ModuleRef{}) {
		return nil
	}
	return fleet.Forbids(name.Object(), "cluster %s: module %s is being deleted, and its agent has not done it yet: "+would, name, first.Display(),
		fmt.Sprintf("towline get trackers --cluster %s", name))
}

// leaving is the record of a cluster that is to leave, to be changed; of one that cannot be read a new one.
func leaving(r store.Reader, name fleet.ClusterName, q Removal, readable bool, now *timestamppb.Timestamp) (*storev1.ClusterRecord, error) {
	if readable {
		return meant(r, name, q.UID)
	}
	if err := fleet.SameUID(name.Object(), "", q.UID); err != nil {
		return nil, err
	}
	if q.Objects != "keep" {
		return nil, fleet.Forbids(name.Object(), "cluster %s: the hub's record of it is damaged, so its agent cannot be told to delete anything; remove it with --objects=keep", name)
	}
	return &storev1.ClusterRecord{Cluster: &v1.Cluster{ApiVersion: fleet.APIVersion, Kind: "Cluster", Spec: &v1.ClusterSpec{},
		Metadata: &v1.Metadata{Name: string(name), CreationTimestamp: now}}}, nil
}

func notFound(c fleet.ClusterName) error {
	return fleet.NotFound(c.Object(), "cluster %.63s not found", c)
}
