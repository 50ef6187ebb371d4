package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/pkg/fleet"
)

// unreadable is a state of which each read comes to this.
type unreadable struct {
	State
	says error
}

func (u unreadable) Read(context.Context, string) ([]byte, error) { return nil, u.says }

// TestStateThatCannotBeReadIsNotForgotten: what an API server that starts does not tell is read again, and passes neither for nothing nor for damaged.
func TestStateThatCannotBeReadIsNotForgotten(t *testing.T) {
	for _, tc := range []struct {
		says   error
		unread bool
	}{{fmt.Errorf("no answer: %w", state.ErrUnread), true}, {fleet.Errorf(fleet.ErrCorrupt, "damaged"), false}, {fleet.Errorf(fleet.ErrNotFound, "none"), false}} {
		in, quiet := unreadable{says: tc.says}, slog.New(slog.DiscardHandler)
		b, s := newBegun(begunName), &spending{}
		for what, err := range map[string]error{"what is begun": b.load(t.Context(), in, quiet), "what was deleted": s.load(t.Context(), in, quiet, time.Now())} {
			if errors.Is(err, state.ErrUnread) != tc.unread || (err != nil) != tc.unread {
				t.Errorf("%s, of which the state says %v: %v", what, tc.says, err)
			}
		}
	}
}
