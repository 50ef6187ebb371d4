// Package worker owns what happens to each module in the cluster: it drives one worker per module, which applies,
// watches, corrects, prunes and reports. It must not know how the desired state came here nor where reports go.
package worker

import (
	"context"

	"towline.dev/towline/pkg/fleet"
)

// Manager keeps the cluster as the newest assemblage says.
type Manager struct{ o Options }

// New makes a Manager; Run starts it.
func New(o Options) (*Manager, error) { return &Manager{o: o}, nil }

// Run works until the context ends.
func (m *Manager) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Set says what is desired now; the latest call wins. Strays are kept applied and corrected, and never deleted.
func (m *Manager) Set(a fleet.Assemblage, strays []fleet.Sync) {}

// Freeze stops (or allows again) every write.
func (m *Manager) Freeze(frozen bool, why string) {}

// Leave takes the cluster out of the fleet: it strips the marks from every object, or deletes them all, and reports
// each module as Removed.
func (m *Manager) Leave(deleteObjects bool) {}
