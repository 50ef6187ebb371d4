package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// hubStart is how long a hub may take until it answers.
const hubStart = time.Minute

// Hub is the hub's process.
type Hub struct {
	*Process
	DataDir string
	// Agents and API are the addresses it listens on.
	Agents, API string
}

func (l *Lab) newHub(name string, args ...string) (*Hub, error) {
	agents, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	api, err := FreeAddress()
	if err != nil {
		return nil, err
	}
	h := &Hub{DataDir: filepath.Join(l.Dir, name), Agents: agents, API: api}
	args = append([]string{"serve", "--data-dir", h.DataDir, "--listen", agents, "--api", api, "--grace", "30s"}, args...)
	h.Process = l.process(name, filepath.Join(l.o.Bin, "towline-hub"), append(args, l.o.HubArgs...)...)
	h.Env = l.o.HubEnv
	return h, nil
}

// Config is the admin's client configuration.
func (h *Hub) Config() string { return filepath.Join(h.DataDir, "admin.yaml") }

// Start starts the hub and returns when it answers.
func (h *Hub) Start(ctx context.Context) error {
	if err := h.Process.Start(); err != nil {
		return err
	}
	err := PollFor(ctx, hubStart, func() error {
		if !h.Running() {
			return Final(errors.New(h.Tail()))
		}
		_, err := h.Revision(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("hub does not serve: %w", err)
	}
	return nil
}

// Client connects to the hub as its admin.
func (h *Hub) Client(ctx context.Context) (*client.Client, error) {
	if _, err := os.Stat(h.Config()); err != nil {
		return nil, err
	}
	return client.Dial(ctx, client.Options{Config: h.Config()})
}

// Revision is that of the store: it grows with every write.
func (h *Hub) Revision(ctx context.Context) (int64, error) {
	c, err := h.Client(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	info, err := c.Identity.GetServerInfo(ctx, &v1.GetServerInfoRequest{})
	return info.GetRevision(), err
}
