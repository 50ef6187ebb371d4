package worker

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"towline.dev/towline/agent/internal/vault"
	"towline.dev/towline/pkg/fleet"
)

// newVault is one with a key of its own.
func newVault(t *testing.T) *vault.Vault {
	t.Helper()
	v, err := vault.Open(t.Context(), newMemory())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// zstdMagic begins what is compressed in a file of the state.
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// holdsText reports that a file of the state has a text: as it is, in what is compressed in it, and in what that has in base64, twice over.
func holdsText(t *testing.T, file []byte, text string) bool {
	t.Helper()
	all := [][]byte{file}
	if i := bytes.Index(file, zstdMagic); i >= 0 {
		r, err := zstd.NewReader(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if plain, err := r.DecodeAll(file[i:], nil); err == nil {
			all = append(all, plain)
		}
	}
	for range 2 {
		for _, data := range all {
			for word := range bytes.SplitSeq(data, []byte{'"'}) {
				if raw, err := base64.StdEncoding.DecodeString(string(word)); err == nil && len(raw) >= len(text) {
					all = append(all, raw)
				}
			}
		}
	}
	for _, data := range all {
		if bytes.Contains(data, []byte(text)) {
			return true
		}
	}
	return false
}

// TestKeptValuesAreEncrypted: what a policy keeps of a Secret, or of an object with the value of one, is in no file of the state at any time,
// also while the object is being made again, and is known after a restart all the same.
func TestKeptValuesAreEncrypted(t *testing.T) {
	r := newRig(t)
	r.stop()
	var mu sync.Mutex
	var states []map[string][]byte
	r.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(q *http.Request) (*http.Response, error) {
			if q.Method != http.MethodGet {
				r.store.mu.Lock()
				files := maps.Clone(r.store.files)
				r.store.mu.Unlock()
				mu.Lock()
				states = append(states, files)
				mu.Unlock()
			}
			return next.RoundTrip(q)
		})
	})
	r.start()
	const first, second = "canary-kept-first", "canary-kept-second"
	policies := append(once(fleet.OnceOnUpdate, "/data/own"), fleet.Policy{Recreate: fleet.RecreateIfImmutable})
	revision := func(other, own string) fleet.Sync {
		return r.binding(r.bundle("shop", policies,
			secret("fixed", "immutable: true\nstringData: {own: "+own+", other: "+other+"}"), configMap("bound", `own: "${PW}", other: `+other)),
			fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	}
	r.sends(map[string]map[string]string{"db": {"password": first}})
	s := revision("before", first)
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.uidOf("v1", "secrets", "fixed")
	r.sends(map[string]map[string]string{"db": {"password": second}})
	s = revision("after", second)
	r.set([]fleet.Sync{s})
	r.ready(s)
	if got := r.secretData("fixed"); r.uidOf("v1", "secrets", "fixed") == uid || got["own"] != first || got["other"] != "after" {
		t.Errorf("made again: %q", got)
	}
	r.stop()
	r.start()
	s = r.again(s)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.delete("v1", "secrets", "fixed")
	r.eventually("made again as it was, after a restart", func() bool { return r.secretData("fixed")["own"] == first })
	r.patch("v1", "configmaps", "bound", "ana", `{"data":{"own":"hers"}}`)
	r.eventually("put back to what is kept", func() bool { return r.data("bound", "own") == first })
	r.stop()
	states = append(states, r.store.files)
	for i, files := range states {
		for name, data := range files {
			if holdsText(t, data, "canary-kept") {
				t.Fatalf("file %s of the state has a value at write %d of %d", name, i, len(states))
			}
		}
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(r.store.files)), func(name string) bool { return strings.HasPrefix(name, "inventory") }) {
		t.Error("the state has no inventory")
	}
}

// TestHoldsText: the search finds what an agent of before stored.
func TestHoldsText(t *testing.T) {
	kept, err := json.Marshal(map[string]any{"data": map[string]any{"own": base64.StdEncoding.EncodeToString([]byte("canary-kept-first"))}})
	if err != nil {
		t.Fatal(err)
	}
	record, err := json.Marshal(map[string]any{"exempt": map[string]any{"kept": kept}})
	if err != nil {
		t.Fatal(err)
	}
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	if !holdsText(t, w.EncodeAll(record, []byte("header")), "canary-kept") {
		t.Error("it does not find what is there")
	}
}
