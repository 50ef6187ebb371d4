package peers_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	hubv1 "towline.dev/towline/gen/towline/hub/v1"
	"towline.dev/towline/hub/internal/peers"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// driver hears calls from a time on.
type driver struct {
	peers.Driver
	leads time.Time
	heard chan string
}

func (d *driver) hears(call string) error {
	if time.Now().Before(d.leads) {
		return fleet.Errorf(fleet.ErrUnavailable, "this hub does not lead now")
	}
	d.heard <- call
	return nil
}

// all is what was heard until now.
func (d *driver) all() (calls []string) {
	for len(d.heard) > 0 {
		calls = append(calls, <-d.heard)
	}
	slices.Sort(calls)
	return calls
}

func (d *driver) Called(ref fleet.ModuleRef) error { return d.hears(ref.Name) }

func (d *driver) CatalogCalled(ref fleet.ModuleRef) error { return d.hears("catalog " + ref.Name) }

// alone is a hub that shares its store with nobody, until the end of the test.
func alone(t *testing.T) *peers.Peers {
	t.Helper()
	p, err := peers.New(peers.Options{Store: struct{ store.Store }{}, Local: nobody{}, Instance: "me", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A call that comes while nobody leads is said to be unheard, and is told once as soon as somebody does; what was heard is not told again.
func TestCallWhileNobodyLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, d := alone(t), &driver{leads: time.Now().Add(12 * time.Second), heard: make(chan string, 100)}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		l, shop := peers.Leader{Peers: p, Driver: d}, fleet.ModuleRef{Project: "default", Name: "shop"}
		for _, call := range []func(fleet.ModuleRef) error{l.Called, l.CatalogCalled, l.Called} {
			if err := call(shop); !errors.Is(err, fleet.ErrUnavailable) {
				t.Errorf("error %v", err)
			}
		}
		<-time.After(20 * time.Second)
		if heard := d.all(); !slices.Equal(heard, []string{"catalog shop", "shop"}) {
			t.Errorf("heard %q", heard)
		}
		if err := l.Called(shop); err != nil {
			t.Error(err)
		}
		<-time.After(time.Minute)
		if heard := d.all(); !slices.Equal(heard, []string{"shop"}) {
			t.Errorf("heard %q", heard)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A hub that does not lead any more says so to the one that tells it of a call.
func TestCallAtAHubThatHasLostTheLead(t *testing.T) {
	d := &driver{leads: time.Now().Add(time.Hour)}
	s := alone(t).Service(d)
	if _, err := s.Call(t.Context(), &hubv1.CallRequest{Instance: "me", Project: "default", Module: "shop"}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("a module's: %v", err)
	}
	if _, err := s.CallCatalog(t.Context(), &hubv1.CallCatalogRequest{Instance: "me", Project: "default", Catalog: "team"}); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("a catalog's: %v", err)
	}
}
