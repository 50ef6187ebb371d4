package apply

import (
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/manifest"
)

// TestTextsComeThroughAsTheyAre: the API server reads what is applied as YAML, to which some characters that may stand in a text of JSON end a
// line, so that the blanks around them go, and others are not allowed at all.
func TestTextsComeThroughAsTheyAre(t *testing.T) {
	var got map[string]any
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got = nil
		if err := yaml.Unmarshal(body, &got); err != nil { // as the API server does
			t.Errorf("%v: %q", err, body)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"b","uid":"u","resourceVersion":"1"}}`))
	}))
	defer srv.Close()
	c, err := NewClient(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	send := func(text string) {
		t.Helper()
		data := map[string]any{"a": text, text: "key"}
		body := manifest.Canonical(map[string]any{"data": data})
		if _, err := c.Apply(t.Context(), configMaps, "b", "a", body, ApplyOptions{}); err != nil {
			t.Error(err)
		}
		if !reflect.DeepEqual(got["data"], data) {
			t.Errorf("%q came as %q", data, got["data"])
		}
	}
	for _, text := range []string{"a \u2028  b", "a \u2029\u2029  b", "a \u0085  b", "a\u0085b", "\u0085", "\u007f", "\u0080\u009f", "\ufeffa", "\uffff \ufffe", "é\u00a0", "\U0001f600"} {
		send(text)
	}
	for _, n := range []int{900, 998, 1000, 1021, 1022, 1023, 1024, 5000} { // YAML looks no farther than 1024 characters for the colon behind a key
		send(strings.Repeat("k", n))
		send(strings.Repeat("\u2028", n/6+1))
		send(strings.Repeat(`"\\:`, n/3) + "é")
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	parts := []string{" ", "\n", "\t", "\r", "\"", "\\", "\\u2028", "a", "é", "\u0085", "\u2028", "\u2029", "\u007f", "\u009f", "\ufeff", "\uffff", "\u00a0", "\u20ac", "\ufffd", "\U0010ffff", "\x00", "\x1f", "<", "{", ":", "#"}
	for range 300 {
		var b strings.Builder
		for range rnd.IntN(12) {
			b.WriteString(parts[rnd.IntN(len(parts))])
		}
		send(b.String())
	}
}
