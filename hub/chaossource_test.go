package hub_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// stages are some of those that people write.
func (c *chaos) stages() []*towlinev1.Stage {
	canary := &towlinev1.Stage{Name: "canary", Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"ring": "early"}}}
	rest := &towlinev1.Stage{Name: "rest"}
	switch c.rand.IntN(c.most(9, 4)) {
	case 0:
	case 1:
		canary.After = []*towlinev1.Gate{{Approval: &towlinev1.ApprovalGate{Approvers: 1}}}
	case 2, 3:
		return nil
	case 4, 5, 6:
		canary.After, rest.Before = []*towlinev1.Gate{c.gate()}, []*towlinev1.Gate{c.gate()}
	case 7:
		rest.Selector = &towlinev1.LabelSelector{MatchLabels: map[string]string{"ring": "late"}}
	case 8: // of no cluster
		return []*towlinev1.Stage{canary, {Name: "misspelt", Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"ring": "lade"}}}, rest}
	}
	return []*towlinev1.Stage{canary, rest}
}

// paces has a rollout take its time.
func (c *chaos) paces(s *towlinev1.RolloutStrategy) {
	s.MinReadyTime, s.Unmatched = pickOf(c, []string{"", "", "30ms"}), pickOf(c, []string{"", "Fail"})
	s.Rollback.MaxConcurrency, s.Rollback.Gates = pickOf(c, []string{"", "1"}), pickOf(c, []string{"", "", "Run"})
	for _, stage := range s.Stages {
		stage.MaxConcurrency, stage.Soak = pickOf(c, []string{"", "1", "50%"}), pickOf(c, []string{"", "", "50ms"})
	}
}

// gate is a window or another program that is asked, and may have said no.
func (c *chaos) gate() *towlinev1.Gate {
	switch c.rand.IntN(4) {
	case 0: // closed on most days
		return &towlinev1.Gate{Window: &towlinev1.WindowGate{Allow: []*towlinev1.Window{{Cron: "0 0 29 2 *", Duration: "1m"}}}}
	case 1:
		return &towlinev1.Gate{Window: &towlinev1.WindowGate{Deny: []*towlinev1.Window{{Cron: "0 0 29 2 *", Duration: "1m"}}}}
	}
	return &towlinev1.Gate{Webhook: &towlinev1.WebhookGate{Url: c.source.url + "/gate/" + pickOf(c, []string{"Running", "Successful", "Successful", "Failed", "Inconclusive"}),
		Interval: "100ms", Retries: new(int32)}}
}

// open lets a rollout pass the gates that hold it.
func (c *chaos) open(name string) {
	for _, at := range []struct{ stage, gate string }{{"canary", "webhook"}, {"canary", "window"}, {"rest", "webhook"}, {"rest", "window"}} {
		w := word(name, "override")
		w.Stage, w.Gate = at.stage, at.gate
		_ = c.say(c.Client, w)
	}
}

// random is a module that lists the objects of some letters.
func random(name, letters, zone string) *towlinev1.Module {
	project, called := split(name)
	m := module(called, map[string]string{"all.yaml": manifests(letters)})
	m.Metadata.Project = project
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "ZONE", ClusterLabel: "zone"}}
	if zone != "" {
		m.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"zone": zone}}}
	}
	return m
}

func manifests(letters string) string {
	var out strings.Builder
	for _, o := range letters {
		fmt.Fprintf(&out, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %q, namespace: default}\n", nameOf(string(o), "${ZONE}"))
	}
	return out.String()
}

// source serves the same as random modules list, late or not at all.
type source struct{ url string }

func newSource(t *testing.T) source {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		how, letters, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
		if how == "gate" {
			_, _ = fmt.Fprintf(w, `{"state": %q}`, letters)
			return
		}
		letters = strings.TrimSuffix(letters, ".yaml")
		if how == "failing" {
			http.NotFound(w, r)
			return
		}
		select {
		case <-time.After(time.Duration(len(letters)) * 100 * time.Millisecond):
		case <-r.Context().Done():
		}
		_, _ = fmt.Fprint(w, manifests(letters))
	}))
	t.Cleanup(server.Close)
	return source{server.URL}
}

func (s source) slow(letters string) *towlinev1.Source    { return s.at("slow", letters) }
func (s source) failing(letters string) *towlinev1.Source { return s.at("failing", letters) }

func (s source) at(how, letters string) *towlinev1.Source {
	return &towlinev1.Source{Http: &towlinev1.HttpSource{Url: s.url + "/" + how + "/" + letters + ".yaml"}}
}
