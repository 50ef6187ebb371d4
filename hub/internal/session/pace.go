package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// How much an agent may say, and how often it may connect. Each frame is decoded and most are written to the store, each
// session is two commits and a look at every module: one agent that is broken, or not ours, must not take the time and the
// disk of the others. Agents that are in order are far below: ten frames a second, and a session a day.
const (
	frameRate  = 100 // a second
	frameBurst = 1000
	byteRate   = 2 << 20 // a second
	byteBurst  = 32 << 20
	openRate   = 2 // a second
	openBurst  = 60
)

// pace is what a session has left to say.
type pace struct{ frames, bytes *rate.Limiter }

func newPace() pace {
	return pace{frames: rate.NewLimiter(frameRate, frameBurst), bytes: rate.NewLimiter(byteRate, byteBurst)}
}

// wait lets a frame in when its turn has come. Until then nothing more is read, so that the agent waits, too.
func (p pace) wait(ctx context.Context, m *agentv1.ConnectRequest) error {
	if err := p.frames.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the turn of a frame: %w", err)
	}
	if err := p.bytes.WaitN(ctx, min(proto.Size(m), byteBurst)); err != nil {
		return fmt.Errorf("wait for the turn of a frame: %w", err)
	}
	return nil
}

// openings bound how often the agent of a cluster opens a session.
type openings struct {
	mu sync.Mutex
	of map[fleet.ClusterName]*rate.Limiter
}

// allow says why the cluster's agent has to wait.
func (o *openings) allow(c fleet.ClusterName, now time.Time) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil || len(o.of) > maxOpenings {
		o.of = map[fleet.ClusterName]*rate.Limiter{}
	}
	l := o.of[c]
	if l == nil {
		l = rate.NewLimiter(openRate, openBurst)
		o.of[c] = l
	}
	if l.AllowN(now, 1) {
		return nil
	}
	return fleet.Errorf(fleet.ErrExhausted, "cluster %s: its agent opens sessions too often: more than %d, and then %d a second; something is wrong with it, or there are several", c, openBurst, openRate)
}

// maxOpenings is how many clusters are remembered.
const maxOpenings = 20_000
