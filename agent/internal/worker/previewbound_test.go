package worker

import (
	"context"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestPreviewOfASecretThatIsNotSet: what the agent would apply with a default, a preview does not refuse.
func TestPreviewOfASecretThatIsNotSet(t *testing.T) {
	r := newRig(t)
	guest := "guest"
	s := r.binding(r.bundle("shop", nil, configMap("uses", `user: "${U}"`)), fleet.LateBinding{Name: "U", Secret: &fleet.SecretKey{Name: "db", Key: "user"}, Default: &guest})
	use, err := r.m.Secrets(context.Background(), []Sealed{{Project: "default", Name: "db", Problem: "secret db does not exist", Absent: true}})
	if err != nil {
		t.Fatal(err)
	}
	use(func() {})
	p, err := r.m.Preview(context.Background(), s, r.store)
	if err != nil || len(p.Objects) != 1 {
		t.Fatalf("%v: %+v", err, p)
	}
	r.set([]fleet.Sync{s})
	r.ready(s)
	if got := r.data("uses", "user"); got == guest && p.Objects[0].Action == fleet.PreviewRefuse {
		t.Errorf("applied with the default, and the preview said: %+v", p.Objects[0])
	}
}
