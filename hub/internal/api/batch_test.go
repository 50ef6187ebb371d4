package api

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
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
