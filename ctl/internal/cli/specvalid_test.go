package cli

import (
	"strings"
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// TestSpecThatIsTakenNoMore: describe says which field of a stored module this hub does not take any more, and what to do.
func TestSpecThatIsTakenNoMore(t *testing.T) {
	c := &v1.Condition{Type: fleet.ConditionSpecValid, Status: fleet.ConditionFalse, Reason: fleet.ReasonInvalidSpec, Message: "spec.bindings[0].object.fieldPath: IP: no"}
	said := (&app{}).conditionText(c, &v1.ModuleStatus{})
	if !strings.Contains(said, c.GetMessage()) || !strings.Contains(said, "put the module") {
		t.Error(said)
	}
	r := &v1.Reason{Subject: about(subjectModule, "shop"), Reason: c.GetReason(), Facts: &v1.Facts{Code: fleet.ConditionSpecValid, Detail: said}}
	if got := (&app{}).reasonSays(r, ""); got != said {
		t.Errorf("explain: %q", got)
	}
}
