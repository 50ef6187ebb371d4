package apply

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/pkg/fleet"
)

func answer(code int32, reason metav1.StatusReason, message string, causes ...string) error {
	s := metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message, Details: &metav1.StatusDetails{}}
	for _, c := range causes {
		kind := metav1.CauseTypeFieldValueInvalid
		if strings.HasPrefix(c, "Forbidden: ") {
			kind = metav1.CauseTypeForbidden
		}
		s.Details.Causes = append(s.Details.Causes, metav1.StatusCause{Type: kind, Field: "spec", Message: c})
	}
	return &apierrors.StatusError{ErrStatus: s}
}

// ofPolicy is how a ValidatingAdmissionPolicy denies a request.
func ofPolicy(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 422, Reason: metav1.StatusReasonInvalid, Message: message,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: message}}}}}
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
		{"a webhook's word", answer(http.StatusForbidden, metav1.StatusReasonForbidden, `admission webhook "x" denied the request: spec.a is immutable`), false},
		{"a webhook's word about a field", answer(422, metav1.StatusReasonInvalid, `admission webhook "x" denied the request: Thing "a" is invalid`, immutable), false},
		{"a policy's word", ofPolicy("ValidatingAdmissionPolicy 'x' with binding 'x' denied request: spec.a is immutable"), false},
		{"no cause", answer(422, metav1.StatusReasonInvalid, immutable), false},
		{"a webhook's other word", answer(http.StatusForbidden, metav1.StatusReasonForbidden, `admission webhook "x" denied the request: no`), false},
		{"another code", answer(http.StatusInternalServerError, metav1.StatusReasonInternalError, "field is immutable"), false},
		{"none", nil, false},
	} {
		if got := IsImmutable(tc.err); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}

func TestRoomInQuota(t *testing.T) {
	jobs := Resource{GroupVersionResource: schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}}
	for text, want := range map[string]bool{
		`jobs.batch "x" is forbidden: exceeded quota: q, requested: count/jobs.batch=1, used: count/jobs.batch=1, limited: count/jobs.batch=1`:           true,
		`jobs.batch "x" is forbidden: exceeded quota: q, requested: count/jobs.batch=1, used: count/jobs.batch=2, limited: count/jobs.batch=1`:           false,
		`jobs.batch "x" is forbidden: exceeded quota: q, requested: count/jobs.batch=1, used: count/jobs.batch=1, limited: count/jobs.batch=0`:           false,
		`x is forbidden: exceeded quota: q, requested: count/jobs.batch=1,jobs=1, used: count/jobs.batch=1,jobs=1k, limited: count/jobs.batch=1,jobs=1k`: true,
		`x is forbidden: exceeded quota: q, requested: count/jobs.batch=1,jobs=1, used: count/jobs.batch=1,jobs=3, limited: count/jobs.batch=1,jobs=2`:   false,
		`x is forbidden: exceeded quota: q, requested: count/jobs.batch=1, used: a=1`:                                                                    false,
		`pods "x" is forbidden: exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=2, limited: requests.cpu=3`:                             false,
		`x is forbidden: exceeded quota: q, requested: count/jobs.batch=1,requests.storage=1Gi, used: count/jobs.batch=1, limited: count/jobs.batch=1`:   false,
		`x is forbidden: no`: false,
	} {
		if got := RoomInQuota(answer(http.StatusForbidden, metav1.StatusReasonForbidden, text), jobs); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
	pods := Resource{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}}
	if RoomInQuota(answer(http.StatusForbidden, metav1.StatusReasonForbidden, `pods "x" is forbidden: exceeded quota: high, requested: pods=1, used: pods=1, limited: pods=1`), pods) {
		t.Error("a Pod that may be of another scope than the one whose place it takes")
	}
	if RoomInQuota(nil, jobs) {
		t.Error("no error")
	}
}

