package audit

import (
	"fmt"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestHistoryOfAClusterLeavesNothingOut: what was done in more clusters than an entry names may have been done in any, and is in the history of each.
func TestHistoryOfAClusterLeavesNothingOut(t *testing.T) {
	var clusters []string
	for i := range named + 1 {
		clusters = append(clusters, fmt.Sprintf("c%03d", i))
	}
	for _, tc := range []struct {
		detail, cluster string
		want            bool
	}{
		{In(clusters[:named], "r7"), "c099", true},
		{In(clusters[:named], "r7"), "c100", false},
		{In(clusters, "r7"), "c099", true},
		{In(clusters, "r7"), "c100", true},
		{"r7", "c001", false},
	} {
		e := &towlinev1.AuditEntry{Method: "PinClusters", SubjectKind: "module", Subject: "shop", Detail: tc.detail}
		if got := (Selection{Kind: "cluster", Subject: tc.cluster}).matches(e); got != tc.want {
			t.Errorf("%s, in %.40s: %t", tc.cluster, tc.detail, got)
		}
	}
}
