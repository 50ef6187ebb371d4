package peers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	hubv1 "towline.dev/towline/gen/towline/hub/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// Dialer makes a connection to another hub, as a hub. It does not wait for it.
type Dialer func(address string) (*grpc.ClientConn, error)

// lines are the connections to other hubs. One ends with the hub's record, and whatever waits for an answer on it ends with it.
type lines struct {
	mu   sync.Mutex
	open map[string]line
}

type line struct {
	address string
	conn    *grpc.ClientConn
}

// to is the connection to a hub, made if there is none.
func (l *lines) to(h *storev1.HubRecord, dial Dialer) (hubv1.RelayServiceClient, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x, ok := l.open[h.GetInstance()]; ok && x.address == h.GetAddress() {
		return hubv1.NewRelayServiceClient(x.conn), nil
	}
	conn, err := dial(h.GetAddress())
	if err != nil {
		return nil, err
	}
	l.open[h.GetInstance()] = line{h.GetAddress(), conn}
	return hubv1.NewRelayServiceClient(conn), nil
}

func (l *lines) close(instance string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x, ok := l.open[instance]; ok {
		_ = x.conn.Close()
		delete(l.open, instance)
	}
}

func (l *lines) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.open {
		_ = x.conn.Close()
	}
	l.open = map[string]line{}
}

// Query asks the cluster's agent and waits for its answer, through the hub that holds its stream.
func (p *Peers) Query(ctx context.Context, c fleet.ClusterName, q *agentv1.Query) (*agentv1.QueryResult, error) {
	if _, here := p.o.Local.LastSeen(c); here {
		return p.o.Local.Query(ctx, c, q)
	}
	h := p.holder(c)
	if h == nil {
		return p.o.Local.Query(ctx, c, q)
	}
	client, err := p.lines.to(h, p.o.Dialer)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c, err)
	}
	resp, err := client.Ask(ctx, &hubv1.AskRequest{Instance: h.GetInstance(), Cluster: string(c), Query: proto.CloneOf(q)})
	if err != nil {
		return nil, p.unanswered(ctx, c, h, err)
	}
	return resp.GetResult(), nil
}

// unanswered says why there is no answer: of a hub that went away meanwhile nothing else is of interest.
func (p *Peers) unanswered(ctx context.Context, c fleet.ClusterName, h *storev1.HubRecord, err error) error {
	p.mu.Lock()
	_, lives := p.hubs[h.GetInstance()]
	p.mu.Unlock()
	if !lives && ctx.Err() == nil {
		return fleet.Errorf(fleet.ErrUnavailable, "cluster %s: hub %s at %s, which held its agent's stream, went away before it answered; try again when the agent is connected to another hub", c, h.GetInstance(), h.GetAddress())
	}
	return fmt.Errorf("asked through hub %s at %s: %w", h.GetInstance(), h.GetAddress(), err)
}

// Driver is what is asked of the hub that leads. One that does not lead answers each with an error.
type Driver interface {
	Resync(ctx context.Context, ref fleet.ModuleRef, by record.Ask, with []fleet.ModuleRef) (record.Resynced, error)
	Called(fleet.ModuleRef) error
	ResyncCatalog(ctx context.Context, ref fleet.ModuleRef, by record.Ask, take bool) (record.CatalogDone, error)
	CatalogCalled(fleet.ModuleRef) error
}

// leadPatience is how long a hub waits for the one that leads.
const leadPatience = 2 * time.Second

// Leader asks the driver of the hub that leads, whichever that is.
type Leader struct {
	Peers  *Peers
	Driver Driver // of this hub
}

// away is the other hub that leads; nil: this one does, or none.
func (l Leader) away() *storev1.HubRecord {
	l.Peers.mu.Lock()
	defer l.Peers.mu.Unlock()
	if !l.Peers.led.IsZero() {
		return nil
	}
	return l.Peers.leader()
}

// anotherLeads is when it is worth another try after the hub that led went away: another one leads when its lease is over.
const anotherLeads = time.Second

