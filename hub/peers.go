package hub

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/peers"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/version"
)

// shares reports that other hubs may stand on the same store.
func (o Options) shares() bool { return o.ShareEtcd && len(o.EtcdEndpoints) > 0 }

// join says that this hub is there, unless one is that shares the store with nobody. It looks once more when it has said so: a hub that
// began meanwhile has seen it, or is seen.
func (h *Hub) join(ctx context.Context) error {
	if err := h.seat.outlast(ctx, h.seat.besideOneAlone); err != nil {
		return err
	}
	if err := h.announce(ctx); err != nil {
		return err
	}
	return h.seat.outlast(ctx, h.seat.besideOneAlone)
}

// record is what the other hubs are told of this one. leads is zero while it does not.
func (h *Hub) record(leads time.Time) *storev1.HubRecord {
	ca := sha256.Sum256(h.ca.DER()[0]) // the one that signs
	rec := &storev1.HubRecord{Instance: h.instance, Address: h.o.HubAddress, Advertise: h.o.Advertise,
		Since: timestamppb.New(h.seat.me.Since), Ca: ca[:], Version: version.Version}
	if !leads.IsZero() {
		rec.Leads = timestamppb.New(leads)
	}
	return rec
}

// announce says that this hub is there, unless it is to begin anew with a CA while others still serve agents with theirs.
func (h *Hub) announce(ctx context.Context) error {
	me := h.record(time.Time{})
	if _, err := h.store.Barrier(ctx); err != nil {
		return err
	}
	var err error
	viewErr := h.store.View(ctx, 0, func(r store.Reader) error {
		store.Scan(r, store.PeerPrefix, func(o *storev1.HubRecord, _ store.Entry) bool {
			if h.o.AdoptCA && !bytes.Equal(o.GetCa(), me.GetCa()) {
				err = fleet.Errorf(fleet.ErrPrecondition, "hub: hub %s at %s runs on the same store with another CA: stop it before this one starts with --adopt-ca", o.GetInstance(), o.GetAddress())
			}
			return err == nil
		})
		return nil
	})
	if viewErr != nil || err != nil {
		return firstOf(err, viewErr)
	}
	h.presence, err = h.store.Announce(ctx, me)
	return err
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// withdraw says that this hub is gone.
func (h *Hub) withdraw() error {
	if h.presence == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), withdrawPatience)
	defer cancel()
	if err := h.presence.Close(ctx); err != nil {
		h.o.Log.Warn("the other hubs learn that this one is gone when its lease ends", "error", err)
	}
	h.presence = nil
	return nil
}

const withdrawPatience = 3 * time.Second

// campaign takes the seat, and says to the other hubs who has it.
func (h *Hub) campaign(ctx context.Context) (store.Leadership, error) {
	h.leads(ctx, time.Time{})
	l, err := h.seat.take(ctx)
	if err == nil {
		h.leads(ctx, time.Now())
	}
	return l, err
}

func (h *Hub) leads(ctx context.Context, since time.Time) {
	h.peers.Leads(since)
	h.announceAs(ctx, since)
}

// announceAs tells the other hubs what this one is.
func (h *Hub) announceAs(ctx context.Context, since time.Time) {
	if h.presence == nil {
		return
	}
	if err := h.presence.Set(ctx, h.record(since)); err != nil && ctx.Err() == nil {
		h.o.Log.Warn("the other hubs are not told yet that this one is there, and who leads", "error", err)
	}
}

// newPeers knows the other hubs, where there may be any.
func (h *Hub) newPeers() (*peers.Peers, error) {
	o := peers.Options{Store: h.own, Local: h.sessions, Instance: h.instance, Version: version.Version, Lasting: 3 * h.o.Heartbeat, Log: h.o.Log}
	if h.o.shares() {
		o.Dialer, o.Announce = h.dialHub, h.announceAs
	}
	return peers.New(o)
}

// dialHub connects to another hub, as a hub.
func (h *Hub) dialHub(address string) (*grpc.ClientConn, error) {
	config := rpc.ClientTLS{CAs: h.ca.Pool()}.Config()
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return h.ca.Hub(h.instance) }
	return grpc.NewClient("passthrough:///"+address, rpc.APIDialOptions(config)...)
}
