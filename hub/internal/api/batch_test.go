package api

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// A put of a batch that takes long, because its files are many or the store is slow, is one that the others wait for: what they let go
// may be what it lists.
func TestPutThatTakesLongIsWaitedFor(t *testing.T) {
	a := newAPI(t, func(store.Writer) {})
	type told struct {
		ref  fleet.ModuleRef
		more bool
	}
	gathered := make(chan told, 100)
	a.o.Gather = func(batch string, ref fleet.ModuleRef, more bool) { gathered <- told{ref, more} }
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	next := func() told {
		select {
		case x := <-gathered:
			return x
		case <-ctx.Done():
			t.Error("nobody is told that it is under way still")
			return told{}
		}
	}
	shop := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "shop"}
	a.o.Render = func(context.Context, *wire.Module, fleet.Digest) (func(), error) {
		for range 3 {
			if x := next(); x != (told{shop, true}) {
				t.Errorf("told %v while it is rendered", x)
			}
		}
		return func() {}, nil
	}
	m := &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "shop"}, Spec: &towlinev1.ModuleSpec{
		Source:    &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": "a"}}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}
	for _, more := range []bool{true, false} {
		if _, err := a.PutModule(t.Context(), &towlinev1.PutModuleRequest{Module: m, Batch: "b", More: more}); err != nil {
			t.Fatal(err)
		}
		last := next()
		for len(gathered) > 0 {
			last = <-gathered
		}
		if last.more != more {
			t.Errorf("told at the end of a put with more to come %v: %v", more, last)
		}
		m.Spec.Source.Inline.Files["a.yaml"] += "b"
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
