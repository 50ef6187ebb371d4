package apply

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"towline.dev/towline/pkg/fleet"
)

func TestRehearsal(t *testing.T) {
	for _, tc := range []struct {
		id         fleet.ObjectID
		text, want string
	}{
		{fleet.ObjectID{Group: "batch", Kind: "Job", Name: "a"}, `{"metadata":{"name":"a"},"spec":{"x":1}}`, `"spec":{"x":1}`},
		{fleet.ObjectID{Kind: "Service", Name: "a"}, `{"metadata":{"name":"a"},"spec":{"clusterIP":"10.0.0.1","clusterIPs":["10.0.0.1"],"healthCheckNodePort":3,"ports":[{"nodePort":30000,"port":80}],"type":"NodePort"}}`,
			`"spec":{"ports":[{"port":80}],"type":"NodePort"}`},
		{fleet.ObjectID{Kind: "Service", Name: "a"}, `{"metadata":{"name":"a"},"spec":{"clusterIP":"None"}}`, `"spec":{"clusterIP":"None"}`},
		{fleet.ObjectID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "xs.y.io"}, `{"metadata":{"name":"xs.y.io"},"spec":{"group":"y.io","names":{"plural":"xs"}}}`,
			`"spec":{"group":"rehearsal.y.io","names":{"plural":"xs"}}`},
	} {
		d, err := NewDesired(tc.id, []byte(tc.text), fleet.Digest{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		name, body, err := d.Rehearsal(Marks{Hub: "h", Owner: "o"})
		if err != nil || name == tc.id.Name || !strings.Contains(string(body), tc.want) || !strings.Contains(string(body), `"name":"`+name+`"`) {
			t.Errorf("%s: %s as %s: %v", tc.id, body, name, err)
		}
		if left, _ := d.Body(Marks{Hub: "h", Owner: "o"}, Guard{}, false); !json.Valid(left) || read(t, left)["metadata"].(map[string]any)["name"] != tc.id.Name {
			t.Errorf("%s: the object itself was changed: %s", tc.id, left)
		}
	}
	for n := 3; n <= 253; n++ {
		name := rehearsalName(strings.Repeat("a", n))
		if len(name) > max(n, shortName) || len(validation.IsDNS1123Subdomain(rehearsalName(strings.Repeat("a", n/2)+"."+strings.Repeat("b", (n+1)/2)))) > 0 && n < 126 {
			t.Errorf("%d characters become %s", n, name)
		}
	}
}

func answer(code int32, reason metav1.StatusReason, message string, causes ...string) error {
	s := metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: &metav1.StatusDetails{}}
	for _, c := range causes {
		s.Details.Causes = append(s.Details.Causes, metav1.StatusCause{Message: c})
	}
	return &apierrors.StatusError{ErrStatus: s}
}

func TestOnlyImmutability(t *testing.T) {
	const immutable, invalid = `Invalid value: {"a":"b"}: field is immutable`, "Invalid value: 0: must be greater than 0"
	for _, tc := range []struct {
		name string
		err  error
		want bool
	}{
		{"one cause", answer(422, metav1.StatusReasonInvalid, "", immutable), true},
		{"two causes", answer(422, metav1.StatusReasonInvalid, "", immutable, "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden"), true},
		{"one of two", answer(422, metav1.StatusReasonInvalid, immutable, immutable, invalid), false},
		{"another", answer(422, metav1.StatusReasonInvalid, "", invalid), false},
		{"a webhook's word", answer(http.StatusForbidden, metav1.StatusReasonForbidden, `admission webhook "x" denied the request: spec.a is immutable`), true},
		{"a webhook's other word", answer(http.StatusForbidden, metav1.StatusReasonForbidden, `admission webhook "x" denied the request: no`), false},
		{"another code", answer(http.StatusInternalServerError, metav1.StatusReasonInternalError, "field is immutable"), false},
		{"none", nil, false},
	} {
		if got := IsImmutable(tc.err); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}

func TestOnlyCountsInQuota(t *testing.T) {
	jobs := Resource{GroupVersionResource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}}
	for text, want := range map[string]bool{
		`jobs.batch "x" is forbidden: exceeded quota: q, requested: count/jobs.batch=1, used: count/jobs.batch=1, limited: count/jobs.batch=1`: true,
		`x is forbidden: exceeded quota: q, requested: count/jobs.batch=1,jobs=1, used: a=1`:                                                   true,
		`pods "x" is forbidden: exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=2, limited: requests.cpu=3`:                   false,
		`x is forbidden: exceeded quota: q, requested: count/jobs.batch=1,requests.storage=1Gi, used: a=1`:                                     false,
		`x is forbidden: no`: false,
	} {
		if got := OnlyCountsInQuota(answer(http.StatusForbidden, metav1.StatusReasonForbidden, text), jobs); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
	if OnlyCountsInQuota(nil, jobs) {
		t.Error("no error")
	}
}

func TestUnanswered(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want bool
	}{
		{"none", nil, false},
		{"the connection broke", errors.New("EOF"), true},
		{"gateway timeout", answer(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, ""), true},
		{"request timeout", answer(http.StatusRequestTimeout, metav1.StatusReasonTimeout, ""), true},
		{"internal error", answer(http.StatusInternalServerError, metav1.StatusReasonInternalError, ""), true},
		{"refused", answer(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, ""), false},
		{"conflict", answer(http.StatusConflict, metav1.StatusReasonConflict, ""), false},
		{"too many requests", answer(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, ""), false},
	} {
		if got := Unanswered(tc.err); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}
