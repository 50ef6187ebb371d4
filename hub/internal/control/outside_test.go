package control

import (
	"context"
	"runtime"
	"strings"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// inTransaction reports that it is called from the function of an update, whose commit waits for it.
func inTransaction() bool {
	pcs := make([]uintptr, 256)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "engine.(*draft).run") {
			return true
		}
		if !more {
			return false
		}
	}
}

// mustBeOutside is where a source is fetched.
func mustBeOutside() {
	if inTransaction() {
		panic("a source is fetched in a transaction")
	}
}

// outsideBlobs are read outside of transactions only.
type outsideBlobs struct {
	store.Blobs
	t *testing.T
}

func (b outsideBlobs) Get(ctx context.Context, d fleet.Digest) ([]byte, error) {
	if inTransaction() {
		b.t.Errorf("%s is read in a transaction", d.Short())
	}
	return b.Blobs.Get(ctx, d)
}

// What a transaction lacks is read between two runs of it, once, and all that it lacks by then; the transaction judges what came of
// it.
func TestTransactionsGetWhatWasReadBefore(t *testing.T) {
	l := newLeader(t)
	l.o.Bundles = bundle.New(outsideBlobs{l.o.Store.Blobs(), t})
	gone := fleet.DigestOf([]byte("gone"))
	runs := 0
	var first fleet.Bundle
	var lost error
	l.must(l.updateWith(t.Context(), func(_ store.Writer, o outside) (err error) {
		runs++
		if first, err = o.bundles.Get(t.Context(), l.bundle); err != nil {
			return err
		}
		_, lost = o.bundles.Get(t.Context(), gone)
		return nil
	}))
	if runs != 2 || len(first.Entries) != 1 || lost == nil {
		t.Errorf("%d runs; %v, %v", runs, first, lost)
	}
	if err := l.updateWith(t.Context(), func(_ store.Writer, o outside) error {
		_, err := o.bundles.Content(t.Context(), gone)
		return err
	}); err == nil {
		t.Error("a content that is gone is no error")
	}
}

// notedBlobs note what is read.
type notedBlobs struct {
	store.Blobs
	read map[fleet.Digest]int
}

func (b notedBlobs) Get(ctx context.Context, d fleet.Digest) ([]byte, error) {
	b.read[d]++
	return b.Blobs.Get(ctx, d)
}

// A transaction that lacks the bundle which it assigns asks for nothing else before it has that: without it, it would look as if
// the module let go all that it lists.
func TestWhatIsAssignedIsReadFirst(t *testing.T) {
	l := newLeader(t)
	blobs := notedBlobs{l.o.Store.Blobs(), map[fleet.Digest]int{}}
	l.o.Bundles = bundle.New(blobs)
	other := fleet.ModuleRef{Project: "default", Name: "other"}
	content := func(name string) fleet.Digest {
		d, content := assemble.BundleDigest([]fleet.BundleEntry{{Digest: fleet.DigestOf([]byte(name)), Version: "v1",
			ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: strings.TrimSuffix(name, "2")}}})
		_, err := l.o.Store.Blobs().Put(t.Context(), content)
		l.must(err)
		return d
	}
	next, others := l.revision(2), l.revision(1)
	next.Bundle, others.Bundle = content("web2").Bytes(), content("other").Bytes()
	l.put(func(w store.Writer) {
		m := moduleRecord()
		m.Module.Metadata.Name = other.Name
		w.Put(store.ModuleKey(other), m)
		w.Put(store.RevisionKey(other, 1), others)
		w.Put(store.RevisionKey(shop, 2), next)
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(1)})
	})
	_, err := l.o.Bundles.Get(t.Context(), l.bundle) // what is assigned so far is known
	l.must(err)
	var made *storev1.DesiredRecord
	l.must(l.updateWith(t.Context(), func(w store.Writer, o outside) error {
		a, err := l.newAssigner(t.Context(), w, o, shop, 2, 1)
		if err != nil {
			return err
		}
		made, err = a.desired(t.Context(), w, fleet.Cluster{Name: "a"}, 9)
		return err
	}))
	if made.GetSync().GetGeneration() != 9 || made.GetSync().GetObjects() != 1 || blobs.read[fleet.Digest(next.GetBundle())] != 1 {
		t.Errorf("%v, after %v was read", made, blobs.read)
	}
	if blobs.read[fleet.Digest(others.GetBundle())] != 0 {
		t.Error("what another module lists was read, though nothing is dropped")
	}
}

// A put that is queued is rendered by nobody who asks what it is going to list: who asks decides on another module. Until the resolver has rendered it
// the put may list all that is let go.
func TestDraftsAreMadeByTheResolver(t *testing.T) {
	l := newLeader(t)
	l.externalOf("a")
	other := fleet.ModuleRef{Project: "default", Name: "other"}
	digest, content := assemble.BundleDigest(nil)
	_, err := l.o.Store.Blobs().Put(t.Context(), content)
	l.must(err)
	before, queued := rolloutRecord(1, string(rollout.Progressing)), rolloutRecord(2, string(rollout.Pending))
	before.Rollout.Strategy = &towlinev1.RolloutStrategy{OnSupersede: "Queue"}
	queued.Rollout.Revision, queued.Rollout.Status.Reason = 0, rollout.ReasonQueued
	rev := l.revision(1)
	rev.Bundle = digest.Bytes()
	l.put(func(w store.Writer) {
		m := moduleRecord()
		m.Module.Metadata.Name = other.Name
		w.Put(store.ModuleKey(other), m)
		w.Put(store.RevisionKey(other, 1), rev)
		w.Put(rolloutKey(other, before), before)
		w.Put(rolloutKey(other, queued), queued)
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(1)})
	})
	asked := &counting{}
	l.o.Source = asked
	l.asks(take("q", "a"))
	l.must(l.answerRequests(t.Context(), shop))
	_, err = l.answer("q")
	l.must(err)
	if h := l.desired("a").GetTombstone().GetHeirs(); len(h) != 1 || h[0].GetModule() != other.String() || !h[0].GetUnknown() || asked.n != 0 {
		t.Errorf("heirs: %v, after %d were rendered", h, asked.n)
	}
	l.o.Source = oneFile{}
	l.must(l.resolve(t.Context(), other))
	l.again()
	if h := l.desired("a").GetTombstone().GetHeirs(); len(h) != 1 || h[0].GetModule() != other.String() || h[0].GetUnknown() {
		t.Errorf("when it is rendered: %v", h)
	}
}
