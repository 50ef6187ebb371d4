package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// outpaced writes for catalogs; the first time the catalog is put before, and the write fails as that of the hub does.
type outpaced struct {
	put            func()
	applied, drops int
}

func (m *outpaced) PlanCatalog(context.Context, record.CatalogLook) (catalog.Plan, error) {
	return catalog.Plan{}, nil
}

func (m *outpaced) ApplyCatalog(context.Context, record.CatalogLook, catalog.Plan) (record.CatalogDone, error) {
	if m.applied++; m.applied == 1 {
		m.put()
		return record.CatalogDone{}, fleet.Errorf(fleet.ErrConflict, "catalog team was changed meanwhile")
	}
	return record.CatalogDone{}, nil
}

func (m *outpaced) DropCatalog(context.Context, record.CatalogLook) error {
	m.drops++
	return nil
}

// A catalog that is suspended or deleted while it is looked at writes nothing more, except for a person who waits for the look of one that is
// suspended; who waits for one that goes is told so.
func TestCatalogIsStoppedMeanwhile(t *testing.T) {
	ref := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "team"}
	for name, c := range map[string]struct {
		change         func(*storev1.CatalogRecord)
		asked          bool
		applied, drops int
		told           error
	}{
		"put":                   {change: func(r *storev1.CatalogRecord) { r.Catalog.Spec.Recursive = true }, applied: 2},
		"suspended":             {change: func(r *storev1.CatalogRecord) { r.Catalog.Spec.Suspend = true }, applied: 1},
		"suspended, and asked":  {change: func(r *storev1.CatalogRecord) { r.Catalog.Spec.Suspend = true }, asked: true, applied: 2},
		"being deleted":         {change: func(r *storev1.CatalogRecord) { r.Deleting = true }, applied: 1, drops: 1},
		"deleted while sb asks": {change: func(r *storev1.CatalogRecord) { r.Deleting = true }, asked: true, applied: 1, drops: 1, told: fleet.ErrPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.catalogHosts = &origins{}
			l.catalogs.begin(time.Now())
			put := func(generation int64, change func(*storev1.CatalogRecord)) {
				rec := &storev1.CatalogRecord{Catalog: &towlinev1.Catalog{ApiVersion: fleet.APIVersion, Kind: "Catalog",
					Metadata: &towlinev1.Metadata{Name: ref.Name, Project: ref.Project, Uid: "u", Generation: generation}, Spec: &towlinev1.CatalogSpec{
						Source: &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.test/team.git"}}}}}
				change(rec)
				l.put(func(w store.Writer) { w.Put(store.CatalogKey(ref), rec) })
			}
			put(1, func(*storev1.CatalogRecord) {})
			source := &branch{ref: "main@sha1:1", files: map[string]string{"shop.yaml": "{apiVersion: towline.dev/v1, kind: Module, metadata: {name: shop}, spec: {namespace: default, placement: {selector: {}}, source: {inline: {files: {a.yaml: a}}}}}"}}
			writes := &outpaced{put: func() { put(2, c.change) }}
			l.o.Source, l.o.Catalogs = source, writes
			answers := make(chan catalogAnswer, 1)
			if c.asked {
				l.catalogs.with(ref, func(x *cataloguing) { x.asks = append(x.asks, catalogAsk{answer: answers}) })
			}
			if _, err := l.lookAtCatalog(t.Context(), ref); err != nil {
				t.Fatal(err)
			}
			if writes.applied != c.applied || writes.drops != c.drops {
				t.Errorf("written %d times and dropped %d times, not %d and %d", writes.applied, writes.drops, c.applied, c.drops)
			}
			if !c.asked {
				return
			}
			select {
			case got := <-answers:
				if !errors.Is(got.err, c.told) {
					t.Errorf("told %v", got.err)
				}
			default:
				t.Error("who waits is told nothing")
			}
		})
	}
}

// A look of which nothing came for what may be over by itself is made again, also of a catalog that follows nothing: another catalog is read, or
// takes over what moved to it, and the hub takes what it refused. What is wrong with the files is not.
func TestCatalogIsLookedAtAgainByItself(t *testing.T) {
	now := time.Now()
	for reason, again := range map[string]bool{catalog.ReasonNeeded: true, catalog.ReasonRefused: true, follow.ReasonUnavailable: true, catalog.ReasonInvalidFiles: false, catalog.ReasonNoModules: false} {
		state := &storev1.CatalogState{Failing: timestamppb.New(now), Status: &towlinev1.CatalogStatus{ObservedGeneration: 1, State: catalog.Failed, Reason: reason, Looked: timestamppb.New(now)}}
		at := catalogMemory{uid: "u", generation: 1, state: state}.next(now, now)
		if at.IsZero() == again || again && at.Sub(now) > time.Minute {
			t.Errorf("%s: in %s", reason, at.Sub(now))
		}
	}
}

// brokenCatalogs panics where a catalog is applied.
type brokenCatalogs struct{ outpaced }

func (*brokenCatalogs) PlanCatalog(context.Context, record.CatalogLook) (catalog.Plan, error) {
	panic("of the catalogs")
}

// TestLookThatPanicsIsAnswered: who waits for a look that ends by a bug is told so, once.
func TestLookThatPanicsIsAnswered(t *testing.T) {
	ref := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "team"}
	l := newLeader(t)
	l.catalogHosts = &origins{}
	l.catalogs.begin(time.Now())
	rec := &storev1.CatalogRecord{Catalog: &towlinev1.Catalog{ApiVersion: fleet.APIVersion, Kind: "Catalog",
		Metadata: &towlinev1.Metadata{Name: ref.Name, Project: ref.Project, Uid: "u", Generation: 1}, Spec: &towlinev1.CatalogSpec{
			Source: &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.test/team.git"}}}}}
	l.put(func(w store.Writer) { w.Put(store.CatalogKey(ref), rec) })
	l.o.Source = &branch{ref: "main@sha1:1", files: map[string]string{"shop.yaml": "{apiVersion: towline.dev/v1, kind: Module, metadata: {name: shop}, spec: {namespace: default, placement: {selector: {}}, source: {inline: {files: {a.yaml: a}}}}}"}}
	l.o.Catalogs = &brokenCatalogs{}
	answers := make(chan catalogAnswer, 1)
	l.catalogs.with(ref, func(x *cataloguing) { x.asks = append(x.asks, catalogAsk{answer: answers}) })
	l.runCatalog(t.Context(), store.CatalogKey(ref))
	select {
	case a := <-answers:
		if a.err == nil || !strings.Contains(a.err.Error(), "stopped by a bug in the hub") {
			t.Errorf("told %v", a.err)
		}
	default:
		t.Error("nobody was told")
	}
}
