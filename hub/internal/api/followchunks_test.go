package api

import (
	"errors"
	"fmt"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// More modules of one source than one transaction takes: if one may not begin, none does and it is named; if it comes to that when some have
// begun, the rest begins without it, and nothing waits for it.
func TestManyThatBeginTogether(t *testing.T) {
	const modules = maxTogether + 5
	s := storetest.New(t)
	var list []record.News
	a := newAPIOn(t, s, func(w store.Writer) {})
	for i := range modules {
		ref := fleet.ModuleRef{Project: fleet.DefaultProject, Name: fmt.Sprint("m", i)}
		if _, err := s.Update(t.Context(), func(w store.Writer) error {
			m := putShop().GetModule()
			m.Metadata.Name, m.Metadata.Project, m.Metadata.Uid = ref.Name, ref.Project, "u"
			w.Put(store.ModuleKey(ref), &storev1.ModuleRecord{Module: m})
			w.Put(store.RolloutKey(ref, 1), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Id: ref.Name + "/1", Module: ref.Name, Number: 1, Revision: 1,
				Status: &towlinev1.RolloutStatus{State: string(rollout.Progressing)}}})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		list = append(list, record.News{Module: ref, UID: "u", Rollout: 1, Fetched: fleet.DigestOf([]byte("x")), Ask: record.Ask{By: record.ByFollow}})
	}
	begun := func() (n int, batches bool) {
		rev, err := s.Update(t.Context(), func(w store.Writer) error { // of now, or later
			w.Put(store.ModuleKey(fleet.ModuleRef{Project: fleet.DefaultProject, Name: "now"}), &storev1.ModuleRecord{})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.View(t.Context(), rev, func(r store.Reader) error {
			for _, x := range list {
				if rollouts.Newest(r, x.Module) == x.Rollout+1 {
					n++
				}
			}
			r.Scan(store.BatchPrefix, func(store.Entry) bool {
				batches = true
				return true
			})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return n, batches
	}
	refused := list[modules-3]
	if _, err := s.Update(t.Context(), func(w store.Writer) error {
		w.Put(store.RolloutKey(refused.Module, 1), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Id: refused.Module.Name + "/1", Module: refused.Module.Name, Number: 1, Revision: 1,
			Strategy: &towlinev1.RolloutStrategy{OnSupersede: "Reject"}, Status: &towlinev1.RolloutStatus{State: string(rollout.Progressing)}}})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var which *record.StartError
	_, err := a.StartFollowed(t.Context(), list)
	if n, open := begun(); !errors.As(err, &which) || which.Module != refused.Module || !errors.Is(err, fleet.ErrPrecondition) || n != 0 || open {
		t.Fatalf("one may not begin: %v; %d have begun, a batch is open: %v", err, n, open)
	}
	first, err := a.startSome(t.Context(), list[:maxTogether], "b", true, true)
	if err != nil || len(first) != maxTogether {
		t.Fatal(first, err)
	}
	list[modules-4].UID = "put anew"
	rest, err := a.startSome(t.Context(), list[maxTogether:], "b", false, false)
	if err != nil || len(rest) != 5 || rest[2] != 0 || rest[1] != 0 || rest[0] != 2 || rest[4] != 2 {
		t.Errorf("the rest: %v, %v", rest, err)
	}
	if n, open := begun(); n != modules-2 || open {
		t.Errorf("%d have begun, a batch is open: %v", n, open)
	}
}
