package apply

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

func TestFoldStringData(t *testing.T) {
	id := fleet.ObjectID{Kind: "Secret", Namespace: "ns", Name: "a"}
	for _, tc := range []struct {
		name, text string
		values     map[string]string
		want, err  string
	}{
		{"text wins", `{"data":{"a":"eA==","b":"eQ=="},"metadata":{"name":"a"},"stringData":{"a":"z"}}`, nil, `{"data":{"a":"eg==","b":"eQ=="},"metadata":{"name":"a"}}`, ""},
		{"no data", `{"metadata":{"name":"a"},"stringData":{"a":"z","n":null}}`, nil, `{"data":{"a":"eg==","n":""},"metadata":{"name":"a"}}`, ""},
		{"values first", `{"metadata":{"name":"a"},"stringData":{"a":"${V}"}}`, map[string]string{"V": "z"}, `{"data":{"a":"eg=="},"metadata":{"name":"a"}}`, ""},
		{"nothing in it", `{"metadata":{"name":"a"},"stringData":null}`, nil, `{"metadata":{"name":"a"}}`, ""},
		{"a number", `{"metadata":{"name":"a"},"stringData":{"pin":4821}}`, nil, "", "Secret ns/a: stringData: the value of pin is no string: quote it"},
		{"no map", `{"metadata":{"name":"a"},"stringData":["4821"]}`, nil, "", "Secret ns/a: stringData is no map"},
		{"data is no map", `{"data":"4821","metadata":{"name":"a"},"stringData":{"a":"z"}}`, nil, "", "Secret ns/a: data is no map"},
		{"untouched", `{"data":{"stringDatas":"eA=="},"metadata":{"name":"a"}}`, nil, `{"data":{"stringDatas":"eA=="},"metadata":{"name":"a"}}`, ""},
	} {
		d, err := NewDesired(id, []byte(tc.text), fleet.Digest{}, tc.values, nil)
		if err != nil || tc.err != "" {
			if err == nil || err.Error() != tc.err {
				t.Errorf("%s: error %v", tc.name, err)
			}
			continue
		}
		if string(d.text) != tc.want {
			t.Errorf("%s: %s", tc.name, d.text)
		}
	}
	other, err := NewDesired(fleet.ObjectID{Group: "x.io", Kind: "Secret"}, []byte(`{"stringData":{"a":"z"}}`), fleet.Digest{}, nil, nil)
	if err != nil || string(other.text) != `{"stringData":{"a":"z"}}` {
		t.Errorf("a kind of somebody else: %v", err)
	}
}

