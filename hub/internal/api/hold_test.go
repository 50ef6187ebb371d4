package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// Whoever holds what somebody else holds already does not end that earlier: writes would begin while the other one counts
// on the hold.
func TestHoldOfSomebodyElseIsNotShortened(t *testing.T) {
	now := time.Now()
	in := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }
	for _, tc := range []struct {
		name          string
		there, then   *timestamppb.Timestamp // nil: without an end
		by            string
		refused, ends bool // ends: the hold ends at then
	}{
		{"an end, where there was none", nil, in(time.Hour), "ben", true, false},
		{"an earlier end", in(2 * time.Hour), in(time.Hour), "ben", true, false},
		{"a later end", in(time.Hour), in(2 * time.Hour), "ben", false, true},
		{"no end, where there was one", in(time.Hour), nil, "ben", false, true},
		{"an earlier end of one's own", in(2 * time.Hour), in(time.Hour), "ana", false, true},
		{"after one that has ended", in(-time.Hour), in(time.Hour), "ben", false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newAPI(t, func(w store.Writer) {
				w.Put(store.ClusterKey("c1"), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1"}}})
			})
			as := func(name string) context.Context {
				return rpc.WithCaller(t.Context(), rpc.Caller{Kind: rpc.KindUser, Name: name, Role: rpc.RoleAdmin})
			}
			first, err := a.PutHold(as("ana"), &towlinev1.PutHoldRequest{Cluster: "c1", Reason: "migration"})
			if err != nil {
				t.Fatal(err)
			}
			first.Hold.Until = tc.there // none is put with an end that is past
			if _, err := a.o.Store.Update(t.Context(), func(w store.Writer) error {
				w.Put(store.HoldPrefix+first.GetHold().GetId(), &storev1.HoldRecord{Hold: first.GetHold()})
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			_, err = a.PutHold(as(tc.by), &towlinev1.PutHoldRequest{Cluster: "c1", Until: tc.then})
			if refused := errors.Is(err, fleet.ErrConflict); refused != tc.refused || refused && !strings.Contains(err.Error(), "ana") || !refused && err != nil {
				t.Errorf("refused %t: %v", refused, err)
			}
			if _, err := a.o.Store.Barrier(t.Context()); err != nil {
				t.Fatal(err)
			}
			list, err := a.ListHolds(as("ana"), &towlinev1.ListHoldsRequest{})
			if err != nil || len(list.GetHolds()) != 1 {
				t.Fatalf("%v, %v", list, err)
			}
			want := first.GetHold().GetUntil()
			if tc.ends {
				want = tc.then
			}
			if got := list.GetHolds()[0].GetUntil(); !got.AsTime().Equal(want.AsTime()) {
				t.Errorf("ends at %v, want %v", got, want)
			}
		})
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
