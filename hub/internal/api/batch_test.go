package api

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/wire"
)

// A put of a batch that takes long, because its files are many or the store is slow, is one that the others wait for: what they let go
// may be what it lists. The last one ends the batch, in the transaction of the put; one that is refused does not, nor does one of another
// caller.
func TestBatchOfPuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, func(store.Writer) {})
		as := func(name string) context.Context {
			return rpc.WithCaller(t.Context(), rpc.Caller{Kind: rpc.KindUser, Name: name, Role: rpc.RoleAdmin})
		}
		last := func() (at time.Time) {
			if err := a.o.Store.View(t.Context(), 0, func(r store.Reader) error {
				store.Scan(r, store.BatchPrefix, func(b *storev1.BatchRecord, _ store.Entry) bool {
					at = b.GetLast().AsTime()
					return true
				})
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return at
		}
		put := func(by, text string, more bool) error {
			req := putShop()
			req.Module.Spec.Source.Inline.Files["a.yaml"] = text
			req.Batch, req.More = "b", more
			_, err := a.PutModule(as(by), req)
			return err
		}
		if err := put("ana", "a", false); err != nil || !last().IsZero() {
			t.Fatalf("one alone: %v, %s", err, last())
		}
		if err := put("ana", "a", true); err != nil || !last().IsZero() {
			t.Fatalf("nothing is changed: %v, %s", err, last())
		}
		if err := put("ana", "b", true); err != nil || !last().Equal(time.Now()) {
			t.Fatalf("the first one: %v, %s", err, last())
		}
		a.o.Render = func(context.Context, *wire.Module, fleet.Digest) (func(), error) {
			<-time.After(record.BatchPatience)
			if age := time.Since(last()); age > batchBeat {
				t.Errorf("while it is rendered the newest word of the batch is %s old", age)
			}
			return func() {}, nil
		}
		if err := put("ana", "c", true); err != nil || !last().Equal(time.Now()) {
			t.Errorf("one that takes long: %v, %s", err, last())
		}
		a.o.Render = func(context.Context, *wire.Module, fleet.Digest) (func(), error) {
			return nil, fleet.Invalid("spec.source", "is not right")
		}
		if err := put("ana", "d", false); err == nil || last().IsZero() {
			t.Errorf("one that is refused: %v, %s", err, last())
		}
		a.o.Render = nil
		if err := put("ben", "d", false); err != nil || last().IsZero() {
			t.Errorf("of somebody else: %v, %s", err, last())
		}
		if err := put("ana", "d", false); err != nil || !last().IsZero() {
			t.Errorf("the last one, which changes nothing: %v, %s", err, last())
		}
	})
}

