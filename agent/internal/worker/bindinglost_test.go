package worker

import (
	"context"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// loseKey has the agent start anew without its key, so that nothing opens which was encrypted before.
func (r *rig) loseKey() {
	r.t.Helper()
	r.stop()
	if err := r.store.Remove(context.Background(), "vault-key"); err != nil {
		r.t.Fatal(err)
	}
	r.start()
	r.m.Set(r.current, nil)
}

// absent has the hub say that nobody has set the secret db.
func (r *rig) absent() {
	r.t.Helper()
	<-r.m.secrets.loaded
	use, err := r.m.Secrets(context.Background(), []Sealed{{Project: "default", Name: "db", Problem: "secret db is not there", Absent: true}})
	if err != nil {
		r.t.Fatal(err)
	}
	use(func() {})
}

// stays waits until a module says why it waits, and reports a password that is another one.
func (r *rig) stays(module, says, password string) {
	r.t.Helper()
	r.wait(module, "says "+says, func(x fleet.SyncStatus) bool { return !x.Ready && strings.Contains(x.Message, says) })
	if got := r.secretData("uses")["pw"]; got != password {
		r.t.Errorf("%s: the password is %q now", says, got)
	}
}

// TestValuesThatCannotBeDecryptedAreNotTheirDefaults: the record with the agent's key is damaged, and made anew at the next start. What the
// hub had sent cannot be decrypted any more, and comes again; until then, as while the hub is away, what was applied stays as it is, and so
// it does if the hub has the secret no more, over another restart, too: the value that was in force is not known. It is again when it is set.
func TestValuesThatCannotBeDecryptedAreNotTheirDefaults(t *testing.T) {
	r := newRig(t)
	guest := "guest"
	pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}, Default: &guest}
	r.sends(map[string]map[string]string{"db": {"password": "real"}})
	s := r.binding(r.bundle("shop", nil, secret("uses", `stringData: {pw: "${PW}"}`)), pw)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.loseKey()
	r.stays("shop", "secret db: towline.dev/secret default/db: was not encrypted for this agent's key; it has not come from the hub yet anew", "real")
	r.absent()
	r.stays("shop", "secret db is not there; whether it had a value cannot be told", "real")
	r.restart()
	r.m.Set(r.current, nil)
	r.stays("shop", "secret db is not there; whether it had a value cannot be told", "real")
	more := r.binding(r.bundle("shop", nil, secret("uses", `stringData: {pw: "${PW}"}`), secret("more", `stringData: {pw: "${PW}"}`)), pw)
	r.set([]fleet.Sync{more})
	r.wait("shop", "waits with what is new, too", func(x fleet.SyncStatus) bool {
		return x.Generation == more.Generation && !x.Ready && strings.Contains(x.Message, "cannot be told")
	})
	if got := r.get("v1", "secrets", "more"); got != nil || r.secretData("uses")["pw"] != "real" {
		t.Errorf("applied with the default: %v", got)
	}
	if p, err := r.m.Preview(t.Context(), more, r.store); err != nil || len(p.Objects) != 2 || p.Objects[0].Action != fleet.PreviewRefuse {
		t.Errorf("%v: preview %+v", err, p)
	}
	r.sends(map[string]map[string]string{"db": {"password": "newer"}})
	r.ready(more)
	if a, b := r.secretData("uses")["pw"], r.secretData("more")["pw"]; a != "newer" || b != "newer" {
		t.Errorf("passwords %q, %q", a, b)
	}
}

// TestDefaultsStayWhereNoValueWasLost: an agent that lost its key goes on with a default that is what the objects have, with one for a module
// that is new, and with the value of a source that is there.
func TestDefaultsStayWhereNoValueWasLost(t *testing.T) {
	r := newRig(t)
	guest, nowhere := "guest", "nowhere"
	pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}, Default: &guest}
	at := fleet.LateBinding{Name: "AT", Object: &fleet.ObjectField{Version: "v1", Kind: "ConfigMap", Namespace: r.ns, Name: "net", Path: "data.at"}, Default: &nowhere}
	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "net", "namespace": r.ns}, "data": map[string]any{"at": "here"}})
	r.absent()
	s := r.binding(r.bundle("shop", nil, secret("uses", `stringData: {pw: "${PW}", at: "${AT}"}`)), pw, at)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.loseKey()
	r.absent()
	r.eventually("is known again", func() bool { return r.m.lasts.has(s.Module) && !r.m.lasts.lacks(s.Module) })
	next := r.binding(r.bundle("shop", nil, secret("uses", `stringData: {user: "a", pw: "${PW}", at: "${AT}"}`)), pw, at)
	other := r.binding(r.bundle("other", nil, secret("other", `stringData: {pw: "${PW}"}`)), pw)
	r.set([]fleet.Sync{next, other})
	r.ready(next)
	r.ready(other)
	if d := r.secretData("uses"); d["pw"] != guest || d["at"] != "here" || d["user"] != "a" || r.secretData("other")["pw"] != guest {
		t.Errorf("has %v", d)
	}
	r.losesSource(next, "net")
}

