package control

import (
	"context"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// counting counts fetches and fails the first ones.
type counting struct {
	oneFile
	n, failures int
}

func (c *counting) Fetch(ctx context.Context, project string, s *towlinev1.Source) (source.Artifact, error) {
	if c.n++; c.n <= c.failures {
		return source.Artifact{}, fleet.Errorf(fleet.ErrUnavailable, "not yet")
	}
	return c.oneFile.Fetch(ctx, project, s)
}

// What was rendered with the put is taken once; one that could not be rendered leaves nothing behind; and a hub that does not
// lead stores nothing ahead.
func TestPreparedSourceIsRenderedOnce(t *testing.T) {
	for _, tc := range []struct {
		name             string
		leads            bool
		failures, ahead  int // fetches that fail, and those made by Render
		fetches, another int // made by the resolver, and by the next one
	}{
		{"leader", true, 0, 1, 0, 1},
		{"source away for a moment", true, 1, 1, 1, 1},
		{"no leader", false, 0, 1, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLeader(t)
			src := &counting{failures: tc.failures}
			l.o.Source = src
			if tc.leads {
				l.spawn = func(f func(context.Context)) { f(t.Context()) }
			}
			m, err := wire.ModuleFromProto(moduleRecord().GetModule())
			l.must(err)
			spec := fleet.DigestOf([]byte("spec"))
			keep, err := l.Render(t.Context(), m, spec)
			if (err != nil) != (tc.failures > 0) {
				t.Fatal(err)
			}
			if err == nil {
				keep()
			}
			if src.n != tc.ahead {
				t.Errorf("%d fetches ahead, want %d", src.n, tc.ahead)
			}
			for i, want := range []int{tc.fetches, tc.another} {
				before := src.n
				r, err := l.prepare(t.Context(), m, spec)
				if l.must(err); src.n-before != want || r.variants[0].objects != 1 {
					t.Errorf("resolver %d: %d fetches and %d objects, want %d fetches", i+1, src.n-before, r.variants[0].objects, want)
				}
			}
		})
	}
}

// Two modules say the same in two projects, and are put at once. The health rules of each are those of its own project.
func TestPreparedSourceIsOfOneModule(t *testing.T) {
	l := newLeader(t)
	l.o.Source = oneFile{}
	l.spawn = func(f func(context.Context)) { f(t.Context()) }
	l.put(func(w store.Writer) {
		w.Put(store.ProjectPrefix+"strict", &storev1.ProjectRecord{Project: &towlinev1.Project{Spec: &towlinev1.ProjectSpec{
			HealthRules: []*towlinev1.HealthRule{{Kind: "ConfigMap", Degraded: "true"}}}}})
	})
	spec := fleet.DigestOf([]byte("spec"))
	for _, project := range []string{"strict", "lax"} {
		in := moduleRecord().GetModule()
		in.Metadata.Project = project
		m, err := wire.ModuleFromProto(in)
		l.must(err)
		keep, err := l.Render(t.Context(), m, spec)
		l.must(err)
		keep()
		if project == "strict" {
			continue
		}
		r, err := l.prepare(t.Context(), m, spec)
		if l.must(err); len(r.variants[0].needs) > 0 {
			t.Error("a module is given the health rules of another project")
		}
	}
}

func TestPreparationsAreFewAndShortLived(t *testing.T) {
	var p preparations
	now := time.Unix(1, 0)
	spec := func(i int) preparationKey { return preparationKey{shop, fleet.DigestOf([]byte{byte(i)})} }
	for i := range maxPreparations {
		if p.add(spec(i), now) == nil || p.add(spec(i), now) != nil {
			t.Fatalf("preparation %d: not taken, or taken twice", i)
		}
	}
	if p.add(spec(99), now) != nil {
		t.Error("one too many")
	}
	if p.take(spec(1), now.Add(preparationAge+1)) != nil {
		t.Error("an old one is taken")
	}
	if p.add(spec(99), now.Add(preparationAge+1)) == nil || p.take(spec(0), now) != nil {
		t.Error("old ones stay")
	}
}
