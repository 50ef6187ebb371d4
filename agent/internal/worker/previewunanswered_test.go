package worker

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestPreviewWithoutTheAPIServer: an object of which the API server says nothing is no object that it refuses. The preview as a whole says that
// nobody answers, and what would go is not told by what could not be asked.
func TestPreviewWithoutTheAPIServer(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	next := r.bundle("shop", nil, configMap("a", "k: w"), configMap("c", "k: v"))
	r.count.upset(func(*http.Request) error { return errors.New("connect: connection refused") })
	p, err := r.m.Preview(t.Context(), next, r.store)
	if !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(err.Error(), "the API server does not answer: connect: connection refused") {
		t.Errorf("%+v, %v", p, err)
	}
	r.count.upset(nil)
	if p := r.preview(next); len(p.Objects) != 3 {
		t.Errorf("with an API server: %+v", p)
	}
}
