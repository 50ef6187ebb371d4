package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// Whoever holds what somebody else holds already has a hold of their own beside it: the first one keeps its reason and its end, and does not end
// with the second. Who puts theirs again, for the same reason, replaces that; for another reason it is another one: several people may go by one name.
func TestHoldOfSomebodyElseStaysBesideOnesOwn(t *testing.T) {
	now := time.Now()
	in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }
	for _, tc := range []struct {
		name        string
		there, then *timestamppb.Timestamp // nil: without an end
		by, reason  string
		both        bool
	}{
		{"an end, where there was none", nil, in(time.Hour), "ben", "a look", true},
		{"an earlier end", in(2 * time.Hour), in(time.Hour), "ben", "a look", true},
		{"a later end", in(time.Hour), in(2 * time.Hour), "ben", "a look", true},
		{"no end, where there was one", in(time.Hour), nil, "ben", "a look", true},
		{"an earlier end of one's own", in(2 * time.Hour), in(time.Hour), "ana", "migration", false},
		{"one's own, for another reason", in(2 * time.Hour), in(time.Hour), "ana", "a look", true},
		{"one's own, without a reason", in(2 * time.Hour), in(time.Hour), "ana", "", true},
		{"of the same reason", in(2 * time.Hour), in(time.Hour), "ben", "migration", true},
		{"after one that has ended", in(-time.Hour), in(time.Hour), "ben", "a look", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newAPI(t, func(w store.Writer) {
				w.Put(store.ClusterKey("c1"), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1"}}})
			})
			as := func(name string) context.Context {
				return rpc.WithCaller(t.Context(), rpc.Caller{Kind: rpc.KindUser, Name: name, Role: rpc.RoleAdmin})
			}
			put := func(by, reason string, until *timestamppb.Timestamp) *towlinev1.Hold {
				t.Helper()
				got, err := a.PutHold(as(by), &towlinev1.PutHoldRequest{Cluster: "c1", Until: until, Reason: reason, Shorten: true})
				if err != nil {
					t.Fatal(err)
				}
				return got.GetHold()
			}
			list := func() []*towlinev1.Hold {
				t.Helper()
				if _, err := a.o.Store.Barrier(t.Context()); err != nil {
					t.Fatal(err)
				}
				got, err := a.ListHolds(as("ana"), &towlinev1.ListHoldsRequest{})
				if err != nil {
					t.Fatal(err)
				}
				return got.GetHolds()
			}
			first := put("ana", "migration", nil)
			first.Until = tc.there // none is put with an end that is past
			if _, err := a.o.Store.Update(t.Context(), func(w store.Writer) error {
				w.Put(store.HoldPrefix+first.GetId(), &storev1.HoldRecord{Hold: first})
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			put(tc.by, tc.reason, in(30*time.Minute))
			second := put(tc.by, tc.reason, tc.then)
			holds := list()
			if (len(holds) == 2) != tc.both || len(holds) > 2 {
				t.Fatalf("holds %v", holds)
			}
			last := holds[len(holds)-1]
			if last.GetBy() != tc.by || last.GetReason() != tc.reason || !last.GetUntil().AsTime().Equal(tc.then.AsTime()) {
				t.Errorf("the second is %v", last)
			}
			if !tc.both {
				return
			}
			if holds[0].GetBy() != "ana" || holds[0].GetReason() != "migration" || !holds[0].GetUntil().AsTime().Equal(tc.there.AsTime()) {
				t.Errorf("the first is %v", holds[0])
			}
			if _, err := a.ConfirmHold(as(tc.by), &towlinev1.ConfirmHoldRequest{Id: second.GetId(), Digest: second.GetDigest()}); err != nil {
				t.Fatal(err)
			}
			if holds := list(); len(holds) != 1 || holds[0].GetBy() != "ana" {
				t.Errorf("holds after the second was ended: %v", holds)
			}
			if err := a.o.Store.View(t.Context(), 0, func(r store.Reader) error {
				if !record.ReadHolds(r, now).Frozen(fleet.ModuleRef{Project: fleet.DefaultProject, Name: "shop"}, "c1") {
					t.Error("nothing is held")
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
			// The first one ends; the other's, put again, is the one that it was.
			again := put(tc.by, tc.reason, nil)
			if _, err := a.ConfirmHold(as("ana"), &towlinev1.ConfirmHoldRequest{Id: first.GetId()}); err != nil {
				t.Fatal(err)
			}
			if put(tc.by, tc.reason, tc.then).GetId() != again.GetId() || len(list()) != 1 {
				t.Errorf("holds %v", list())
			}
		})
	}
}

// A hold gets no weaker unless that is said: somebody else, or another job, may go by the same name and count on it. Said, it does, at once.
func TestHoldEndsNoSoonerUnasked(t *testing.T) {
	now := time.Now()
	in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }
	for _, tc := range []struct {
		name        string
		there, then *timestamppb.Timestamp // nil: without an end
		refused     string
	}{
		{"an end, where there was none", nil, in(time.Hour), "ana holds that for the same reason already, without an end, and it would end at " + in(time.Hour).AsTime().UTC().Format(time.RFC3339)},
		{"an earlier end", in(2 * time.Hour), in(time.Hour), "already, until " + in(2*time.Hour).AsTime().UTC().Format(time.RFC3339)},
		{"the same end", in(time.Hour), in(time.Hour), ""},
		{"a later end", in(time.Hour), in(2 * time.Hour), ""},
		{"no end, where there was one", in(time.Hour), nil, ""},
		{"none, where there was none", nil, nil, ""},
	} {
		a := newAPI(t, func(w store.Writer) {
			w.Put(store.ClusterKey("c1"), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1"}}})
		})
		ana := rpc.WithCaller(t.Context(), rpc.Caller{Kind: rpc.KindUser, Name: "ana", Role: rpc.RoleAdmin})
		first, err := a.PutHold(ana, &towlinev1.PutHoldRequest{Cluster: "c1", Until: tc.there, Reason: "migration"})
		if err != nil {
			t.Fatal(err)
		}
		req := &towlinev1.PutHoldRequest{Cluster: "c1", Until: tc.then, Reason: "migration"}
		_, err = a.PutHold(ana, req)
		if (err != nil) != (tc.refused != "") || err != nil && (!errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), tc.refused)) {
			t.Errorf("%s: %v", tc.name, err)
		}
		want := tc.then
		if tc.refused != "" {
			want = tc.there
		}
		is := func(want *timestamppb.Timestamp) {
			t.Helper()
			if _, err := a.o.Store.Barrier(t.Context()); err != nil {
				t.Fatal(err)
			}
			got, err := a.ListHolds(ana, &towlinev1.ListHoldsRequest{})
			if err != nil || len(got.GetHolds()) != 1 || got.GetHolds()[0].GetId() != first.GetHold().GetId() || !proto.Equal(got.GetHolds()[0].GetUntil(), want) {
				t.Errorf("%s: holds %v, %v", tc.name, got.GetHolds(), err)
			}
		}
		is(want)
		req.Shorten = true
		if _, err := a.PutHold(ana, req); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		is(tc.then)
	}
}

// Two holds are two, however alike the digests of what they hold are: the second would else end the first one, and writes begin.
func TestHoldsOfTwoClustersAreTwo(t *testing.T) {
	id := func(cluster string) string {
		d := fleet.DigestOf([]byte(strings.Join([]string{record.HoldFreeze, "", "", cluster}, "\x00")))
		return string(d[:4])
	}
	seen := map[string]string{}
	var one, other string
	for i := 0; other == ""; i++ {
		name := fmt.Sprintf("c%d", i)
		if was, found := seen[id(name)]; found {
			one, other = was, name
		}
		seen[id(name)] = name
	}
	a := newAPI(t, func(w store.Writer) {
		for _, name := range []string{one, other} {
			w.Put(store.ClusterKey(fleet.ClusterName(name)), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: name}}})
		}
	})
	var last int64
	for _, name := range []string{one, other} {
		put, err := a.PutHold(t.Context(), &towlinev1.PutHoldRequest{Cluster: name})
		if err != nil {
			t.Fatal(err)
		}
		last = put.GetRevision()
	}
	list, err := a.ListHolds(t.Context(), &towlinev1.ListHoldsRequest{MinRevision: last})
	if err != nil || len(list.GetHolds()) != 2 {
		t.Errorf("of %s and %s are held: %v, %v", one, other, list.GetHolds(), err)
	}
}

