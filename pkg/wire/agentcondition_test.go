package wire

import (
	"reflect"
	"strings"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

func TestConditionsThereAndBack(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000).UTC()
	all := []fleet.Condition{
		{Type: fleet.ConditionAPIServerReachable, Status: fleet.ConditionFalse, Reason: "NoAnswer", Message: "connection refused", Since: now.Add(-time.Minute)},
		{Type: fleet.ConditionStateWritable, Status: fleet.ConditionFalse, Reason: "ReadOnly", Since: now},
	}
	got, err := ConditionsFromProto(ConditionsToProto(all), now)
	if err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("got %+v, %v", got, err)
	}
	if fleet.Blinding(got) == nil || fleet.Blinding(got[1:]) != nil {
		t.Error("an API server that does not answer blinds, a state that cannot be written does not")
	}
}

func TestConditionsFromAnAgentAreChecked(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000).UTC()
	tests := []struct {
		name string
		in   []*agentv1.Condition
		want string // in the error; empty: fine
	}{
		{"none", nil, ""},
		{"no type", []*agentv1.Condition{{Status: "True"}}, "conditions[0].type"},
		{"twice", []*agentv1.Condition{{Type: "A"}, {Type: "A"}}, "conditions[1].type"},
		{"markup", []*agentv1.Condition{{Type: "A\x1b[31m"}}, "conditions[0].type"},
		{"a sentence for a reason", []*agentv1.Condition{{Type: "A", Reason: "it broke"}}, "conditions[0].reason"},
		{"too many", make([]*agentv1.Condition, MaxConditions+1), "too many"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ConditionsFromProto(tt.in, now)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	got, err := ConditionsFromProto([]*agentv1.Condition{{Type: "A", Status: "Maybe", Message: strings.Repeat("ä", 1000),
		SinceMillis: now.Add(time.Hour).UnixMilli()}}, now)
	if err != nil || got[0].Status != fleet.ConditionUnknown || len(got[0].Message) > MaxMessageBytes || !got[0].Since.Equal(now) {
		t.Errorf("got %+v, %v", got, err)
	}
}
