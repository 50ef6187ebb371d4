package control

import (
	"context"
	"fmt"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

// backup is what the store had at a time, and what people had said by then.
type backup struct {
	records []backend.KV
	said    words
	removed map[string]map[fleet.ModuleRef]uint64
	left    map[string]bool
}

// recordsAt is where a backend has the records.
const recordsAt = "r/"

// restoring takes a backup, has the store be made from it again, or says what a person says of that.
func (w *interleaved) restoring(_ fleet.ModuleRef, name fleet.ClusterName) {
	what := w.tape.pick(6)
	switch {
	case w.backup == nil:
		w.backsUp()
	case what < 3 && w.depth == 1:
		w.restores()
	case what < 3:
		w.backsUp()
	case what == 5:
		w.call("resume the restore", func(ctx context.Context) error {
			_, err := w.api.ResumeRestore(ctx, &towlinev1.ResumeRestoreRequest{})
			return err
		})
	default:
		req := &towlinev1.AcceptRestoreRequest{}
		if what == 4 {
			req.Clusters = []string{string(name)}
		}
		w.accepts(req)
	}
}

func (w *interleaved) accepts(req *towlinev1.AcceptRestoreRequest) {
	w.call(fmt.Sprintf("accept the restore %v", req.GetClusters()), func(ctx context.Context) error {
		_, err := w.api.AcceptRestore(ctx, req)
		return err
	})
}

func (w *interleaved) backsUp() {
	w.note("backup")
	page, err := w.backend.Range(w.ctx, backend.RangeQuery{Prefix: recordsAt})
	w.must(err)
	w.backup = &backup{records: page.KVs, said: w.said.clone(), removed: map[string]map[fleet.ModuleRef]uint64{}, left: map[string]bool{}}
	for uid, k := range w.made {
		w.backup.removed[uid], w.backup.left[uid] = maps.Clone(k.removed), k.left
	}
}

// restores has all records be as in the backup, and a hub lead that knows nothing else, as the hub's program does that restores. The agents go on from where
// they are.
func (w *interleaved) restores() {
	w.note("restore")
	w.must(w.lead.Resign(w.ctx))
	w.lead = nil
	page, err := w.backend.Range(w.ctx, backend.RangeQuery{Prefix: recordsAt})
	w.must(err)
	ops := map[string]backend.Op{}
	for _, kv := range page.KVs {
		ops[kv.Key] = backend.Op{Key: kv.Key, Delete: true}
	}
	for _, kv := range w.backup.records {
		ops[kv.Key] = backend.Op{Key: kv.Key, Value: kv.Value}
	}
	var part backend.Part
	for _, op := range ops {
		if part.Then = append(part.Then, op); len(part.Then) == 100 {
			_, _, err = w.backend.Commit(w.ctx, []backend.Part{part})
			w.must(err)
			part = backend.Part{}
		}
	}
	_, _, err = w.backend.Commit(w.ctx, []backend.Part{part})
	w.must(err)
	w.look()
	w.restored++
	_, err = w.store.As(store.Hub).Update(context.Background(), func(x store.Writer) error {
		was, _, _ := store.Get[*storev1.Hub](x, store.HubKey)
		is := proto.CloneOf(was)
		is.Incarnation = fmt.Sprintf("i%d", w.restored)
		x.Put(store.HubKey, is)
		x.Put(store.RestoreKey, &storev1.Restore{Incarnation: was.GetIncarnation(), Generation: record.LastGeneration(x), At: timestamppb.New(time.Now()), Stands: true})
		return nil
	})
	w.must(err)
	w.said = w.backup.said.clone()
	for uid, k := range w.made {
		k.epoch, k.left = 0, w.backup.left[uid]
		if k.removed = maps.Clone(w.backup.removed[uid]); k.removed == nil {
			k.removed = map[fleet.ModuleRef]uint64{}
		}
	}
	w.look()
	w.serves()
}

// clone is what was said by now.
func (x words) clone() words {
	out := x
	out.given, out.deleted, out.asked = map[string]map[uint64]string{}, map[string]map[fleet.ClusterName]string{}, map[string]map[fleet.ClusterName]string{}
	for key, of := range x.given {
		out.given[key] = maps.Clone(of)
	}
	for key, of := range x.deleted {
		out.deleted[key] = maps.Clone(of)
	}
	for key, of := range x.asked {
		out.asked[key] = maps.Clone(of)
	}
	out.confirmed, out.ended, out.steps = maps.Clone(x.confirmed), maps.Clone(x.ended), maps.Clone(x.steps)
	return out
}

func hubOf(r store.Reader) *storev1.Hub {
	rec, _, _ := store.Get[*storev1.Hub](store.Untracked(r), store.HubKey)
	return rec
}

// welcomes reports that the agent goes by what the hub says, as its session finds out; else it is told nothing, or connects again.
func (w *interleaved) welcomes(k *kube) bool {
	is := hubOf(w.last).GetIncarnation()
	if k.incarnation == "" || k.incarnation == is {
		k.incarnation = is
		return clusterOf(w.last, k.name).GetRegressed() == ""
	}
	if why := w.ahead(k); why != "" {
		fence, err := w.registry.Regressed(w.ctx, k.name, k.opened, why)
		w.note("%s (%s) is ahead: %s: %v", k.name, k.uid, why, err)
		k.fence = fence
		return false
	}
	err := w.registry.Continued(w.ctx, k.name, k.opened)
	w.note("%s (%s) goes on with the restored store: %v", k.name, k.uid, err)
	if k.epoch = 0; err == nil {
		k.incarnation, k.generation = is, 0
	}
	w.ClusterChanged(k.name)
	return false
}

// ahead is why an agent that followed the store before does not go on with the restored one; empty: it does.
func (w *interleaved) ahead(k *kube) string {
	restore, _, _ := store.Get[*storev1.Restore](store.Untracked(w.last), store.RestoreKey)
	switch {
	case record.AcceptedRestore(store.Untracked(w.last), k.name):
		return ""
	case clusterOf(w.last, k.name).GetRegressed() != "":
		return clusterOf(w.last, k.name).GetRegressed()
	case k.incarnation != restore.GetIncarnation():
		return "it follows another store"
	case k.generation > restore.GetGeneration():
		return fmt.Sprintf("it holds generation %d, and the backup was taken at %d", k.generation, restore.GetGeneration())
	}
	return ""
}

// comesBack has an agent open a session, and another one where the first has told the hub only that it is ahead.
func (w *interleaved) comesBack(k *kube) bool {
	for range 2 {
		if k != nil && w.opens(k) {
			return true
		}
	}
	return false
}

// restRestore has a person accept the last restore, and all join again that cannot go on with it, or whose name was taken while they joined.
func (w *interleaved) restRestore() {
	if w.restored > 0 {
		w.accepts(&towlinev1.AcceptRestoreRequest{})
	}
	for _, name := range wovenClusters {
		rec, k := clusterOf(w.last, name), w.kubes[name]
		switch {
		case rec == nil || w.comesBack(k):
		case rec.GetRemoving() != "":
			w.removes(name, "keep", true)
		default:
			w.joins(name)
		}
	}
}