// The ports of nodes that the live Service has are free when it is gone; others may be somebody's.
func TestRehearsal(t *testing.T) {
	live := map[string]any{"spec": map[string]any{"healthCheckNodePort": int64(30009), "ports": []any{
		map[string]any{"nodePort": int64(30000), "port": int64(80)}, map[string]any{"nodePort": int64(30001), "port": int64(81)}}}}
	service, job := fleet.ObjectID{Kind: "Service", Name: "a"}, fleet.ObjectID{Group: "batch", Kind: "Job", Name: "a"}
	for _, tc := range []struct {
		id         fleet.ObjectID
		text, want string
	}{
		{job, `{"metadata":{"name":"a"},"spec":{"ports":[{"nodePort":30000}]}}`, `"spec":{"ports":[{"nodePort":30000}]}`},
		{service, `{"metadata":{"name":"a"},"spec":{"clusterIP":"10.0.0.1"}}`, `"spec":{"clusterIP":"10.0.0.1"}`},
		{service, `{"metadata":{"name":"a"},"spec":{"healthCheckNodePort":30009,"ports":[{"nodePort":30001,"port":80},{"nodePort":30002,"port":82}]}}`,
			`"spec":{"ports":[{"port":80},{"nodePort":30002,"port":82}]}`},
	} {
		d, err := NewDesired(tc.id, []byte(tc.text), fleet.Digest{}, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := d.Rehearsal(Marks{Hub: "h", Owner: "o"}, live)
		if err != nil || !strings.Contains(string(body), tc.want) || !strings.Contains(string(body), `"name":"a"`) {
			t.Errorf("%s: %s: %v", tc.id, body, err)
		}
		if left, _ := d.Body(Marks{Hub: "h", Owner: "o"}, Guard{}, false); strings.Count(string(left), "odePort") != strings.Count(tc.text, "odePort") {
			t.Errorf("%s: the object itself was changed: %s", tc.id, left)
		}
	}
}

func TestCommonAddress(t *testing.T) {
	for _, tc := range []struct {
		name string
		a, b corev1.ServiceSpec
		want string
	}{
		{"none", corev1.ServiceSpec{}, corev1.ServiceSpec{}, "<nil>"},
		{"headless", corev1.ServiceSpec{ClusterIP: "None"}, corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}}, "<nil>"},
		{"one", corev1.ServiceSpec{ClusterIP: "10.0.0.1"}, corev1.ServiceSpec{ClusterIPs: []string{"10.0.0.1"}}, "10.0.0.1"},
		{"the second, spelled otherwise", corev1.ServiceSpec{ClusterIPs: []string{"10.0.0.1", "fd00::0:1"}}, corev1.ServiceSpec{ClusterIP: "fd00::1"}, "fd00::1"},
		{"another", corev1.ServiceSpec{ClusterIP: "10.0.0.1"}, corev1.ServiceSpec{ClusterIP: "10.0.0.2"}, "<nil>"},
	} {
		if got := common(addressesOf(&tc.a), addressesOf(&tc.b)); got.String() != tc.want {
			t.Errorf("%s: %s", tc.name, got)
		}
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
		{"a webhook denies as if it were broken", answer(http.StatusInternalServerError, "", `admission webhook "a.example.com" denied the request: cannot judge`), false},
		{"a webhook denies as if it were slow", answer(http.StatusRequestTimeout, "", `admission webhook "a.example.com" denied the request: cannot judge`), false},
		{"too many requests", answer(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, ""), false},
	} {
		if got := Unanswered(tc.err); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}

func TestMayLand(t *testing.T) {
	page := func(code int, text string) error {
		return apierrors.NewGenericServerResponse(code, "patch", schema.GroupResource{Resource: "configmaps"}, "a", text, 0, true)
	}
	for _, tc := range []struct {
		name string
		err  error
		want bool
	}{
		{"none", nil, false},
		{"the connection broke", errors.New("EOF"), true},
		{"it was not sent", &Failure{Reason: ReasonNotLeader}, false},
		{"the API server gave up", answer(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, ""), true},
		{"a proxy lost the API server", page(http.StatusBadGateway, "<html>502 Bad Gateway</html>"), true},
		{"another one did", page(http.StatusServiceUnavailable, "upstream connect error or disconnect/reset before headers. reset reason: connection termination"), true},
		{"the API server ran into a bug", page(http.StatusInternalServerError, "This request caused apiserver to panic. Look in the logs for details."), true},
		{"its store gave up", answer(http.StatusInternalServerError, "", "etcdserver: request timed out"), true},
		{"its store has another leader", answer(http.StatusInternalServerError, "", "etcdserver: leader changed"), true},
		{"it lost its store", answer(http.StatusInternalServerError, "", "rpc error: code = Unavailable desc = error reading from server: EOF"), true},
		{"it gave up on its store", answer(http.StatusInternalServerError, "", "context deadline exceeded"), true},
		{"it takes no requests", answer(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "apiserver is shutting down"), false},
		{"a webhook does not answer", answer(http.StatusInternalServerError, metav1.StatusReasonInternalError,
			`Internal error occurred: failed calling webhook "a.example.com": failed to call webhook: Post "https://a.b.svc:443/?timeout=10s": context deadline exceeded`), false},
		{"a webhook says what its store says", answer(http.StatusInternalServerError, "", `admission webhook "a.example.com" denied the request: etcdserver: request timed out`), false},
		{"it cannot make anything of the object", answer(http.StatusInternalServerError, "", `failed to create typed patch object: .spec.a: field not declared in schema`), false},
		{"refused", answer(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, ""), false},
		{"conflict", answer(http.StatusConflict, metav1.StatusReasonConflict, ""), false},
		{"a proxy does not know the path", page(http.StatusNotFound, "404 page not found"), false},
		{"too many requests", answer(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, ""), false},
	} {
		if got := MayLand(tc.err); got != tc.want {
			t.Errorf("%s: %t", tc.name, got)
		}
	}
}
