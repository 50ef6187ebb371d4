package kube

import (
	"net/http"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ByWebhook reports that the API server says something in the name of a webhook that denies, whose causes are the webhook's own.
func ByWebhook(text string) bool { return strings.HasPrefix(text, "admission webhook ") }

// ByPolicy reports that the API server says something in the name of a ValidatingAdmissionPolicy, or of any admission policy that it cannot evaluate:
// a MutatingAdmissionPolicy denies by nothing else.
func ByPolicy(text string) bool {
	return strings.Contains(text, ": ValidatingAdmissionPolicy '") || unevaluated.MatchString(text)
}

var unevaluated = regexp.MustCompile(`^policy ['"][^'"]+['"] .*denied request: `)

// Denied is an error in which the word of a webhook or an admission policy is a denial, whatever code, reason and details it was given, of which
// any may be missing or say something else than the others. Those of a conflict and of something that does not exist, or exists already, would
// tell of the object that is written, and validators pass them on of other objects; those of a server that is busy or gives up would tell that
// the API server did not do its work, or may do it still. A webhook that could not make up its mind says so as a server does that fails, and may
// have more to say a moment later; when, it does not decide.
func Denied(err error) error {
	told := StatusOf(err)
	if told == nil || !ByWebhook(told.Message) && !ByPolicy(told.Message) {
		return err
	}
	s := *told
	details := s.Details
	s.Details = nil
	switch {
	case apierrors.IsInvalid(err):
		s.Code, s.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
		if details != nil {
			s.Details = &metav1.StatusDetails{Causes: details.Causes}
		}
	case apierrors.IsBadRequest(err):
		s.Code, s.Reason = http.StatusBadRequest, metav1.StatusReasonBadRequest
	case undecided(err, s.Code):
		s.Code, s.Reason = http.StatusInternalServerError, metav1.StatusReasonInternalError
	default:
		s.Code, s.Reason = http.StatusForbidden, metav1.StatusReasonForbidden
	}
	return &apierrors.StatusError{ErrStatus: s}
}

// undecided reports that a webhook denies as a server does that fails, is busy or gives up.
func undecided(err error, code int32) bool {
	return code >= http.StatusInternalServerError || code == http.StatusRequestTimeout || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}
