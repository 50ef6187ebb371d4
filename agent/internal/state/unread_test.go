package state

import (
	"context"
	"errors"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// deaf is an API server that answers no read with a Secret.
type deaf struct {
	*api
	says error
}

func (d deaf) Get(context.Context, string, metav1.GetOptions) (*corev1.Secret, error) {
	return nil, d.says
}

// What nobody has answered says nothing of the state, nor does a refusal, as of an API server that has just started and has not read its roles;
// that it is not there is an answer.
func TestReadThatHasNoAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		says   error
		unread bool
	}{
		"no answer in time": {&url.Error{Op: "Get", URL: "https://c1", Err: context.DeadlineExceeded}, true},
		"busy":              {apierrors.NewTooManyRequests("busy", 1), true},
		"it starts":         {apierrors.NewServiceUnavailable("starting"), true},
		"no right":          {apierrors.NewForbidden(resource, "x", errors.New("no role")), true},
		"not known":         {apierrors.NewUnauthorized("starting"), true},
		"not there":         {apierrors.NewNotFound(resource, "x"), false},
	} {
		a := newAPI()
		s := openSecrets(t, a, 1)
		s.client = deaf{a, tc.says}
		if _, err := s.Read(t.Context(), "identity"); err == nil || errors.Is(err, ErrUnread) != tc.unread {
			t.Errorf("%s: %v", name, err)
		}
	}
}
