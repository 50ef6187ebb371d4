package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Answer is what came of a request, as far as something follows from it. It is the one judgement of what an API server answered, or something in
// its place: nobody else looks at codes and reasons.
type Answer int

const (
	// Unknown: nothing that decides came back, or only that the API server, its store, or what stands before it has given up waiting. What was
	// sent may be carried out still.
	Unknown Answer = iota
	// Done: it was carried out.
	Done
	// Gone: the API server does not have the object, which it names.
	Gone
	// Unserved: whoever answered does not know the path, as that of a version or a kind which is not served, or which one of several API servers
	// does not serve yet. It says nothing of an object.
	Unserved
	// Conflict: the object is in another version, or others hold its fields.
	Conflict
	// Exists: there is an object of the name.
	Exists
	// Forbidden: a right is missing, or admission denies.
	Forbidden
	// Unauthorized: the API server does not know who asks.
	Unauthorized
	// Invalid: the object is wrong.
	Invalid
	// BadRequest: the request is wrong, as a dry run of what a webhook has to decide that takes none.
	BadRequest
	// Unsupported: the kind cannot be asked for that.
	Unsupported
	// Busy: the API server has no time for it now.
	Busy
	// Failed: the API server, or a webhook that it asked, could not do it, and does not do it later.
	Failed
	// Refused: the API server does not do it, for another reason.
	Refused
	// Stranger: something else answers in place of the API server, and has not passed the request on. It says nothing of an object, nor of a right.
	Stranger
)

// Judge says what an error of a request means.
func Judge(err error) Answer {
	if err == nil {
		return Done
	}
	err = Denied(err)
	s := StatusOf(err)
	switch {
	case s == nil:
		return Unknown
	case apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return ofPage(s.Code)
	case apierrors.IsNotFound(err) && (s.Details == nil || s.Details.Name == ""):
		return Unserved
	}
	for _, x := range byReason {
		if x.is(err) {
			return x.answer
		}
	}
	return ofCode(s)
}

// byReason are the answers that the API server's reason tells, or its code where it gives none.
var byReason = []struct {
	is     func(error) bool
	answer Answer
}{
	{apierrors.IsNotFound, Gone}, {apierrors.IsConflict, Conflict}, {apierrors.IsAlreadyExists, Exists}, {apierrors.IsForbidden, Forbidden},
	{apierrors.IsUnauthorized, Unauthorized}, {apierrors.IsInvalid, Invalid}, {apierrors.IsBadRequest, BadRequest},
	{apierrors.IsMethodNotSupported, Unsupported}, {apierrors.IsTooManyRequests, Busy},
}

// ofPage judges an answer that is none of Kubernetes. The API server itself gives such ones: of a path that it does not know, when it is too busy to
// look at a request, when it runs into a bug, and when the server of an API that is not its own does not answer. Others do when they cannot pass a
// request on, or do not hear of it again. The codes that are left no API server gives without a Status.
func ofPage(code int32) Answer {
	switch {
	case code == http.StatusNotFound:
		return Unserved
	case code == http.StatusTooManyRequests:
		return Busy
	case code == http.StatusRequestTimeout, code >= http.StatusInternalServerError:
		return Unknown
	}
	return Stranger
}

func ofCode(s *metav1.Status) Answer {
	switch {
	case s.Code == 0, s.Code == http.StatusRequestTimeout, s.Code == http.StatusBadGateway, s.Code == http.StatusGatewayTimeout:
		return Unknown
	case s.Code == http.StatusUnprocessableEntity:
		return Invalid
	case s.Code < http.StatusInternalServerError:
		return Refused
	case !WebhookFails(s.Code, s.Message) && ofStore(s.Message):
		return Unknown
	}
	return Failed
}

// ofStore reports that the API server passes on what its store, or the way to that, says of a request that it had sent there.
func ofStore(text string) bool {
	return strings.Contains(text, "etcdserver: ") || strings.Contains(text, "rpc error: code = ") || strings.Contains(text, context.DeadlineExceeded.Error())
}

// WebhookFails reports that a webhook does not answer, or says with the code of a server that it could not make up its mind (see Denied).
func WebhookFails(code int32, text string) bool {
	return code >= http.StatusInternalServerError && (ByWebhook(text) || strings.Contains(text, "failed calling webhook")) ||
		strings.Contains(text, "conversion webhook for ") && strings.Contains(text, " failed: ")
}

// Is reports that an error means one of these.
func Is(err error, any ...Answer) bool { return slices.Contains(any, Judge(err)) }

// IsGone reports that the API server said that it does not have the object.
func IsGone(err error) bool { return Judge(err) == Gone }

// ByStranger says of the Status of an answer that is a Stranger's who it is from.
func ByStranger(s *metav1.Status) string {
	return fmt.Sprintf("something else answers in place of the API server, such as a proxy before it, with HTTP status %d: %s", s.Code, strings.TrimSpace(s.Message))
}

// Unavailable reports that whoever answered said that what should do it is not there now.
func Unavailable(err error) bool {
	s := StatusOf(err)
	return s != nil && s.Code == http.StatusServiceUnavailable
}

// StatusOf is the Status of an answer; nil: there was no answer that is one.
func StatusOf(err error) *metav1.Status {
	var api apierrors.APIStatus
	if !errors.As(err, &api) {
		return nil
	}
	s := api.Status()
	return &s
}
