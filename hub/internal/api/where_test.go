package api

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
)

var aRow = &towlinev1.Object{Cluster: "c1", Project: "default", Module: "shop", Revision: 7, Sync: "Synced", Health: "Degraded", Drift: "Drifted",
	Reason: "ImagePullBackOff", Message: "pod web-1: ImagePullBackOff", ChangedBy: "kubectl-edit", Field: "/spec/replicas", Want: "3", Live: "5", Seen: 4,
	Since:  timestamppb.New(time.Date(2026, 7, 3, 12, 0, 0, 0, time.UTC)),
	Object: &towlinev1.ObjectReference{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: "web", Name: "web"}}

func TestConditionsOnRows(t *testing.T) {
	a := newAPI(t, func(store.Writer) {})
	a.now = func() time.Time { return aRow.Since.AsTime().Add(time.Hour) }
	for expression, want := range map[string]bool{
		"": true,
		`kind == "Deployment" && health != "Healthy"`:                         true,
		`health in ["Healthy", "Suspended"]`:                                  false,
		`cluster.startsWith("c") && module == "shop" && revision >= 7`:        true,
		`group == "apps" && apiVersion == "apps/v1" && ns == "web"`:           true,
		`reason == "ImagePullBackOff" || message.contains("CrashLoop")`:       true,
		`drift == "Drifted" && changedBy.matches("^kubectl") && seen > 3`:     true,
		`field == "/spec/replicas" && int(live) > int(want)`:                  true,
		`now - since > duration("30m")`:                                       true,
		`now - since > duration("2h")`:                                        false,
		`since < timestamp("2026-07-03T12:00:01Z") && !extra && !away`:        true,
		`wasHealth == "" && lastHeard == timestamp(0) && sync != "OutOfSync"`: true,
	} {
		c, err := a.conditionOf(&towlinev1.ObjectFilter{Expression: expression}, listedRows)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if got, err := c.holds(t.Context(), aRow); err != nil || got != want {
			t.Errorf("%s: %t, %v; want %t", expression, got, err, want)
		}
	}
}

func TestConditionsThatCannotBe(t *testing.T) {
	a := newAPI(t, func(store.Writer) {})
	for expression, want := range map[string]string{
		`helth == "Healthy"`:                     `filter.expression: there is no field "helth"; the fields are: cluster, project, module, revision, `,
		`kind == Deployment`:                     `there is no field "Deployment"; the fields are: cluster, `,
		`namespace == "web"`:                     `filter.expression: namespace is a reserved word of CEL; write ns`,
		`kind == 3`:                              `filter.expression: line 1, column 6: found no matching overload for '_==_' applied to '(string, int)'`,
		`kind`:                                   `filter.expression: is a string; write a condition that is true or false`,
		`kind ==`:                                `filter.expression: line 1, column 8: Syntax error`,
		`health == "degraded"`:                   `filter.expression: health is never "degraded"; it is one of Healthy, Progressing, Degraded,`,
		`"Insync" != wasDrift`:                   `wasDrift is never "Insync"; it is one of InSync,`,
		`sync in ["Synced", "Unsynced"]`:         `sync is never "Unsynced"`,
		strings.Repeat("true || ", 600) + "true": `filter.expression: has 4804 bytes; at most 4096`,
	} {
		if _, err := a.conditionOf(&towlinev1.ObjectFilter{Expression: expression}, listedRows); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", expression, err, want)
		}
	}
	if _, err := a.conditionOf(&towlinev1.ObjectFilter{Expression: `now > since`}, watchedRows); err == nil || !strings.Contains(err.Error(), "now is not known to a watch") {
		t.Errorf("now in a watch: %v", err)
	}
	if _, err := a.ListTrackers(t.Context(), &towlinev1.ListTrackersRequest{Filter: &towlinev1.ObjectFilter{Expression: "true"}}); err == nil {
		t.Error("trackers are listed by an expression over objects")
	}
}

// What goes wrong on a row names the row, and what costs too much ends instead of keeping the hub.
func TestConditionsThatFailOnARow(t *testing.T) {
	a := newAPI(t, func(store.Writer) {})
	for expression, want := range map[string]string{
		`int(reason) == 3`: `filter.expression: Deployment web in cluster c1: `,
		`[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, kind != message)))))`: "takes too much work; compare less",
	} {
		c, err := a.conditionOf(&towlinev1.ObjectFilter{Expression: expression}, listedRows)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = c.holds(t.Context(), aRow); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", expression, err, want)
		}
	}
	c, err := a.conditionOf(&towlinev1.ObjectFilter{Expression: `kind == "Deployment"`}, listedRows)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := c.holds(t.Context(), aRow); !ok || err != nil || c.spent == 0 {
		t.Fatalf("%t, %v, cost %d", ok, err, c.spent)
	}
	c.spent = maxRowsCost
	if _, err := c.holds(t.Context(), aRow); err == nil || !strings.Contains(err.Error(), "too much work for so many objects") {
		t.Errorf("beyond the limit of a list: %v", err)
	}
}

// A watch whose condition does not compile ends at once.
func TestWatchOfNoCondition(t *testing.T) {
	a := newAPI(t, func(store.Writer) {})
	s := &objectEvents{ctx: t.Context(), ch: make(chan *towlinev1.WatchObjectsResponse, 1)}
	if err := a.WatchObjects(&towlinev1.WatchObjectsRequest{Filter: &towlinev1.ObjectFilter{Expression: "kid == name"}}, s); err == nil || !strings.Contains(err.Error(), `no field "kid"`) {
		t.Errorf("got %v", err)
	}
}