// TestDefaultsAreNotWrittenWithoutAState: the hub's secret was deleted, so that its last value is in force. Then the agent loses all of its state,
// or the record of last values alone, and starts anew: the default is put into no object that is there, also while the search for objects
// fails, and over another restart. A module that is new has it at once.
func TestDefaultsAreNotWrittenWithoutAState(t *testing.T) {
	for name, loses := range map[string]func(r *rig){
		"all": (*rig).loseState,
		"all, and the search fails": func(r *rig) {
			r.blind("secrets")
			r.loseState()
		},
		"the last values": func(r *rig) {
			r.stop()
			if err := r.store.Remove(context.Background(), lastsName); err != nil {
				r.t.Fatal(err)
			}
			r.start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			guest := "guest"
			pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}, Default: &guest}
			r.sends(map[string]map[string]string{"db": {"password": "real"}})
			s := r.binding(r.bundle("shop", nil, secret("uses", `stringData: {pw: "${PW}"}`)), pw)
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.absent()
			r.wait("shop", "keeps the value", func(x fleet.SyncStatus) bool {
				return strings.Contains(x.Message, "keeps the value that was read last")
			})
			loses(r)
			r.absent()
			other := r.binding(r.bundle("other", nil, secret("other", `stringData: {pw: "${PW}"}`)), pw)
			r.set([]fleet.Sync{s, other})
			r.stays("shop", "secret db is not there; whether it had a value cannot be told", "real")
			r.ready(other)
			r.restart()
			r.m.Set(r.current, nil)
			r.stays("shop", "secret db is not there; whether it had a value cannot be told", "real")
			if got := r.secretData("other")["pw"]; got != guest {
				t.Errorf("other has %q", got)
			}
			r.sends(map[string]map[string]string{"db": {"password": "newer"}})
			r.ready(s)
			if got := r.secretData("uses")["pw"]; got != "newer" {
				t.Errorf("set anew: %q", got)
			}
		})
	}
}

// TestValuesLostBeforeAnUpgradeAreNotTheirDefaults: an agent of before lost its state, found its objects, and notes no more than that values were
// lost. The one that follows it puts no default into them either.
func TestValuesLostBeforeAnUpgradeAreNotTheirDefaults(t *testing.T) {
	for _, of := range []fleet.ModuleRef{{Project: "default", Name: "shop"}, {}} { // a module that was found, and all while the search went on
		t.Run(of.String(), func(t *testing.T) {
			r := newRig(t)
			guest := "guest"
			pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}, Default: &guest}
			r.sends(map[string]map[string]string{"db": {"password": "real"}})
			s := r.binding(r.bundle("shop", nil, secret("uses", `stringData: {pw: "${PW}"}`)), pw)
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.loseState()
			r.absent()
			r.set([]fleet.Sync{s})
			r.stays("shop", "secret db is not there; whether it had a value cannot be told", "real")
			for ref := range map[fleet.ModuleRef]bool{s.Module: true, {}: true} { // as an agent of before noted it
				r.m.lasts.retain(ref, func(key string) bool { return key != foundKey && key != lostKey })
			}
			r.m.lasts.put(s.Module, lostKey, lastValue{})
			r.m.lasts.put(of, lostKey, lastValue{})
			if err := r.m.lasts.save(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.stop()
			clear(r.statuses)
			r.start()
			r.absent()
			r.m.Set(r.current, nil)
			x := r.wait("shop", "is judged anew", func(x fleet.SyncStatus) bool { return x.Ready || strings.Contains(x.Message, "cannot be told") })
			if got := r.secretData("uses")["pw"]; got != "real" {
				t.Errorf("the password is %q now: %+v", got, x)
			}
			r.sends(map[string]map[string]string{"db": {"password": "newer"}})
			r.ready(s)
			if got := r.secretData("uses")["pw"]; got != "newer" {
				t.Errorf("set anew: %q", got)
			}
		})
	}
}
