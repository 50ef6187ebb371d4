package worker

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestOwnerStaysUntilAllKindsAreWatched: right after the agent's start the kind of what would go with an object is not watched yet: its
// discovery fails, only a policy keeps it, or the hub has not said anything of its module.
func TestOwnerStaysUntilAllKindsAreWatched(t *testing.T) {
	kept := []fleet.Policy{{Prune: fleet.PruneNever}}
	for name, tc := range map[string]struct{ unlisted, kept bool }{
		"discovery fails":    {},
		"a policy keeps it":  {kept: true},
		"the module is none": {unlisted: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.define("widgets", "Widget", "v1")
			widget := "apiVersion: " + r.group() + "/v1\nkind: Widget\nmetadata: {name: s, namespace: $NS}\n"
			s, vault := r.bundle("shop", nil, configMap("owner", "k: v")), r.bundle("vault", kept, configMap("b", "k: v"), widget)
			r.set([]fleet.Sync{s, vault})
			r.ready(s)
			r.ready(vault)
			uid := r.uidOf(r.group()+"/v1", "widgets", "s")
			if tc.kept {
				vault = r.bundle("vault", kept, configMap("b", "k: v"))
				r.set([]fleet.Sync{s, vault})
				r.ready(vault)
			}
			r.stop()
			r.patch(r.group()+"/v1", "widgets", "s", "operator", fmt.Sprintf(
				`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q}]}}`, r.uidOf("v1", "configmaps", "owner")))
			r.count.upset(func(q *http.Request) error {
				if strings.HasPrefix(q.URL.Path, "/apis/"+r.group()) {
					return errors.New("not yet")
				}
				return nil
			})
			r.start()
			list := []fleet.Sync{vault}
			if tc.unlisted {
				list = nil
			}
			r.set(list, r.tombstone("shop", fleet.DeleteDelete))
			r.wait("shop", "waiting", func(x fleet.SyncStatus) bool {
				return len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, "what would go with it; not known yet of: ") &&
					strings.Contains(x.Extras[0].Message, "Widget")
			})
			r.count.upset(nil)
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			r.collected()
			if got := r.uidOf(r.group()+"/v1", "widgets", "s"); got != uid {
				t.Errorf("the object is another one: %s was %s", got, uid)
			}
		})
	}
}
