package health

import (
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// A rule for all kinds of a group, shipped or a person's, holds none of them for ever for want of a field that the kind does not have: not one
// without a status subresource, nor one whose controller has written a status. A rule of one kind waits, and so does every rule for a first status.
func TestKindThatLacksWhatItsGroupHas(t *testing.T) {
	born := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	soon, late := born.Add(30*time.Second), born.Add(time.Hour)
	mine := []Rule{{Group: "shop.example", Kind: "*", Healthy: "object.status.phase == 'Open'"}}
	const (
		waits = fleet.HealthProgressing
		good  = fleet.HealthHealthy
	)
	for name, tc := range map[string]struct {
		rules  []Rule
		object string // group/version Kind, and the status
		bare   bool   // the kind has no status subresource
		soon   fleet.Health
		late   fleet.Health
	}{
		"shipped, no status yet":              {nil, "k8s.mariadb.com/v1 Odd | {}", false, waits, waits},
		"shipped, no subresource":             {nil, "k8s.mariadb.com/v1 Odd | {}", true, good, good},
		"shipped, another condition":          {nil, "k8s.mariadb.com/v1 Odd | {conditions: [{type: Accepted, status: 'True'}]}", false, waits, good},
		"shipped, another condition is False": {nil, "k8s.mariadb.com/v1 Odd | {conditions: [{type: Accepted, status: 'False', reason: NoSuch}]}", false, waits, fleet.HealthDegraded},
		"shipped, its condition is False":     {nil, "k8s.mariadb.com/v1 Odd | {conditions: [{type: Ready, status: 'False', reason: Creating}]}", false, waits, waits},
		"shipped, other numbers":              {nil, "opensearch.org/v1 Odd | {count: 3}", false, waits, good},
		"shipped, one kind":                   {nil, "cert-manager.io/v1 Certificate | {revision: 1}", false, waits, waits},
		"shipped, its kinds are known":        {nil, "rds.aws.crossplane.io/v1 Odd | {conditions: [{type: Synced, status: 'True'}]}", false, waits, waits},
		"own, no status yet":                  {mine, "shop.example/v1 Till | {}", false, waits, waits},
		"own, no subresource":                 {mine, "shop.example/v1 Till | {}", true, good, good},
		"own, another field":                  {mine, "shop.example/v1 Till | {conditions: [{type: Ready, status: 'True'}]}", false, waits, good},
		"own, another field is bad":           {mine, "shop.example/v1 Till | {conditions: [{type: Ready, status: 'False', reason: NoSuch}]}", false, waits, fleet.HealthDegraded},
		"own, its field":                      {mine, "shop.example/v1 Till | {phase: Shut}", false, waits, waits},
		"own, one kind":                       {[]Rule{{Group: "shop.example", Kind: "Till", Healthy: mine[0].Healthy}}, "shop.example/v1 Till | {count: 3}", false, waits, waits},
		"own, guarded":                        {[]Rule{{Group: "shop.example", Kind: "*", Healthy: "object.?status.?phase.orValue('') == 'Open'"}}, "shop.example/v1 Till | {count: 3}", false, waits, waits},
	} {
		t.Run(name, func(t *testing.T) {
			rules, err := Compile(tc.rules)
			if err != nil {
				t.Fatal(err)
			}
			what, status, _ := strings.Cut(tc.object, " | ")
			version, kind, _ := strings.Cut(what, " ")
			obj := parse(t, "{apiVersion: "+version+", kind: "+kind+", metadata: {name: a, creationTimestamp: '"+born.Format(time.RFC3339)+"'}, status: "+status+"}")
			for at, want := range map[time.Time]fleet.Health{soon: tc.soon, late: tc.late} {
				got := Judge(obj, Facts{Now: at, HasStatus: !tc.bare}, rules)
				if got.Health != want {
					t.Errorf("after %s: %s (%s: %s), want %s", at.Sub(born), got.Health, got.Reason, got.Message, want)
				}
				if ends := want == waits && tc.late != waits; ends && !got.Until.Equal(born.Add(NoStatusGrace)) {
					t.Errorf("after %s: it is to be judged again at %s", at.Sub(born), got.Until)
				}
			}
		})
	}
}
