package kube

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// What a webhook or a policy says is a denial, by whichever code, reason and details. Only what is wrong with the object, and that a webhook could not
// make up its mind, is told apart.
func TestDenied(t *testing.T) {
	details := func() *metav1.StatusDetails {
		return &metav1.StatusDetails{Name: "a", Kind: "namespaces", RetryAfterSeconds: 3600, Causes: []metav1.StatusCause{{Type: "NamespaceTerminating"}, {Type: metav1.CauseTypeFieldManagerConflict}}}
	}
	for _, tc := range []struct {
		code   int32
		reason metav1.StatusReason
		is     func(error) bool
	}{
		{404, "", apierrors.IsForbidden}, {400, metav1.StatusReasonNotFound, apierrors.IsForbidden}, {403, metav1.StatusReasonNotFound, apierrors.IsForbidden},
		{409, "", apierrors.IsForbidden}, {400, metav1.StatusReasonConflict, apierrors.IsForbidden}, {409, metav1.StatusReasonForbidden, apierrors.IsForbidden},
		{409, metav1.StatusReasonAlreadyExists, apierrors.IsForbidden}, {410, metav1.StatusReasonExpired, apierrors.IsForbidden}, {413, "", apierrors.IsForbidden},
		{401, "", apierrors.IsForbidden}, {403, "", apierrors.IsForbidden}, {423, "", apierrors.IsForbidden}, {405, "", apierrors.IsForbidden},
		{400, "the reason is this sentence", apierrors.IsBadRequest}, {400, "", apierrors.IsBadRequest}, {404, metav1.StatusReasonBadRequest, apierrors.IsBadRequest},
		{422, "", apierrors.IsInvalid}, {409, metav1.StatusReasonInvalid, apierrors.IsInvalid},
		{500, "", apierrors.IsInternalError}, {503, "", apierrors.IsInternalError}, {408, "", apierrors.IsInternalError}, {429, "", apierrors.IsInternalError},
		{400, metav1.StatusReasonTimeout, apierrors.IsInternalError}, {400, metav1.StatusReasonTooManyRequests, apierrors.IsInternalError}, {600, "", apierrors.IsInternalError},
	} {
		for _, text := range []string{`admission webhook "a.example.com" denied the request: no`, `things "a" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no`,
			`policy 'p' with binding 'b' denied request: JSON Patch: no`, `policy "p" denied request: failed to configure policy: no`} {
			err := Denied(&apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: tc.code, Reason: tc.reason, Message: text, Details: details()}})
			if _, later := apierrors.SuggestsClientDelay(err); !tc.is(err) || later || apierrors.HasStatusCause(err, "NamespaceTerminating") && !apierrors.IsInvalid(err) || err.Error() != text {
				t.Errorf("%d %q: %#v", tc.code, tc.reason, err)
			}
			if code := err.(apierrors.APIStatus).Status().Code; code == http.StatusConflict || code == http.StatusNotFound {
				t.Errorf("%d %q: code %d", tc.code, tc.reason, code)
			}
		}
	}
	own := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "a", errors.New("the object has been modified"))
	for _, err := range []error{own, fmt.Errorf("wrapped: %w", own), errors.New("connection refused"), nil} {
		if got := Denied(err); got != err { //nolint:errorlint // it is to be the very same
			t.Errorf("%v became %v", err, got)
		}
	}
}
