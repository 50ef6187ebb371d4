package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

type away struct{}

func (away) Connected(fleet.ClusterName) bool { return false }
func (away) Query(context.Context, fleet.ClusterName, *agentv1.Query) (*agentv1.QueryResult, error) {
	return nil, fleet.ErrUnavailable
}
func (away) Started() time.Time                           { return time.Time{} }
func (away) Lost(fleet.ClusterName) time.Time             { return time.Time{} }
func (away) LastSeen(fleet.ClusterName) (time.Time, bool) { return time.Time{}, false }

func newRegistry(t *testing.T, s *storetest.Store) *registry.Registry {
	t.Helper()
	r, err := registry.New(registry.Options{Store: s.As(store.Registry), CA: &registry.CA{}, HubID: "h", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newAPI(t *testing.T, fill func(w store.Writer)) *API {
	t.Helper()
	return newAPIOn(t, storetest.New(t), fill)
}

func newAPIOn(t *testing.T, s *storetest.Store, fill func(w store.Writer)) *API {
	t.Helper()
	a, err := New(Options{Store: s.As(store.API), Bundles: bundle.New(s.Blobs()), Sessions: away{}, Registry: newRegistry(t, s), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Update(t.Context(), func(w store.Writer) error {
		fill(w)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

func putModule(w store.Writer, project, name string, change func(*storev1.ModuleRecord)) fleet.ModuleRef {
	ref := fleet.ModuleRef{Project: project, Name: name}
	rec := &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: name, Project: project}, Spec: &towlinev1.ModuleSpec{
		Source:    &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": "a"}}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}}
	if change != nil {
		change(rec)
	}
	w.Put(store.ModuleKey(ref), rec)
	return ref
}

func putRollout(w store.Writer, ref fleet.ModuleRef, n, revision int64, state string) {
	key := store.RolloutKey(ref, n)
	if state == string(rollout.Pending) {
		key = store.StartKey(ref, n)
	}
	w.Put(key, &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Module: ref.Name, Number: n, Revision: revision,
		Metadata: &towlinev1.Metadata{Project: ref.Project}, Status: &towlinev1.RolloutStatus{State: state}}})
}

// putExternal has another program assign what the module's rollout of a number cut.
func putExternal(w store.Writer, ref fleet.ModuleRef, n int64) {
	putRollout(w, ref, n, n, "Succeeded")
	rec, _, _ := store.Get[*storev1.RolloutRecord](w, store.RolloutKey(ref, n))
	rec = proto.CloneOf(rec)
	rec.Rollout.Strategy = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	w.Put(store.RolloutKey(ref, n), rec)
}

// A rollout that waits for its revision because of the hub says so; one that waits for its source does not.
func TestRolloutSaysTheHubsTrouble(t *testing.T) {
	a := newAPI(t, func(w store.Writer) {
		for _, name := range []string{"full", "well"} {
			putRollout(w, putModule(w, "default", name, nil), 1, 0, "Pending")
		}
	})
	a.o.Trouble = func(ref fleet.ModuleRef) error {
		if ref.Name == "full" {
			return fleet.Errorf(fleet.ErrExhausted, "the store is full")
		}
		return nil
	}
	for name, reason := range map[string]string{"full": "StoreFull", "well": ""} {
		ro, err := a.GetRollout(t.Context(), &towlinev1.GetRolloutRequest{Module: name})
		if err != nil {
			t.Fatal(err)
		}
		m, err := a.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Contains(m.GetModule().GetStatus().GetRolloutFacts().GetDetail(), "the store is full")
		if s := ro.GetRollout().GetStatus(); s.GetReason() != reason || said != (reason != "") {
			t.Errorf("%s: %v; the module says it: %t", name, s, said)
		}
	}
}

// A verb that nobody would answer is refused at once, with the reason; nothing of it is left for a later module.
func TestVerbThatNobodyWouldAnswerIsRefused(t *testing.T) {
	a := newAPI(t, func(w store.Writer) {
		old := putModule(w, "default", "old", nil)
		putRollout(w, old, 1, 1, "Superseded")
		putRollout(w, old, 2, 2, "Progressing")
		putRollout(w, putModule(w, "default", "going", func(m *storev1.ModuleRecord) { m.Deleting = fleet.DeleteDelete }), 1, 1, "Progressing")
		putExternal(w, putModule(w, "default", "external", func(m *storev1.ModuleRecord) {
			m.Module.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
		}), 1)
	})
	for _, tc := range []struct {
		module string
		number int64
		says   string
	}{
		{"old", 1, "rollout old/1 decides nothing any more; old/2 does"},
		{"going", 0, "module going is being deleted"},
		{"external", 0, "module external: another program does its rollouts"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := a.PauseRollout(ctx, &towlinev1.PauseRolloutRequest{Module: tc.module, Number: tc.number})
		cancel()
		if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", tc.module, err, tc.says)
		}
	}
	_ = a.o.Store.View(t.Context(), 0, func(r store.Reader) error {
		r.Scan(store.VerbPrefix, func(e store.Entry) bool {
			t.Errorf("%s was recorded", e.Key)
			return true
		})
		return nil
	})
}

// A pin of a cluster that does not exist would hold nowhere.
func TestPinOfNoClusterIsRefused(t *testing.T) {
	a := newAPI(t, func(w store.Writer) { putRollout(w, putModule(w, "default", "shop", nil), 1, 1, "Progressing") })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := a.PinClusters(ctx, &towlinev1.PinClustersRequest{Module: "shop", Clusters: []string{"prod-eu-7"}})
	if !errors.Is(err, fleet.ErrNotFound) || !strings.Contains(err.Error(), "cluster prod-eu-7 not found") {
		t.Errorf("%v", err)
	}
}

// A request that comes again, because its answer was lost, is recorded once. Its name is not another request's.
func TestRepeatedWordIsRecordedOnce(t *testing.T) {
	a := newAPI(t, func(w store.Writer) { putRollout(w, putModule(w, "default", "shop", nil), 1, 1, "Progressing") })
	say := func(verb, id string) (key string, err error) {
		_, err = a.o.Store.Update(t.Context(), func(w store.Writer) (err error) {
			v := &storev1.VerbRecord{RequestId: id, Verb: &towlinev1.VerbRecord{Verb: verb, By: "ada", At: timestamppb.New(a.now())}}
			was, err := a.say(t.Context(), w, fleet.ModuleRef{Project: "default", Name: "shop"}, &towlinev1.PauseRolloutRequest{}, v)
			key = was.key
			return err
		})
		return key, err
	}
	first, err := say(rollout.VerbPause, "x")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := say(rollout.VerbPause, "x"); err != nil || again != first {
		t.Errorf("again: %s, %v; want %s", again, err, first)
	}
	if _, err := say(rollout.VerbAbort, "x"); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("another request of the name: %v", err)
	}
	for _, id := range []string{"y", ""} {
		if other, err := say(rollout.VerbPause, id); err != nil || other == first {
			t.Errorf("another request, %q: %s, %v", id, other, err)
		}
	}
	if _, err := a.PauseRollout(t.Context(), &towlinev1.PauseRolloutRequest{Module: "shop", ModuleUid: "of another"}); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("a word to a module that is gone: %v", err)
	}
}

// A word to a rollout that was superseded, or whose module was deleted, in the next moment is answered at once, however often it comes:
// nobody takes it in.
func TestWordToARolloutThatDecidesNothingAnyMoreIsAnswered(t *testing.T) {
	shop := fleet.ModuleRef{Project: "default", Name: "shop"}
	for name, x := range map[string]struct{ state, deleting, want string }{
		"a newer one superseded it":         {"Superseded", "", "a newer one took its place"},
		"it has ended, and a newer one has": {"Succeeded", "", "a newer one took its place"},
		"its module is being deleted":       {"Aborted", fleet.DeleteDelete, "is being deleted"},
	} {
		a := newAPI(t, func(w store.Writer) {
			putModule(w, "default", "shop", func(m *storev1.ModuleRecord) { m.Deleting = x.deleting })
			putRollout(w, shop, 1, 1, x.state)
			putRollout(w, shop, 2, 2, "Progressing")
			w.Put(store.VerbKey(shop, 1, 1), &storev1.VerbRecord{RequestId: "x", Verb: &towlinev1.VerbRecord{Verb: rollout.VerbPause}})
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := a.PauseRollout(ctx, &towlinev1.PauseRolloutRequest{Module: "shop", RequestId: "x"})
		if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A repeat whose rollout is not kept any more is refused: it is no new request.
func TestRepeatAfterItsRolloutIsGoneIsRefused(t *testing.T) {
	shop := fleet.ModuleRef{Project: "default", Name: "shop"}
	for name, v := range map[string]*storev1.VerbRecord{
		"of its own":        {RequestId: "x", Verb: &towlinev1.VerbRecord{Verb: rollout.VerbRetry}},
		"that it has begun": {RequestId: "x", Started: 2, Verb: &towlinev1.VerbRecord{Verb: rollout.VerbRetry}},
	} {
		a := newAPI(t, func(w store.Writer) {
			putRollout(w, putModule(w, "default", "shop", nil), 30, 0, "Failed")
			w.Put(store.VerbKey(shop, 1, 1), v)
		})
		_, err := a.RetryRollout(t.Context(), &towlinev1.RetryRolloutRequest{Module: "shop", RequestId: "x"})
		if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "not carried out again") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// As many clusters are pinned with one verb as a person names.
func TestPinOfManyClusters(t *testing.T) {
	a := newAPI(t, func(w store.Writer) {
		putRollout(w, putModule(w, "default", "shop", nil), 1, 1, "Progressing")
	})
	pin := &towlinev1.VerbRecord{Verb: rollout.VerbPin}
	for i := range 160 {
		name := fmt.Sprintf("c%03d", i)
		if _, err := a.PutCluster(t.Context(), &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: name}}}); err != nil {
			t.Fatal(err)
		}
		pin.Clusters = append(pin.Clusters, name)
	}
	if _, err := a.o.Store.Update(t.Context(), func(w store.Writer) error {
		_, err := a.say(t.Context(), w, fleet.ModuleRef{Project: "default", Name: "shop"}, &towlinev1.PinClustersRequest{}, &storev1.VerbRecord{Verb: pin})
		return err
	}); err != nil {
		t.Error(err)
	}
}

func TestObjectsOfNoModule(t *testing.T) {
	a := newAPI(t, func(w store.Writer) { putModule(w, "default", "new", nil) })
	for name, says := range map[string]string{"nope": "module nope not found", "new": "module new has no revision yet"} {
		_, err := a.GetRevisionObjects(t.Context(), &towlinev1.GetRevisionObjectsRequest{Project: "default", Module: name})
		if !errors.Is(err, fleet.ErrNotFound) || err.Error() != says {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// A stage without a selector takes what is left, and does not wait for anything when that is nothing.
func TestEmptyStageIsWarnedOfOnlyIfItWaits(t *testing.T) {
	m := &wire.Module{Strategy: rollout.Strategy{Stages: []rollout.Stage{
		{Name: "misspelt", Selector: &fleet.Selector{MatchLabels: map[string]string{"ring": "canari"}}},
		{Name: "canary", Selector: &fleet.Selector{MatchLabels: map[string]string{"ring": "canary"}}}, {Name: "rest"}}}}
	m.Ref = fleet.ModuleRef{Project: "default", Name: "shop"}
	resp := &towlinev1.PutModuleResponse{}
	if err := countStages(m, []fleet.Cluster{{Name: "c1", Labels: map[string]string{"ring": "canary"}}}, resp); err != nil {
		t.Fatal(err)
	}
	if w := resp.GetWarnings(); len(w) != 1 || w[0].GetCode() != fleet.WarnEmptyStage || w[0].GetFacts().GetStage() != "misspelt" {
		t.Errorf("warnings %v", w)
	}
}

func TestRevisionsAreSortedByModuleTheNewestFirst(t *testing.T) {
	a := newAPI(t, func(w store.Writer) {
		for _, ref := range []fleet.ModuleRef{{Project: "a", Name: "shop"}, {Project: "a", Name: "web"}, {Project: "b", Name: "shop"}} {
			for n := int64(1); n <= 30; n++ {
				w.Put(store.RevisionKey(ref, n), &storev1.RevisionRecord{Revision: &towlinev1.Revision{Module: ref.Name, Number: n, Metadata: &towlinev1.Metadata{Project: ref.Project}}})
			}
		}
	})
	got, err := a.ListRevisions(t.Context(), &towlinev1.ListRevisionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range got.GetRevisions() {
		want := []string{"a/shop", "a/web", "b/shop"}[i/30] + fmt.Sprint(30-i%30)
		if have := r.GetMetadata().GetProject() + "/" + r.GetModule() + fmt.Sprint(r.GetNumber()); have != want {
			t.Fatalf("row %d is %s, want %s", i, have, want)
		}
	}
}

// Lists of every kind come in pages, with totals for whoever asks, and those of revisions without files.
func TestEveryListHasPages(t *testing.T) {
	spec := &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": "secret"}}}}
	shop := fleet.ModuleRef{Project: "default", Name: "shop"}
	a := newAPI(t, func(w store.Writer) {
		putModule(w, "default", "shop", nil)
		for n := range 3 {
			name := fmt.Sprint("x", n)
			w.Put(store.RevisionKey(shop, int64(n+1)), &storev1.RevisionRecord{Revision: &towlinev1.Revision{Module: "shop", Number: int64(n + 1), Spec: spec, Metadata: &towlinev1.Metadata{Project: "default"}}})
			w.Put(store.HoldPrefix+name, &storev1.HoldRecord{Hold: &towlinev1.Hold{Id: name, Since: timestamppb.New(time.Unix(int64(100-n), 0))}})
			w.Put(store.UserPrefix+name, &storev1.UserRecord{User: &towlinev1.User{Metadata: &towlinev1.Metadata{Name: name}}})
			w.Put(store.TokenPrefix+name, &storev1.TokenRecord{Token: &towlinev1.Token{Cluster: "c", Metadata: &towlinev1.Metadata{Name: name}}})
			w.Put(store.ProjectPrefix+name, &storev1.ProjectRecord{Project: &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: name}}})
			w.Put(store.ClusterKey(fleet.ClusterName(name)), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: name}}})
			w.Put(store.DesiredKey(fleet.ClusterName(name), shop), &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: shop.String(), Generation: 1, Revision: 1}})
		}
	})
	type page struct {
		keys  []string
		next  string
		total int32
	}
	ctx := t.Context()
	for name, tc := range map[string]struct {
		want []string
		list func(token string) (page, error)
	}{
		"revisions": {[]string{"r3", "r2", "r1"}, func(token string) (page, error) {
			r, err := a.ListRevisions(ctx, &towlinev1.ListRevisionsRequest{PageSize: 2, PageToken: token, Total: true})
			return page{keysOf(r.GetRevisions(), func(x *towlinev1.Revision) string {
				return fmt.Sprint("r", x.GetNumber()) + x.GetSpec().GetSource().GetInline().GetFiles()["a.yaml"]
			}), r.GetNextPageToken(), r.GetTotal()}, err
		}},
		"holds": {[]string{"x2", "x1", "x0"}, func(token string) (page, error) {
			r, err := a.ListHolds(ctx, &towlinev1.ListHoldsRequest{PageSize: 2, PageToken: token, Total: true})
			return page{keysOf(r.GetHolds(), (*towlinev1.Hold).GetId), r.GetNextPageToken(), r.GetTotal()}, err
		}},
		"users": {[]string{"x0", "x1", "x2"}, func(token string) (page, error) {
			r, err := a.ListUsers(ctx, &towlinev1.ListUsersRequest{PageSize: 2, PageToken: token, Total: true})
			return page{keysOf(r.GetUsers(), func(x *towlinev1.User) string { return x.GetMetadata().GetName() }), r.GetNextPageToken(), r.GetTotal()}, err
		}},
		"tokens": {[]string{"x0", "x1", "x2"}, func(token string) (page, error) {
			r, err := a.ListTokens(ctx, &towlinev1.ListTokensRequest{PageSize: 2, PageToken: token, Total: true})
			return page{keysOf(r.GetTokens(), func(x *towlinev1.Token) string { return x.GetMetadata().GetName() }), r.GetNextPageToken(), r.GetTotal()}, err
		}},
		"projects": {[]string{"default", "x0", "x1", "x2"}, func(token string) (page, error) {
			r, err := a.ListProjects(ctx, &towlinev1.ListProjectsRequest{PageSize: 2, PageToken: token, Total: true})
			return page{keysOf(r.GetProjects(), func(x *towlinev1.Project) string { return x.GetMetadata().GetName() }), r.GetNextPageToken(), r.GetTotal()}, err
		}},
		"assignments": {[]string{"x0", "x1", "x2"}, func(token string) (page, error) {
			r, err := a.ListAssignments(ctx, &towlinev1.ListAssignmentsRequest{Module: "shop", PageSize: 2, PageToken: token, Total: true})
			return page{keysOf(r.GetAssignments(), (*towlinev1.Assignment).GetCluster), r.GetNextPageToken(), r.GetTotal()}, err
		}},
	} {
		var got []string
		for token := ""; ; {
			p, err := tc.list(token)
			if err != nil || len(p.keys) > 2 || int(p.total) != len(tc.want) {
				t.Fatalf("%s: %v, %v", name, p, err)
			}
			got = append(got, p.keys...)
			if token = p.next; token == "" {
				break
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if r, err := a.ListHolds(ctx, &towlinev1.ListHoldsRequest{}); err != nil || r.GetTotal() != 0 {
		t.Errorf("counted though nobody asked: %d, %v", r.GetTotal(), err)
	}
	if r, err := a.GetRevision(ctx, &towlinev1.GetRevisionRequest{Module: "shop", Number: 2}); err != nil || r.GetRevision().GetSpec().GetSource().GetInline().GetFiles()["a.yaml"] != "secret" {
		t.Errorf("a revision by itself: %v, %v", r, err)
	}
	if _, err := a.GetRevision(ctx, &towlinev1.GetRevisionRequest{Module: "shop", Number: 9}); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("one that is not there: %v", err)
	}
}

func keysOf[T any](rows []T, key func(T) string) (out []string) {
	for _, row := range rows {
		out = append(out, key(row))
	}
	return out
}

// A page is no larger than a client takes, and pages together are the whole.
func TestPagesAreBoundedInBytes(t *testing.T) {
	var rows []*towlinev1.Tracker
	for i := range 100 {
		rows = append(rows, &towlinev1.Tracker{Cluster: fmt.Sprintf("c%03d", i), Message: strings.Repeat("x", 100<<10)})
	}
	rows[50].Message = strings.Repeat("x", 3<<20)
	key := func(x *towlinev1.Tracker) string { return x.GetCluster() }
	seen, token := 0, ""
	for pages := 0; ; pages++ {
		part, next, _, err := paginate(&towlinev1.ListTrackersRequest{PageToken: token}, shownAll(rows, key))
		if err != nil || len(part) == 0 || pages > 100 {
			t.Fatalf("page %d: %d rows, %v", pages, len(part), err)
		}
		for _, r := range part {
			if r != rows[seen] {
				t.Fatalf("row %d is %s", seen, r.GetCluster())
			}
			seen++
		}
		if len(part) > 21 {
			t.Errorf("page of %d rows", len(part))
		}
		if token = next; token == "" {
			break
		}
	}
	if seen != len(rows) {
		t.Errorf("%d of %d rows", seen, len(rows))
	}
}
