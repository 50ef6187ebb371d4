package worker

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestSecretOfBeforeIsNotShown: neither a preview nor the drift shows the value that a binding put into an object, when the next revision does
// not use it, or waits for another value.
func TestSecretOfBeforeIsNotShown(t *testing.T) {
	r := newRig(t)
	r.loud = true
	r.stop()
	r.start()
	r.eventually("the cluster was searched", func() bool { return r.m.searching() == "" })
	const canary = "canary-77aa-password"
	r.source("Secret", "db", `stringData: {password: `+canary+`}`)
	pw := fleet.LateBinding{Name: "PW", Object: r.fieldOf("Secret", "db", "data.password")}
	host := fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "net", "data.host")}
	s := r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://user:${PW}@db"`)), pw)
	r.set([]fleet.Sync{s})
	r.ready(s)
	for name, next := range map[string]fleet.Sync{
		"not used":       r.bundle("shop", nil, configMap("uses", `url: "db://db"`)),
		"not in it":      r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://db"`), configMap("other", `pw: "${PW}"`)), pw),
		"waits, of both": r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://user:${PW}@${HOST}"`)), host, pw),
	} {
		p, err := r.m.Preview(context.Background(), next, r.store)
		told, _ := json.Marshal(p)
		if err != nil || strings.Contains(string(told), canary) {
			t.Errorf("%s: %v: preview %s", name, err, told)
		}
	}
	waits := r.binding(r.bundle("shop", []fleet.Policy{}, configMap("uses", `url: "db://user:${PW}@${HOST}"`)), host, pw)
	r.set([]fleet.Sync{waits})
	r.wait("shop", "waits", func(x fleet.SyncStatus) bool {
		return x.Generation == waits.Generation && strings.Contains(x.Message, "${HOST}")
	})
	r.patch("v1", "configmaps", "uses", "ana", `{"data":{"url":"db://user:`+canary+`@mine"}}`)
	r.holdCluster(true)
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	plain := r.bundle("shop", nil, configMap("uses", `url: "db://db"`))
	r.set([]fleet.Sync{plain})
	r.holdCluster(true)
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Generation == plain.Generation && x.Phase == fleet.PhaseHeld })
	r.stop()
	if at := strings.Index(r.heard.String(), canary); at >= 0 {
		t.Errorf("a status or a log line has the value: %s", r.heard.String()[max(0, at-600):at+40])
	}
}
