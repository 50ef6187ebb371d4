package worker

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestHealthOfASharedObjectDoesNotTellASecret: a controller quotes a field in the status of an object that two modules share, and the field
// has a secret: neither of the two says it.
func TestHealthOfASharedObjectDoesNotTellASecret(t *testing.T) {
	r := newRig(t)
	const canary = "canary-shared-1a2b"
	web := `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NS}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "nginx:1", args: ["--dsn=db://u:${PW}@db"]}]}
`
	pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}}
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	one := r.binding(r.bundle("one", sharing("web"), web), pw)
	two := yieldingTo(r.binding(r.bundle("two", sharing("web"), web), pw), "one", 2, 0)
	r.quotesArguments()
	r.set([]fleet.Sync{one, two})
	for _, module := range []string{"one", "two"} {
		x := r.wait(module, "says what is wrong", quoted)
		if strings.Contains(x.Exceptions[0].Message+x.Message, canary) {
			t.Errorf("module %s says: %s", module, x.Exceptions[0].Message)
		}
	}
}
