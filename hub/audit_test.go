package hub_test

import (
	"log/slog"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
)

// TestAuditSaysUnhold: the record of writes says what people did: a hold that was ended is Unhold, and only that.
func TestAuditSaysUnhold(t *testing.T) {
	var log lockedBuffer
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Log = true, slog.New(slog.NewTextHandler(&log, nil)) })
	w.join("a", nil, nil)
	hold, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "a", Reason: "a look"})
	must(t, err)
	_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: hold.GetHold().GetId(), Reason: "seen"})
	must(t, err)
	if _, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: "confirm-1", Digest: "x"}); err == nil {
		t.Error("what is not there was confirmed")
	}
	var ended, confirmed string
	for line := range strings.Lines(log.String()) {
		switch {
		case strings.Contains(line, "msg=audit") && strings.Contains(line, hold.GetHold().GetId()) && strings.Contains(line, "reason=seen"):
			ended = line
		case strings.Contains(line, "msg=audit") && strings.Contains(line, "confirm-1"):
			confirmed = line
		}
	}
	if !strings.Contains(ended, "method=/towline.v1.ModuleService/Unhold ") {
		t.Errorf("the hold was ended: %q", ended)
	}
	if !strings.Contains(confirmed, "method=/towline.v1.ModuleService/ConfirmHold ") {
		t.Errorf("something was confirmed: %q", confirmed)
	}
}
