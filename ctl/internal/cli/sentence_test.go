package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
)

// Names stay as they are at the beginning of a sentence.
func TestSentence(t *testing.T) {
	for in, want := range map[string]string{
		"":                           "",
		"no cluster is there":        "No cluster is there",
		"waits; then it goes on":     "Waits; then it goes on",
		"a.yaml:1: is not YAML":      "a.yaml:1: is not YAML",
		"prod-eu-07 is away":         "prod-eu-07 is away",
		"shop/2 took over":           "shop/2 took over",
		"failures: 2 of 3 tolerated": "Failures: 2 of 3 tolerated",
		"ärgert die Kasse":           "Ärgert die Kasse",
	} {
		if got := sentence(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// However long the cause of a failed rollout is, a list says it.
func TestListNamesTheCauseOfAFailure(t *testing.T) {
	m := &v1.Module{Status: &v1.ModuleStatus{Rollout: "shop/1", RolloutState: "Failed",
		RolloutReason: "SourceFailed", RolloutFacts: &v1.Facts{Detail: "charts/web/templates/deployment.yaml:17: Deployment web: has no namespace: write metadata.namespace"}}}
	if got := (&app{}).moduleRollout(m).Text; got != "Failed shop/1: "+m.GetStatus().GetRolloutFacts().GetDetail() {
		t.Errorf("%q", got)
	}
}

// A description has all of the sentence that a table cuts, and has it once.
func TestDescribeHasTheWholeMessage(t *testing.T) {
	m := surfaceModules()[0]
	hub := &fakeHub{modules: []*v1.Module{m}}
	for _, why := range []string{"short", strings.Repeat("long ", 30) + "enough"} {
		m.Status.RolloutState, m.Status.Rollout, m.Status.RolloutReason, m.Status.RolloutFacts = "Failed", "base/7", "SourceFailed", &v1.Facts{Detail: why}
		if got := hub.run(t, run{}, "describe", "module", "base").out; strings.Count(got, why) != 1 || strings.Contains(got, "\n: ") {
			t.Errorf("%s", got)
		}
	}
}