func TestScrub(t *testing.T) {
	long := "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA4f5wg5l2hKsTeNem\nq0tT0dVhmZ8Yd1XhSvPq\n-----END KEY-----\n"
	h := HiddenOf(map[string]any{"kind": "Secret", "type": "Opaque", "metadata": map[string]any{"name": "web-credentials"},
		"data": map[string]any{"password": base64.StdEncoding.EncodeToString([]byte("hunter2")), "key": long, "pin": int64(48213377), "one": "1",
			"json": `{"auths":{"r.example.com":{"password":"s3cr3t-and-long"}}}`, "quoted": `a"b"c`, "on": true, "none": nil}},
		map[string]any{"kind": "Secret", "spec": map[string]any{"list": []any{"swordfish"}}, "metadata": map[string]any{"annotations": map[string]any{
			fleet.LastApplied: `{"kind":"Secret","data":{"old":"b2xkLXBhc3N3b3Jk"}}`}}})
	for text, want := range map[string]string{
		"field is immutable":                                                  "field is immutable",
		"web-credentials is true, Opaque and nil":                             "web-credentials is true, Opaque and nil",
		"value hunter2, aHVudGVyMg== or aHVudGVyMg":                           "value ***, *** or ***",
		"got &value.valueUnstructured{Value:48213377}":                        "got &value.valueUnstructured{Value:***}",
		"1 of 10 in {1}":                                                      "*** of 10 in {***}",
		"refused: MIIEpAIBAAKCAQEA4f5w...":                                    "refused: ***...",
		"inside: s3cr3t-and-long!":                                            "inside: ***!",
		`as "a\"b\"c" it looks`:                                               `as "***" it looks`,
		"before it was old-password":                                          "before it was ***",
		"twice swordfishswordfish":                                            "twice ***",
		"in base64 " + base64.StdEncoding.EncodeToString([]byte("swordfish")): "in base64 ***",
		"?p=a%22b%22c in an address":                                          "?p=*** in an address",
		"Basic " + base64.StdEncoding.EncodeToString([]byte("fi:swordfish")):  "Basic Zmk6***",
		"": "",
	} {
		if got := h.Scrub(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
		if got := h.Scrubber().Scrub(text); got != want {
			t.Errorf("as one of many, %q becomes %q, want %q", text, got, want)
		}
	}
	if got := h.Scrub(strings.Repeat("x", maxScrubbed-4) + "swordfish"); strings.Contains(got, "swor") || len(got) > maxScrubbed {
		t.Errorf("a value at the end of what is read: …%s", got[len(got)-12:])
	}
	if got, want := h.Scrubber().Scrub(strings.Repeat("x", 2*maxScrubbed)+"swordfish."), strings.Repeat("x", 2*maxScrubbed)+"***."; got != want {
		t.Errorf("a value in a long text: …%s", got[len(got)-12:])
	}
}

func TestAnswersAboutSecretsAreReworded(t *testing.T) {
	answer := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: "it is swordfish", Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Field: "data.a", Message: `Invalid value: "swordfish"`}}}}}
	id := fleet.ObjectID{Kind: "Secret", Namespace: "ns", Name: "a"}
	h := HiddenOf(map[string]any{"kind": "Secret", "data": map[string]any{"a": "swordfish"}})
	if f := Explain(id, h.Clean(answer)); f.Message != `Secret ns/a: data.a: Invalid value: "***"` || f.Reason != ReasonInvalid {
		t.Errorf("%+v", f)
	}
	if f := Explain(id, Withheld(answer)); strings.Contains(f.Message, "swordfish") || f.Reason != ReasonInvalid || !strings.Contains(f.Message, "data.a") {
		t.Errorf("%+v", f)
	}
	if !strings.Contains(answer.ErrStatus.Details.Causes[0].Message, "swordfish") {
		t.Error("the answer itself was changed")
	}
}

// TestWholeValuesAreScrubbed: parts of values are words of somebody else, unless a text was cut off within one; and what may be shown is.
func TestWholeValuesAreScrubbed(t *testing.T) {
	s := HiddenValues([]string{"swordfish-1a2b3c", "prod-db-main"}).Scrubber()
	shows := func(quote string) bool { return strings.HasPrefix("prod-db-main", quote) }
	for text, want := range map[string]string{
		"":                                  "",
		"swordfish is a fish":               "swordfish is a fish",
		"ends in swordfish-1a":              "ends in swordfish-1a",
		"cut off in swordfish-1a…":          "cut off in ***…",
		"cut off in prod-db-m…":             "cut off in prod-db-m…",
		"db://u:swordfish-1a2b3c@db":        "db://u:***@db",
		"prod-db-main has swordfish-1a2b3c": "prod-db-main has ***",
	} {
		if got := s.ScrubWhole(text, shows); got != want {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
		if hides := !s.Quotes(text, shows); hides != (text != want) {
			t.Errorf("%q: hides %t", text, hides)
		}
	}
	packed := base64.StdEncoding.EncodeToString([]byte("user:swordfish-1a2b3c"))
	if s.Quotes(packed, shows) {
		t.Errorf("%q: shown", packed)
	}
	var begun []string
	s.Begins("swordfish-1x and prod-db-main", func(begin string) { begun = append(begun, begin) })
	if strings.Join(begun, " ") != "swordfish-1 prod-db-main" {
		t.Errorf("begun: %q", begun)
	}
}
