package rollout_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

func TestAmount(t *testing.T) {
	for _, c := range []struct {
		in    string
		total int
		want  int
	}{{"", 10, 0}, {"3", 10, 3}, {"0", 10, 0}, {"25%", 7, 1}, {"25%", 3, 0}, {"100%", 7, 7}, {"33%", 100, 33}} {
		a, err := rollout.ParseAmount(c.in)
		if err != nil || a.Resolve(c.total) != c.want || a.String() != c.in {
			t.Errorf("%q of %d is %d, %q, %v; want %d", c.in, c.total, a.Resolve(c.total), a, err, c.want)
		}
	}
	for _, bad := range []string{"-1", "x", "25 %", "101%", "%", "1.5", "+3", "99999999999"} {
		if a, err := rollout.ParseAmount(bad); err == nil {
			t.Errorf("%q is read as %v", bad, a)
		}
	}
}

func TestValidateNamesTheField(t *testing.T) {
	gate := func(g rollout.Gate) rollout.Strategy {
		return rollout.Strategy{Stages: []rollout.Stage{{Name: "a", After: []rollout.Gate{g}}}}
	}
	sel := &fleet.Selector{MatchLabels: map[string]string{"a": "b"}}
	for path, s := range map[string]rollout.Strategy{
		"rollout.onFailure":                {OnFailure: "Explode"},
		"rollout.offline":                  {Offline: "skip"},
		"rollout.lateJoiners":              {LateJoiners: "x"},
		"rollout.unmatched":                {Unmatched: "x"},
		"rollout.onSupersede":              {OnSupersede: "x"},
		"rollout.rollback.scope":           {Rollback: rollout.Rollback{Scope: "x"}},
		"rollout.rollback.gates":           {Rollback: rollout.Rollback{Gates: "x"}},
		"rollout.rollback.maxConcurrency":  {Rollback: rollout.Rollback{MaxConcurrency: rollout.Number(0)}},
		"rollout.minReadyTime":             {MinReadyTime: -1},
		"rollout.progressDeadline":         {ProgressDeadline: -1},
		"rollout.stages[0].name":           {Stages: []rollout.Stage{{Name: "A"}}},
		"rollout.stages[1].name":           {Stages: []rollout.Stage{{Name: "a", Selector: sel}, {Name: "a"}}},
		"rollout.stages[1]":                {Stages: []rollout.Stage{{Name: "a"}, {Name: "b"}}},
		"rollout.stages[1].maxConcurrency": {Stages: []rollout.Stage{{Name: "a", Selector: sel}, {Name: "b", MaxConcurrency: rollout.Percent(0)}}},
		"rollout.stages[0].soak":           {Stages: []rollout.Stage{{Name: "a", Soak: -1}}},
		"rollout.stages[0].selector.matchExpressions[0].operator": {Stages: []rollout.Stage{{Name: "a",
			Selector: &fleet.Selector{MatchExpressions: []fleet.Requirement{{Key: "a", Operator: "Near"}}}}}},
		"rollout.stages[0].after[0]":                         gate(rollout.Gate{}),
		"rollout.stages[0].after[0].name":                    gate(rollout.Gate{Name: "X", Approval: &rollout.Approval{}}),
		"rollout.stages[0].after[0].approval.approvers":      gate(rollout.Gate{Approval: &rollout.Approval{Approvers: -1}}),
		"rollout.stages[0].after[0].approval.users":          gate(rollout.Gate{Approval: &rollout.Approval{Approvers: 2, Users: []string{"bob"}}}),
		"rollout.stages[0].after[0].window":                  gate(rollout.Gate{Window: &rollout.WindowGate{}}),
		"rollout.stages[0].after[0].window.allow[0].cron":    gate(rollout.Gate{Window: &rollout.WindowGate{Allow: []rollout.Window{{Cron: "x", Duration: time.Hour}}}}),
		"rollout.stages[0].after[0].window.deny[0].timeZone": gate(rollout.Gate{Window: &rollout.WindowGate{Deny: []rollout.Window{{Cron: "0 0 * * *", Duration: time.Hour, TimeZone: "Mars/Base"}}}}),
		"rollout.stages[0].after[0].window.deny[0].duration": gate(rollout.Gate{Window: &rollout.WindowGate{Deny: []rollout.Window{{Cron: "0 0 * * *"}}}}),
		"rollout.stages[0].after[0].webhook.url":             gate(rollout.Gate{Webhook: &rollout.Webhook{URL: "ftp://x"}}),
		"rollout.stages[0].after[0].metric.address":          gate(rollout.Gate{Metric: &rollout.Metric{}}),
		"rollout.stages[0].after[0].metric.query":            gate(rollout.Gate{Metric: &rollout.Metric{Address: "http://p"}}),
		"rollout.stages[0].after[0].metric.successCondition": gate(rollout.Gate{Metric: &rollout.Metric{Address: "http://p", Query: "up"}}),
		"rollout.stages[0].after[0].expression.expression":   gate(rollout.Gate{Expression: &rollout.Expression{}}),
	} {
		err := s.Validate()
		var fe *fleet.FieldError
		if !errors.As(err, &fe) || fe.Path != path {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

func TestDefaults(t *testing.T) {
	s, err := rollout.Strategy{}.Prepare()
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Stages) != 1 || s.Stages[0].Name != rollout.AllStage || s.OnFailure != "Pause" || s.Offline != "Defer" || s.LateJoiners != "Follow" ||
		s.Unmatched != "Last" || s.OnSupersede != "Replace" || s.ProgressDeadline != 10*time.Minute || s.RevisionHistoryLimit != 10 ||
		s.Rollback.Scope != "Moved" || s.Rollback.Gates != "Skip" || s.MaxFailures.Resolve(100) != 0 {
		t.Errorf("%+v", s)
	}
	g := rollout.Strategy{Stages: []rollout.Stage{{Name: "a", After: []rollout.Gate{
		{Approval: &rollout.Approval{}}, {Approval: &rollout.Approval{}}, {Webhook: &rollout.Webhook{URL: "http://x"}}}}}}.WithDefaults().Stages[0].After
	if g[0].Name != "approval-1" || g[1].Name != "approval-2" || g[2].Name != "webhook" || g[0].Approval.Approvers != 1 ||
		*g[2].Webhook.Retries != 3 || g[2].Webhook.Timeout != 10*time.Second || g[2].Webhook.Interval != 30*time.Second {
		t.Errorf("%+v", g)
	}
}

func TestStoredStateIsChecked(t *testing.T) {
	w := newWorld(t)
	w.quiet = true
	for _, line := range []string{"fleet c1..c300 at=r1", "stage all max=10%", "start r2 from=r1", "fail c1 " + strings.Repeat("x", 10)} {
		w.command(line)
	}
	head, err := rollout.EncodeHead(w.plan, &w.state)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range 40 {
		if _, _, err := rollout.DecodeHead(head[:len(head)-1-cut], w.plan.Strategy); !errors.Is(err, fleet.ErrCorrupt) {
			t.Fatalf("a head that ends %d bytes early: %v", cut+1, err)
		}
	}
	other := rollout.Strategy{Stages: []rollout.Stage{{Name: "a", Selector: &fleet.Selector{}}, {Name: "b", Selector: &fleet.Selector{}}, {Name: "c"}}}
	if _, _, err := rollout.DecodeHead(head, other); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("a head of another strategy: %v", err)
	}
	chunk := rollout.EncodeChunk(w.plan, &w.state, 0)
	if len(chunk) > 16<<10 {
		t.Errorf("a chunk of 256 clusters has %d bytes", len(chunk))
	}
	p, s, err := rollout.DecodeHead(head, w.plan.Strategy)
	if err != nil {
		t.Fatal(err)
	}
	for n := range chunk {
		if err := rollout.DecodeChunk(p, &s, 0, chunk[:n]); !errors.Is(err, fleet.ErrCorrupt) {
			t.Fatalf("a chunk that ends after %d bytes: %v", n, err)
		}
	}
	if err := rollout.DecodeChunk(p, &s, 2, chunk); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("a chunk that is not there: %v", err)
	}
	if err := rollout.DecodeChunk(p, &s, 1, chunk); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("a chunk in the place of another: %v", err)
	}
}
