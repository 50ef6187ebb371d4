package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// labelledM is a module that lists m with a label, and only reads what a selector matches; nil: nothing.
func labelledM(reads *towlinev1.LabelSelector) *towlinev1.Module {
	m := listing("two", "m")
	for name, text := range m.Spec.Source.Inline.Files {
		m.Spec.Source.Inline.Files[name] = strings.Replace(text, "metadata: {", "metadata: {labels: {team: x}, ", 1)
	}
	if reads != nil {
		m.Spec.Policies = []*towlinev1.Policy{{Match: &towlinev1.PolicyMatch{LabelSelector: reads}, ReadOnly: new(true)}}
	}
	return m
}

// A module that only reads an object in a cluster does not have it, and is its heir where its next revision does, as one that has nothing
// of it. What it reads it may say by labels, too.
func TestWhoOnlyReadIsHeir(t *testing.T) {
	reading := listing("two", "m")
	reading.Spec.Policies = []*towlinev1.Policy{{Match: &towlinev1.PolicyMatch{Names: []string{"m"}}, ReadOnly: new(true)}}
	labelled := &towlinev1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}
	others := &towlinev1.LabelSelector{MatchExpressions: []*towlinev1.LabelSelectorRequirement{{Key: "team", Operator: "DoesNotExist"}}}
	for name, tc := range map[string]struct {
		two, next *towlinev1.Module
		heir      string
	}{
		"has nothing of it":          {listing("two", "z"), listing("two", "m"), "two"},
		"reads it":                   {reading, listing("two", "m"), "two"},
		"reads it by its label":      {labelledM(labelled), labelledM(nil), "two"},
		"reads what has no label":    {listing("two", "z"), labelledM(others), "two"},
		"is to read it by its label": {listing("two", "z"), labelledM(labelled), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.enroll("c", nil)
			w.connectWith("c", simagent.Options{Report: simagent.Ready})
			w.await("one", w.put(listing("one", "a", "m")).GetRevision())
			w.await("two", w.put(tc.two).GetRevision())
			w.put(waiting(tc.next))
			w.until("two", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
			w.await("one", w.put(listing("one", "a")).GetRevision())
			w.awaitTracker("one", "c", "at its second revision", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetReady() })
			w.awaitHeirOf("c", "one", fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "m"}, tc.heir)
		})
	}
}
