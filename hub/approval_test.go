package hub_test

import (
	"path/filepath"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// Who started a rollout cannot approve it. An admin who is alone is told what does work, wherever commands are
// offered and in each refusal, and that does work.
func TestLoneAdminIsToldWhatWorks(t *testing.T) {
	w := newWorld(t, true)
	w.join("c1", nil, nil)
	towline := w.cli()
	resp := w.put(staged("shop", "v1", &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "all", Before: []*towlinev1.Gate{
		{Name: "sign-off", Approval: &towlinev1.ApprovalGate{}}}}}}))
	w.until("shop", resp.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
	file := filepath.Join(t.TempDir(), "second")
	const account = "towline user create NAME --role admin --save FILE"
	for _, args := range [][]string{
		{"rollout", "approve", "shop", "-m", "fine"}, {"rollout", "promote", "shop"}, {"rollout", "override", "shop", "-m", "now"},
		{"explain", "rollout", "shop"}, {"rollout", "status", "shop", "--watch=false"},
	} {
		out, err := towline("", args...)
		if refused := args[0] == "rollout" && args[1] != "status"; refused != (err != nil) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
		if !strings.Contains(out, account) || !strings.Contains(out, "admin") || !strings.Contains(out, "approve shop") {
			t.Errorf("%v does not say what works:\n%s", args, out)
		}
	}
	command := strings.Fields(strings.NewReplacer("NAME", "second", "FILE", file).Replace(account))
	if out, err := towline("", command[1:]...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := towline("", "rollout", "approve", "shop", "-m", "fine", "--config", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Succeeded" })
}
