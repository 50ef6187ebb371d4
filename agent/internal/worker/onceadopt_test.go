package worker

import (
	"testing"

	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// An object that is there already and is not as the manifest says is somebody's, also where a policy has the module leave the whole of it as it is:
// it is a conflict, and stays when the module goes. adopt: Always takes it as it is.
func TestWhatIsAppliedOnceIsNotTakenFromOthers(t *testing.T) {
	config := labConfig(t)
	t.Parallel()
	for _, when := range []string{fleet.OnceAlways, fleet.OnceOnUpdate, fleet.OnceOnDrift} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			uid := r.theirs("tuning", "theirs")
			r.theirs("same", "ours")
			policies := append(once(when, fleet.OnceAll), fleet.Policy{})
			s := r.bundle("shop", policies, configMap("tuning", "k: ours"), configMap("same", "k: ours"))
			r.says(r.preview(s), "0 unchanged", "Adopt ConfigMap same", `Refuse ConfigMap tuning Conflict /data/k "theirs"→"ours"`)
			r.conflicts(s)
			r.goes()
			r.is("tuning", "theirs")
			r.is("same", "")

			policies[0].Adopt = fleet.AdoptAlways
			s = r.bundle("shop", policies, configMap("tuning", "k: ours"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			want := "theirs"
			if when == fleet.OnceOnDrift {
				want = "ours" // a revision writes it
			}
			r.is("tuning", want)
			if r.uidOf("v1", "configmaps", "tuning") != uid {
				t.Error("it was made anew")
			}
		})
	}
}
