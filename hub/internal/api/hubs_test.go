package api

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// Who asks a hub about itself learns which hubs there are, and that they are not all of one version.
func TestHubsOfSeveralVersionsAreSaid(t *testing.T) {
	of := func(at string, began int64, version string) *storev1.HubRecord {
		return &storev1.HubRecord{Instance: at, Address: at, Version: version, Since: timestamppb.New(time.Unix(began, 0))}
	}
	for name, tt := range map[string]struct {
		hubs []*storev1.HubRecord
		said string
	}{
		"one":                        {[]*storev1.HubRecord{of("a:1", 1, "v2")}, ""},
		"all of one":                 {[]*storev1.HubRecord{of("a:1", 2, "v2"), of("b:1", 1, "v2")}, ""},
		"of two":                     {[]*storev1.HubRecord{of("a:1", 2, "v2"), of("b:1", 1, "v1")}, "v1 at b:1, v2 at a:1"},
		"one that did not say which": {[]*storev1.HubRecord{of("a:1", 1, "v2"), of("b:1", 2, "")}, "v2 at a:1, an unknown one at b:1"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPIOn(t, storetest.New(t), func(w store.Writer) {
				for _, h := range tt.hubs {
					w.Put(store.PeerPrefix+h.GetInstance(), h)
				}
			})
			info, err := a.GetServerInfo(t.Context(), &towlinev1.GetServerInfoRequest{})
			if err != nil || len(info.GetHubs()) != len(tt.hubs) {
				t.Fatalf("%v, %v", info, err)
			}
			note := info.GetAttention()
			if got := note.GetFacts().GetDetail(); got != tt.said || (note.GetCode() == fleet.WarnHubVersions) != (tt.said != "") {
				t.Errorf("said %q with %q, want %q", got, note.GetCode(), tt.said)
			}
		})
	}
}