// Deletions of a batch come after its puts, which wait for none of them any more; the last one ends it, in the transaction of the deletion, or
// although it is refused, or finds nothing. One that comes while puts are outstanding ends nothing, nor does one of another caller, or a dry run.
func TestBatchOfPutsAndDeletions(t *testing.T) {
	s := storetest.New(t)
	a := newAPIOn(t, s, func(store.Writer) {})
	as := func(name string) context.Context {
		return rpc.WithCaller(t.Context(), rpc.Caller{Kind: rpc.KindUser, Name: name, Role: rpc.RoleAdmin})
	}
	text := "a"
	put := func(more bool) {
		t.Helper()
		text += "a"
		if _, err := a.PutModule(as("ana"), &towlinev1.PutModuleRequest{Module: textual("new", text), Batch: "x", More: more, Deletes: true}); err != nil {
			t.Fatal(err)
		}
	}
	state := func() (now string) {
		t.Helper()
		rev, err := s.Update(t.Context(), func(w store.Writer) error { w.Put(store.HubKey, &storev1.Hub{}); return nil })
		if err != nil {
			t.Fatal(err)
		}
		if err := s.View(t.Context(), rev, func(r store.Reader) error {
			id := record.BatchID("ana", "x")
			switch {
			case record.Gathers(r, id):
				now = "gathers"
			case record.Open(r, id):
				now = "put"
			default:
				now = "over"
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return now
	}
	for _, name := range []string{"one", "two"} {
		if _, err := a.PutModule(as("ana"), &towlinev1.PutModuleRequest{Module: textual(name, "a")}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		by, name  string
		more, dry bool
		while     bool // puts are outstanding
		want      string
	}{
		{by: "ana", name: "one", while: true, want: "gathers"},
		{by: "ana", name: "one", more: true, want: "put"},
		{by: "ben", name: "one", want: "put"},
		{by: "ana", name: "one", dry: true, want: "put"},
		{by: "ana", name: "two", want: "over"},
		{by: "ana", name: "two", want: "over"}, // it was so already
		{by: "ana", name: "none", want: "over"},
	} {
		put(tc.while)
		_, err := a.DeleteModule(as(tc.by), &towlinev1.DeleteModuleRequest{Name: tc.name, Batch: "x", More: tc.more, DryRun: tc.dry})
		if tc.name == "none" != errors.Is(err, fleet.ErrNotFound) || tc.name != "none" && err != nil {
			t.Fatalf("%+v: %v", tc, err)
		}
		if got := state(); got != tc.want {
			t.Errorf("%+v: the batch is %s", tc, got)
		}
	}
}

// Clocks of hubs differ: that a batch is under way is noted also where the word before was by a clock that is ahead.
func TestBatchIsUnderWayByAnyClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.New(t)
		a := newAPIOn(t, s, func(store.Writer) {})
		put := func(text string, more bool) {
			t.Helper()
			if _, err := a.PutModule(t.Context(), &towlinev1.PutModuleRequest{Module: textual("one", text), Batch: "x", More: more}); err != nil {
				t.Fatal(err)
			}
		}
		var key string
		look := func() (at int64) {
			rev, err := s.Update(t.Context(), func(w store.Writer) error { w.Put(store.HubKey, &storev1.Hub{}); return nil })
			if err != nil {
				t.Fatal(err)
			}
			if err := s.View(t.Context(), rev, func(r store.Reader) error {
				r.Scan(store.BatchPrefix, func(e store.Entry) bool { key, at = e.Key, e.ModRevision; return true })
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return at
		}
		put("a", false)
		put("b", true)
		look()
		for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
			if _, err := s.Update(t.Context(), func(w store.Writer) error {
				w.Put(key, &storev1.BatchRecord{Last: timestamppb.New(time.Now().Add(off))})
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			version := look()
			if put("b", true); look() == version { // it changes nothing, but its batch is under way
				t.Errorf("by a clock that is %s: it is not noted", name)
			}
		}
	})
}

// broken has what waits for the rest of its batch in a module end as the leader ends it when that never comes.
func broken(t *testing.T, s *storetest.Store, name string) {
	t.Helper()
	ref := fleet.ModuleRef{Project: fleet.DefaultProject, Name: name}
	rev, err := s.Update(t.Context(), func(w store.Writer) error {
		store.Scan(w, store.BatchPrefix, func(_ *storev1.BatchRecord, e store.Entry) bool {
			w.Delete(e.Key)
			return true
		})
		return rollouts.Close(w, ref, func(int64) bool { return true }, rollout.Module{SourceFailed: &rollout.SourceFailed{Reason: rollout.ReasonPutsMissing}}, time.Now())
	})
	if err == nil {
		err = s.View(t.Context(), rev, func(store.Reader) error { return nil }) // it is seen from here on
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A put that comes when its batch has been broken off, the last one or not, would let go what those before it were to list, and is refused as long as
// these have not begun. All of it put again begins, and so does what is retried, or put alone.
func TestPutOfABatchThatIsBrokenOff(t *testing.T) {
	s := storetest.New(t)
	a := newAPIOn(t, s, func(store.Writer) {})
	put := func(name, text, batch string, more bool) (string, error) {
		resp, err := a.PutModule(t.Context(), &towlinev1.PutModuleRequest{Module: textual(name, text), Batch: batch, More: more})
		return resp.GetRollout(), err
	}
	puts := func(name, text, batch string, more bool, want string) {
		t.Helper()
		if id, err := put(name, text, batch, more); err != nil || id != want {
			t.Errorf("%s: %q, %v, want %q", name, id, err, want)
		}
	}
	puts("one", "a", "", false, "one/1")
	puts("two", "a", "", false, "two/1")
	puts("one", "b", "x", true, "one/2")
	broken(t, s, "one")
	for _, more := range []bool{false, true} {
		if _, err := put("two", "b", "x", more); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "too late") {
			t.Fatalf("more: %v: %v", more, err)
		}
	}
	if _, err := put("two", "a", "x", false); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("the last one, which changes nothing, hides that the first did not begin: %v", err)
	}
	puts("one", "b", "y", true, "one/3")
	puts("two", "b", "x", true, "two/2")
	broken(t, s, "one")
	if got, err := a.RetryRollout(t.Context(), &towlinev1.RetryRolloutRequest{Module: "one"}); err != nil || got.GetAnswer().GetId() != "one/4" {
		t.Errorf("a retry: %v, %v", got, err)
	}
	broken(t, s, "one")
	puts("one", "b", "", false, "one/5")
}

// Who puts all of a batch again, while what was put of it waits for the rest, has that wait for the new one: the old one ends without it.
func TestBatchIsPutAgain(t *testing.T) {
	s := storetest.New(t)
	a := newAPIOn(t, s, func(store.Writer) {})
	as := func(name string) context.Context {
		return rpc.WithCaller(t.Context(), rpc.Caller{Kind: rpc.KindUser, Name: name, Role: rpc.RoleAdmin})
	}
	for _, tc := range []struct {
		by, text, batch string
		more            bool
		want            string
	}{
		{"ana", "a", "", false, "one/1"},
		{"ana", "b", "x", true, "one/2"},
		{"ana", "b", "x", true, ""},
		{"ana", "b", "", false, ""},
		{"ben", "b", "y", true, ""},
		{"ana", "b", "y", true, "one/3"},
		{"ana", "b", "z", false, "one/4"},
		{"ana", "b", "w", false, ""},
	} {
		resp, err := a.PutModule(as(tc.by), &towlinev1.PutModuleRequest{Module: textual("one", tc.text), Batch: tc.batch, More: tc.more})
		if err != nil || resp.GetRollout() != tc.want {
			t.Errorf("%+v: %q, %v", tc, resp.GetRollout(), err)
		}
	}
}

// More batches than may be under way are refused, with the put that would open one.
func TestManyBatches(t *testing.T) {
	s := storetest.New(t)
	a := newAPIOn(t, s, func(store.Writer) {})
	for i := range maxBatches {
		if _, err := s.Update(t.Context(), func(w store.Writer) error {
			w.Put(store.BatchKey(strconv.Itoa(i)), &storev1.BatchRecord{Last: timestamppb.Now()})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	req := putShop()
	req.Batch, req.More = "b", true
	if _, err := a.PutModule(t.Context(), req); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("one more: %v", err)
	}
	req.More = false
	if _, err := a.PutModule(t.Context(), req); err != nil {
		t.Errorf("one alone: %v", err)
	}
}

// A dry run says what is wrong with a source elsewhere, and nothing of one that takes long, or that the hub has.
func TestDryRunOfASourceElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, func(store.Writer) {})
		a.o.Render = func(context.Context, *wire.Module, fleet.Digest) (func(), error) { return func() {}, nil }
		m := &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "shop"}, Spec: &towlinev1.ModuleSpec{
			Source:    &towlinev1.Source{Http: &towlinev1.HttpSource{Url: "https://example.com/a.tar.gz"}},
			Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}
		dry := func() error {
			_, err := a.PutModule(t.Context(), &towlinev1.PutModuleRequest{Module: m, DryRun: true})
			return err
		}
		broken := func(context.Context, *wire.Module, fleet.Digest) (record.Proposal, error) {
			return record.Proposal{}, fleet.Invalid("spec.source.http", "is not there")
		}
		a.o.Propose = broken
		if err := dry(); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("of what is not there: %v", err)
		}
		a.o.Propose = func(ctx context.Context, _ *wire.Module, _ fleet.Digest) (record.Proposal, error) {
			<-ctx.Done()
			return record.Proposal{}, ctx.Err()
		}
		if err := dry(); err != nil {
			t.Errorf("of what takes long: %v", err)
		}
		a.o.Propose = broken
		if _, err := a.PutModule(t.Context(), &towlinev1.PutModuleRequest{Module: m}); err != nil {
			t.Fatal(err)
		}
		if err := dry(); err != nil {
			t.Errorf("of what is there: %v", err)
		}
	})
}