// tell calls the hub h, which leads. When it goes away before it has answered nobody knows what it has done.
func (l Leader) tell(ctx context.Context, h *storev1.HubRecord, call func(context.Context, hubv1.RelayServiceClient) error) error {
	client, err := l.Peers.lines.to(h, l.Peers.o.Dialer)
	if err == nil {
		err = call(ctx, client)
	}
	// What waits on a connection is canceled when the hub's record ends.
	if ctx.Err() == nil && (rpc.Unanswered(err) || errors.Is(err, context.Canceled)) {
		return fleet.With(fleet.Errorf(fleet.ErrUnavailable, "hub %s at %s, which led, went away before it answered; try again when another one leads: %v", h.GetInstance(), h.GetAddress(), err),
			fleet.Hint{RetryAfter: anotherLeads})
	}
	if err != nil {
		return fmt.Errorf("asked hub %s at %s, which leads: %w", h.GetInstance(), h.GetAddress(), err)
	}
	return nil
}

// have has the hub h do something, and waits until this hub shows what it wrote.
func (l Leader) have(ctx context.Context, h *storev1.HubRecord, call func(context.Context, hubv1.RelayServiceClient) error) error {
	if err := l.tell(ctx, h, call); err != nil {
		return err
	}
	_, err := l.Peers.o.Store.Barrier(ctx)
	return err
}

// Resync has the source of a module be looked at now.
func (l Leader) Resync(ctx context.Context, ref fleet.ModuleRef, by record.Ask, with []fleet.ModuleRef) (came record.Resynced, err error) {
	h := l.away()
	if h == nil {
		return l.Driver.Resync(ctx, ref, by, with)
	}
	err = l.have(ctx, h, func(ctx context.Context, c hubv1.RelayServiceClient) error {
		req := &hubv1.ResyncRequest{Instance: h.GetInstance(), Project: ref.Project, Module: ref.Name, By: by.By, Reason: by.Reason}
		for _, m := range with {
			req.With = append(req.With, m.Name)
		}
		resp, err := c.Resync(ctx, req)
		came = record.Resynced{Number: resp.GetNumber(), Waits: resp.GetWaits(), Ref: resp.GetResolvedRef(), Others: map[fleet.ModuleRef]int64{}}
		for name, number := range resp.GetOthers() {
			came.Others[fleet.ModuleRef{Project: ref.Project, Name: name}] = number
		}
		return err
	})
	return came, err
}

// Called has the source of a module be looked at soon. A call that the hub that leads has not heard is an error, and is told it again.
func (l Leader) Called(ref fleet.ModuleRef) error {
	return l.hear("module "+ref.Display(), func() error { return l.Driver.Called(ref) }, func(ctx context.Context, instance string, c hubv1.RelayServiceClient) error {
		_, err := c.Call(ctx, &hubv1.CallRequest{Instance: instance, Project: ref.Project, Module: ref.Name})
		return err
	})
}

// hear has a call heard by the hub that leads: here, or there.
func (l Leader) hear(subject string, here func() error, there func(ctx context.Context, instance string, c hubv1.RelayServiceClient) error) error {
	err := l.Peers.owed.hear(context.Background(), subject, func(ctx context.Context) error {
		h := l.away()
		if h == nil {
			return here()
		}
		return l.tell(ctx, h, func(ctx context.Context, c hubv1.RelayServiceClient) error { return there(ctx, h.GetInstance(), c) })
	})
	if err != nil {
		l.Peers.o.Log.Warn("a webhook is not heard by the hub that leads; it is told again", "subject", subject, "error", err)
	}
	return err
}

// ResyncCatalog has the source of a catalog be looked at now.
func (l Leader) ResyncCatalog(ctx context.Context, ref fleet.ModuleRef, by record.Ask, take bool) (done record.CatalogDone, err error) {
	h := l.away()
	if h == nil {
		return l.Driver.ResyncCatalog(ctx, ref, by, take)
	}
	err = l.have(ctx, h, func(ctx context.Context, c hubv1.RelayServiceClient) error {
		resp, err := c.ResyncCatalog(ctx, &hubv1.ResyncCatalogRequest{Instance: h.GetInstance(), Project: ref.Project, Catalog: ref.Name, By: by.By, Reason: by.Reason, Take: take})
		done = record.CatalogDone{Created: resp.GetCreated(), Configured: resp.GetConfigured(), Pruned: resp.GetPruned()}
		return err
	})
	return done, err
}

// CatalogCalled has the source of a catalog be looked at soon, as Called has that of a module.
func (l Leader) CatalogCalled(ref fleet.ModuleRef) error {
	return l.hear("catalog "+ref.Display(), func() error { return l.Driver.CatalogCalled(ref) }, func(ctx context.Context, instance string, c hubv1.RelayServiceClient) error {
		_, err := c.CallCatalog(ctx, &hubv1.CallCatalogRequest{Instance: instance, Project: ref.Project, Catalog: ref.Name})
		return err
	})
}
