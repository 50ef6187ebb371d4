package hub_test

import (
	"fmt"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestDamagedSecretMakesRoomForItself: a secret of which the record is damaged is set anew, as people are told to do, also where the project has as many as
// it may have.
func TestDamagedSecretMakesRoomForItself(t *testing.T) {
	w := newMortalWorld(t)
	set := func(name string) error {
		_, err := w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: name, Values: map[string][]byte{"password": []byte("x")}, Replace: true})
		return err
	}
	for i := range 100 {
		must(t, set(fmt.Sprint("s", i)))
	}
	if set("more") == nil {
		t.Error("a project takes more secrets than it may have")
	}
	w.damage("secrets/default/s7")
	must(t, set("s7"))
	if set("more") == nil {
		t.Error("a project takes more secrets than it may have, with one set anew")
	}
}
