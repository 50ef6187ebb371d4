package blobs

import (
	"context"
	"testing"

	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
)

// broken is a backend with a bug in how it reads.
type broken struct{ backend.Backend }

func (broken) Get(context.Context, int64, ...string) (map[string]backend.KV, int64, error) {
	panic("a bug")
}

// A bug that a read runs into is an error of who asks: the read is in a goroutine of its own, where a panic would end the process.
func TestBugInAReadIsAnError(t *testing.T) {
	b, err := New(Config{Backend: broken{memory.New()}, Life: t.Context()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.GetCompressed(t.Context(), fleet.DigestOf([]byte("x"))); err == nil {
		t.Error("no error")
	}
}