// A rollout that asks whether clusters may lose a module asks about each of them: whoever looks at one of the clusters, or at the holds there, sees
// that, and nobody else does. The list of a hold may have thousands of clusters, so the status of each has its own and how many others there are.
func TestClusterShowsThatItWaitsForAConfirmToLeave(t *testing.T) {
	leave := &towlinev1.Hold{Id: "leave-1", Kind: record.HoldConfirm, Project: "team", Module: "shop", Code: fleet.HoldLeaves, Items: []string{"c1", "c2"}, Digest: "d"}
	a := newAPI(t, func(w store.Writer) {
		for _, name := range []string{"c1", "c2", "c3", "shop"} {
			w.Put(store.ClusterKey(fleet.ClusterName(name)), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: name}}})
		}
		w.Put(store.HoldPrefix+leave.Id, &storev1.HoldRecord{Hold: leave})
		prunes := &towlinev1.Hold{Id: "prune-1", Kind: record.HoldConfirm, Project: "team", Catalog: "base", Code: fleet.HoldPrunes, Items: []string{"shop"}}
		w.Put(store.HoldPrefix+prunes.Id, &storev1.HoldRecord{Hold: prunes}) // its items are modules
	})
	for name, others := range map[string]string{"c1": "and 1 more", "c2": "and 1 more", "c3": "", "shop": ""} {
		c, err := a.GetCluster(t.Context(), &towlinev1.GetClusterRequest{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		list, err := a.ListHolds(t.Context(), &towlinev1.ListHoldsRequest{Cluster: name})
		if err != nil {
			t.Fatal(err)
		}
		holds := c.GetCluster().GetStatus().GetHolds()
		if others == "" {
			if len(holds)+len(list.GetHolds()) != 0 {
				t.Errorf("cluster %s is to stay, and shows %v, %v", name, holds, list.GetHolds())
			}
			continue
		}
		if len(holds) != 1 || holds[0].GetId() != leave.Id || holds[0].GetDigest() != leave.Digest || !slices.Equal(holds[0].GetItems(), []string{name, others}) {
			t.Errorf("cluster %s waits for a confirm to leave, and shows %v", name, holds)
		}
		if got := list.GetHolds(); len(got) != 1 || !slices.Equal(got[0].GetItems(), leave.Items) {
			t.Errorf("the holds of cluster %s are %v", name, got)
		}
	}
}
