package agent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/report"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
)

const (
	// capabilitiesEvery is how often the API server is asked what it serves. It answers that nothing has changed, as long as nothing has.
	capabilitiesEvery = 30 * time.Second
	// capabilitiesOneByOne is how often one is asked that has no document of all that it serves.
	capabilitiesOneByOne = 10 * time.Minute
	// capabilitiesSettle is for how long what is served has to stay as it is before it is told: CRDs come in numbers.
	capabilitiesSettle = 5 * time.Second
	capabilitiesTime   = 30 * time.Second
)

// capabilityWatch finds out what charts may ask of the cluster.
type capabilityWatch struct {
	read func(context.Context) (now fleet.Capabilities, whole bool, err error)
	told *report.Capabilities
	log  *slog.Logger
}

func newCapabilityWatch(config *rest.Config, told *report.Capabilities, log *slog.Logger) (*capabilityWatch, error) {
	client, err := apply.NewClient(config)
	if err != nil {
		return nil, err
	}
	return &capabilityWatch{read: apply.NewServed(client).Read, told: told, log: log}, nil
}

// run tells what it finds until the context ends: the first time at once, and after that when it has settled, or has stayed away for goneAfter. While
// the API server does not answer, what it served before stands.
func (w *capabilityWatch) run(ctx context.Context) error {
	tries := backoff.New(backoff.Policy{Min: time.Second, Max: 5 * time.Minute}, rand.Float64)
	var told, before fleet.Digest
	var serves lastingly
	failing := false
	for {
		now, whole, err := w.ask(ctx)
		wait := capabilitiesEvery
		if err == nil {
			now = serves.takes(now, time.Now())
		}
		switch digest := now.Digest(); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			if !failing {
				w.log.Warn("what the cluster serves cannot be read; charts are rendered for what it served before", "error", err)
			}
			wait = tries.Next()
		case digest != told && (told.IsZero() || digest == before):
			w.told.Set(now)
			told = digest
		case digest != told:
			wait = capabilitiesSettle
			before = digest
		case !whole:
			wait = capabilitiesOneByOne
		}
		if failing = err != nil; !failing {
			tries.Reset()
		}
		if backoff.Wait(ctx, wait) != nil {
			return nil
		}
	}
}

func (w *capabilityWatch) ask(ctx context.Context) (fleet.Capabilities, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, capabilitiesTime)
	defer cancel()
	return w.read(ctx)
}
