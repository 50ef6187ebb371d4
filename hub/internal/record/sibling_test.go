package record

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// What a push moves from one module to another is not let go before the other has looked at that push, whatever brought it to the first; and
// no longer than until it has looked.
func TestBehindUntilItHasLooked(t *testing.T) {
	cut := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	branch := func(name string) *towlinev1.Source {
		return &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/shop.git", Ref: &towlinev1.GitRef{Branch: name}}, Follow: &towlinev1.Follow{}}
	}
	file := func() *towlinev1.Source {
		return &towlinev1.Source{Http: &towlinev1.HttpSource{Url: "https://files.example.com/all.yaml"}, Follow: &towlinev1.Follow{}}
	}
	without := func(src *towlinev1.Source) *towlinev1.Source {
		src.Follow = nil
		return src
	}
	x, y := fleet.DigestOf([]byte("x")).Bytes(), fleet.DigestOf([]byte("y")).Bytes()
	looked := func(after time.Duration, ref string) *storev1.FollowRecord {
		return &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(after)), ResolvedRef: ref, Fetched: x}
	}
	invalid := func() *storev1.FollowRecord {
		return &storev1.FollowRecord{Looked: timestamppb.New(cut), ResolvedRef: "z", Reason: follow.ReasonInvalid}
	}
	for name, tc := range map[string]struct {
		src              *towlinev1.Source // of the other
		took             *towlinev1.Source // that its newest revision is of, if that is another one
		two              *towlinev1.Source // of the module
		has              string            // what the revision of the module is of
		looked           *storev1.FollowRecord
		fails            bool                  // its source came to nothing
		reverted         int64                 // the rollout of which a look has seen since that nothing is left to be taken up, at its revision 1
		put              time.Duration         // when the put was that its revision is of
		retried          time.Duration         // when the rollout of that was begun anew, if it was
		deleted          time.Duration         // when the other was deleted, if it was
		next             time.Duration         // when a revision of another source was cut for it, if one was
		mine             *storev1.FollowRecord // the look at the other
		again, back      bool                  // the other's rollout was begun anew, or went back, an hour later
		ahead, old       bool                  // the clock of the look was ahead; it was by a hub of before
		cut              bool                  // the module's revision was cut with its put
		leaves           bool                  // the cluster lets go by something else, an hour later
		succeeded, final bool                  // another module took the name an hour later; what goes is of the one before
		behind, unlooked bool
		overtaken        bool // the other is, by what was seen of the module
		away             bool // a later look may find the server back
	}{
		"nobody has looked":                                    {src: branch("main"), two: branch("main"), has: "x", behind: true, unlooked: true},
		"it was looked at before":                              {src: branch("main"), two: branch("main"), has: "x", looked: looked(-time.Minute, "x"), behind: true, unlooked: true, overtaken: true},
		"it was cut of that, and looked before":                {src: branch("main"), two: branch("main"), has: "y", looked: looked(-time.Minute, "x"), overtaken: true},
		"it was looked at, which changed nothing":              {src: branch("main"), two: branch("main"), has: "x", looked: looked(-time.Minute, "y")},
		"its turn took what was there, which nobody looked at": {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "y"), retried: time.Minute, behind: true, unlooked: true},
		"its turn took what a look saw":                        {src: branch("main"), two: branch("main"), has: "y", looked: looked(time.Minute, "y"), retried: time.Minute},
		"it follows nothing, and its turn took what was there": {src: branch("main"), two: without(branch("main")), has: "x", retried: time.Minute, overtaken: true},
		"its turn took again what it had, which is of what the other has": {src: branch("main"), two: branch("main"), has: "y", looked: looked(time.Minute, "z"), retried: time.Minute,
			mine: looked(2*time.Minute, "z"), behind: true, unlooked: true},
		"its turn took what the other has":                      {src: branch("main"), two: branch("main"), has: "y", looked: looked(time.Minute, "z"), put: time.Minute, cut: true, mine: looked(2*time.Minute, "z")},
		"it follows nothing, and its source failed at its turn": {src: branch("main"), two: without(branch("main")), has: "x", fails: true, put: time.Minute, behind: true},
		"it follows nothing, and its source failed long before": {src: branch("main"), two: without(branch("main")), has: "x", fails: true, put: -time.Minute, behind: true},
		"the cluster leaves later":                              {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "y"), leaves: true, behind: true, unlooked: true},
		"the cluster leaves later, and both are of one state":   {src: branch("main"), two: branch("main"), has: "y", looked: looked(-time.Minute, "y"), leaves: true, behind: true, unlooked: true},
		"the cluster leaves later, and it was looked at since":  {src: branch("main"), two: branch("main"), has: "x", looked: looked(2*time.Hour, "y"), leaves: true},
		"the cluster leaves later, and its server went away just now": {src: branch("main"), two: branch("main"), has: "x", leaves: true, behind: true, away: true,
			looked: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(2 * time.Hour)), Since: timestamppb.New(cut.Add(2*time.Hour - time.Minute)), ResolvedRef: "y", Reason: follow.ReasonUnavailable}},
		"another one has the name by now, and it cannot be rendered":  {src: branch("next"), took: branch("main"), two: branch("main"), has: "x", succeeded: true, final: true, looked: invalid(), behind: true},
		"another one has the name by now, and nobody has looked":      {src: branch("main"), two: branch("main"), has: "x", succeeded: true, final: true, looked: looked(time.Minute, "y"), behind: true, unlooked: true},
		"another one has the name by now, and it was looked at since": {src: branch("next"), took: branch("main"), two: branch("main"), has: "x", succeeded: true, final: true, looked: looked(2*time.Hour, "z")},
		"another one has the name by now, which lets go":              {src: branch("next"), took: branch("main"), two: branch("main"), has: "x", succeeded: true, looked: invalid()},
		"the branch was set back":                                     {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "x"), overtaken: true},
		"the branch was set back, and the other has seen it":          {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "x"), mine: looked(2*time.Minute, "x")},
		"the branch was set back, which the other cannot take up": {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "x"),
			mine: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(2 * time.Minute)), ResolvedRef: "x", Reason: follow.ReasonPaused}, overtaken: true},
		"the branch was set back, and the server was away when the other looked": {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "x"),
			mine: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(2 * time.Minute)), ResolvedRef: "y", Reason: follow.ReasonUnavailable}, overtaken: true},
		"the server has what was before, which the other does not take up, and is away by now": {src: branch("main"), two: branch("main"), has: "x", behind: true,
			mine:   &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(2 * time.Minute)), ResolvedRef: "x", Reason: follow.ReasonGoesBack},
			looked: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(3 * time.Minute)), ResolvedRef: "x", Reason: follow.ReasonUnavailable}, away: true},
		"it was looked at since, which changed nothing":            {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "y")},
		"the branch was set back, which the other does not follow": {src: without(branch("main")), two: branch("main"), has: "x", looked: looked(time.Minute, "x")},
		"the other is deleted, and nobody has looked since":        {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "y"), deleted: time.Hour, behind: true, unlooked: true},
		"the other is deleted, and its server is away": {src: branch("main"), two: branch("main"), has: "x", deleted: time.Hour,
			looked: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(2 * time.Hour)), ResolvedRef: "y", Reason: follow.ReasonUnavailable}},
		"the other is deleted, and its server went away just now": {src: branch("main"), two: branch("main"), has: "x", deleted: time.Hour, behind: true, away: true,
			looked: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(2 * time.Hour)), Since: timestamppb.New(cut.Add(2*time.Hour - time.Minute)), ResolvedRef: "y", Reason: follow.ReasonUnavailable}},
		"the other is deleted, and it was looked at since":                {src: branch("main"), two: branch("main"), has: "x", looked: looked(2*time.Hour, "y"), deleted: time.Hour},
		"the other has another source by now":                             {src: branch("next"), two: branch("main"), has: "x", next: time.Hour, looked: looked(time.Minute, "y"), behind: true, unlooked: true},
		"the other has another source by now, and it cannot be rendered":  {src: branch("next"), two: branch("main"), has: "x", next: time.Hour, looked: invalid(), behind: true},
		"the other has another source by now, and it was looked at since": {src: branch("next"), two: branch("main"), has: "x", next: time.Hour, looked: looked(2*time.Hour, "z")},
		"the other has another source by now, and the server of the old one is away": {src: branch("next"), two: branch("main"), has: "x", next: time.Hour,
			looked: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(2 * time.Hour)), ResolvedRef: "y", Reason: follow.ReasonUnavailable}},
		"the other's revision has begun anew":                                  {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "y"), again: true, behind: true, unlooked: true},
		"the other's revision has begun anew, and it was looked at since":      {src: branch("main"), two: branch("main"), has: "x", looked: looked(2*time.Hour, "y"), again: true},
		"the other goes back":                                                  {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "y"), back: true, behind: true, unlooked: true},
		"the other went back, and it was looked at since":                      {src: branch("main"), two: branch("main"), has: "x", looked: looked(2*time.Hour, "y"), back: true},
		"it was looked at before, by a clock that was ahead":                   {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "x"), ahead: true, behind: true, unlooked: true, overtaken: true},
		"it was looked at by a hub of before":                                  {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "x"), old: true, behind: true, unlooked: true, overtaken: true},
		"it was looked at by a hub of before, which changed nothing":           {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "y"), old: true},
		"it follows another branch":                                            {src: branch("main"), two: branch("next"), has: "x"},
		"it follows nothing":                                                   {src: branch("main"), two: without(branch("main")), has: "x"},
		"the other follows nothing":                                            {src: without(branch("main")), two: branch("main"), has: "x", behind: true, unlooked: true},
		"the other comes from elsewhere":                                       {src: branch("main"), took: branch("next"), two: branch("main"), has: "x"},
		"the other comes from elsewhere by now, and nothing is left of before": {src: branch("next"), took: branch("next"), two: branch("main"), has: "x", looked: invalid()},
		"its source failed":                                                    {src: branch("main"), two: branch("main"), has: "x", fails: true, behind: true},
		"it cannot be rendered": {src: branch("main"), two: branch("main"), has: "x", behind: true, overtaken: true,
			looked: invalid()},
		"it could not be rendered, and was put since": {src: branch("main"), two: branch("main"), has: "y", put: time.Minute, looked: invalid()},
		"it was put since, of something else":         {src: branch("main"), two: branch("main"), has: "x", put: time.Minute, looked: invalid(), behind: true, unlooked: true},
		"it could not be rendered, and its old one was retried": {src: branch("main"), two: branch("main"), has: "x", put: -time.Minute, retried: 2 * time.Minute, behind: true,
			looked: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(time.Minute)), ResolvedRef: "y", Reason: follow.ReasonInvalid}},
		"a file":                     {src: file(), two: file(), behind: true, unlooked: true},
		"a file, looked at before":   {src: file(), two: file(), looked: looked(-time.Minute, ""), behind: true, unlooked: true, overtaken: true},
		"a file, looked at after":    {src: file(), two: file(), looked: looked(time.Minute, ""), overtaken: true},
		"a file, which it has, too":  {src: file(), two: file(), looked: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(-time.Minute)), Fetched: y}},
		"a file, of another address": {src: file(), two: branch("main")},
		"its source failed, and a look found again what it has": {src: branch("main"), two: branch("main"), has: "x", fails: true, reverted: 1, looked: looked(time.Minute, "y")},
		"its source failed, and a look before found what it has": {src: branch("main"), two: branch("main"), has: "x", fails: true, reverted: 1, looked: looked(-time.Minute, "x"),
			behind: true, unlooked: true, overtaken: true},
		"its source failed once more since": {src: branch("main"), two: branch("main"), has: "x", fails: true, reverted: 1, retried: time.Minute, looked: looked(time.Minute, "y"), behind: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.New(t)
			one, two := fleet.ModuleRef{Project: "default", Name: "one"}, fleet.ModuleRef{Project: "default", Name: "two"}
			rec := func(name string, src *towlinev1.Source) *storev1.ModuleRecord {
				return &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: name, Project: "default", Uid: "u" + name, Generation: 1},
					Spec: &towlinev1.ModuleSpec{Source: src}}}
			}
			took := tc.src
			if tc.took != nil {
				took = tc.took
			}
			if tc.next != 0 {
				took = branch("main")
			}
			to := "y"
			if took.GetHttp() != nil {
				to = ""
			}
			revision := func(number int64, to string, src *towlinev1.Source, files []byte) *storev1.RevisionRecord {
				return &storev1.RevisionRecord{Artifact: files, Revision: &towlinev1.Revision{Number: number, ModuleGeneration: 1, ResolvedRef: to, Spec: &towlinev1.ModuleSpec{Source: src}}}
			}
			rollout := func(name fleet.ModuleRef, number, of int64, at time.Duration) func(store.Writer) {
				ro := &towlinev1.Rollout{Number: number, Revision: of, Metadata: &towlinev1.Metadata{CreationTimestamp: timestamppb.New(cut.Add(at))}, Status: &towlinev1.RolloutStatus{State: "Succeeded"}}
				if of == 0 {
					ro.Status.State = "Failed"
				}
				return func(w store.Writer) { w.Put(store.RolloutKey(name, number), &storev1.RolloutRecord{Rollout: ro}) }
			}
			did := func(steps ...func(store.Writer)) int64 {
				t.Helper()
				rev, err := s.Update(t.Context(), func(w store.Writer) error {
					w.Put(store.HubKey, &storev1.Hub{Incarnation: "i"})
					for _, step := range steps {
						step(w)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return rev
			}
			of := int64(1)
			if tc.fails {
				of = 0
			}
			theirs := func(w store.Writer) { w.Put(store.RevisionKey(two, 1), revision(1, tc.has, tc.two, x)) }
			before := []func(store.Writer){func(w store.Writer) { w.Put(store.ModuleKey(two), rec("two", tc.two)) }}
			first, second := []func(store.Writer){func(w store.Writer) {
				w.Put(store.ModuleKey(one), rec("one", tc.src))
				w.Put(store.RevisionKey(one, 2), revision(2, to, took, y))
			}, rollout(one, 2, 2, 0)}, []func(store.Writer){}
			if tc.put > 0 {
				second = append(second, rollout(two, 1, of, tc.put))
			} else {
				before = append(before, rollout(two, 1, of, tc.put))
			}
			if tc.retried != 0 {
				second = append(second, rollout(two, 2, of, tc.retried))
			}
			if tc.again {
				second = append(second, rollout(one, 3, 2, time.Hour))
			}
			if tc.back {
				second = append(second, func(w store.Writer) {
					ro, _, _ := store.Get[*storev1.RolloutRecord](w, store.RolloutKey(one, 2))
					ro = proto.CloneOf(ro)
					ro.BackSince = w.Revision() + 1
					w.Put(store.RolloutKey(one, 2), ro)
				})
			}
			if tc.next != 0 {
				second = append(second, rollout(one, 3, 3, tc.next), func(w store.Writer) { w.Put(store.RevisionKey(one, 3), revision(3, to, tc.src, y)) })
			}
			if tc.deleted != 0 {
				gone := rec("one", tc.src)
				gone.Deleting = "Delete"
				second = append(second, func(w store.Writer) { w.Put(store.ModuleKey(one), gone) })
			}
			if tc.cut {
				second = append(second, theirs)
			} else {
				before = append(before, theirs)
			}
			if tc.leaves {
				second = append(second, func(w store.Writer) {
					w.Put(store.DesiredKey("c", one), &storev1.DesiredRecord{LetGoAt: w.Revision() + 1})
				})
			}
			if tc.succeeded {
				next := rec("one", tc.src)
				next.FirstRollout, next.FirstRevision = 3, 3
				second = append(second, func(w store.Writer) {
					w.Put(store.ModuleKey(one), next)
					w.Put(store.StartKey(one, 3), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 3, Status: &towlinev1.RolloutStatus{State: "Pending"}}})
				})
			}
			did(before...)
			was := did(first...)
			is := did(second...)
			look := func(ref fleet.ModuleRef, uid string, f *storev1.FollowRecord) func(store.Writer) {
				return func(w store.Writer) {
					if f == nil {
						return
					}
					f.ModuleUid, f.Generation, f.Incarnation = uid, 1, "i"
					switch after := f.GetLooked().AsTime().Sub(cut); {
					case after < 0 || tc.ahead:
						f.Began = was - 1
					case after < time.Hour:
						f.Began = was
					default:
						f.Began = is
					}
					if tc.old {
						f.Began, f.Incarnation = 0, ""
					}
					w.Put(store.FollowKey(ref), f)
				}
			}
			if tc.reverted != 0 {
				tc.looked.CaughtUp, tc.looked.Revision = tc.reverted, 1
			}
			rev := did(look(two, "utwo", tc.looked), look(one, "uone", tc.mine))
			if err := s.View(t.Context(), rev, func(r store.Reader) error {
				m, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(two))
				x, by := NewSuccession(library{}, one), decision{final: tc.final}
				if tc.leaves {
					by.since = is
				}
				x.by = by
				lets := newLetting(r, one)
				s := lets.sibling(r, two, m)
				behind, unlooked, overtaken := s != nil && lets.behind(s, by), x.Unlooked(t.Context(), r, two, m), lets.overtakenBy(s)
				if tc.away && !x.Away(t.Context(), r, two, m) {
					t.Error("nobody looks again before its interval")
				}
				if behind != tc.behind || unlooked != tc.unlooked || overtaken != tc.overtaken {
					t.Errorf("behind %v, unlooked %v, overtaken %v", behind, unlooked, overtaken)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
