package wire

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

func TestStrategyErrorsNameTheFieldOnce(t *testing.T) {
	for want, in := range map[string]*towlinev1.RolloutStrategy{
		`onFailure: "Panic"`:                  {OnFailure: "Panic"},
		`stages[0].maxConcurrency: "many"`:    {Stages: []*towlinev1.Stage{{Name: "a", MaxConcurrency: "many"}}},
		`stages[0].after[0]: set exactly one`: {Stages: []*towlinev1.Stage{{Name: "a", After: []*towlinev1.Gate{{}}}}},
		`progressDeadline: "soon"`:            {ProgressDeadline: "soon"},
	} {
		_, err := StrategyFromProto(in)
		if err == nil || len(err.Error()) < len(want) || err.Error()[:len(want)] != want {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
