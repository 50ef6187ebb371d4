package hub_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// cutLine is a connection that a test cuts.
type cutLine struct {
	mu   sync.Mutex
	conn net.Conn
}

func (l *cutLine) dial(ctx context.Context, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = c
	return c, err
}

func (l *cutLine) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.conn.Close()
}

// sent counts what comes over the wire of a watch of clusters, by its kind.
type sent struct {
	grpc.ClientStream
	kinds map[string]int
}

func (s *sent) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*towlinev1.WatchClustersResponse); ok && err == nil {
		s.kinds[r.GetType()]++
	}
	return err
}

// TestWatchGoesOnAfterACut: pkg/client and the hub, with the connection cut in between: what came does not come again, and what
// changed meanwhile does.
func TestWatchGoesOnAfterACut(t *testing.T) {
	w := newWorld(t, true)
	for _, name := range []string{"a", "b", "c"} {
		w.enroll(name, labels("canary"))
	}
	me, l, kinds := w.outsider("dashboard", "viewer"), &cutLine{}, map[string]int{}
	count := func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, cc, method, opts...)
		return &sent{s, kinds}, err
	}
	change := func(ring string) {
		_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "b", Labels: labels(ring)}}})
		must(t, err)
	}
	broke := make(chan struct{}, 10)
	c, err := client.Dial(w.ctx, client.Options{Server: me.address, CA: me.ca, Token: me.token, Dialer: l.dial, OnBreak: func(error) { broke <- struct{}{} },
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(count)}})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	cuts := []string{"one", "two", "three"}
	err = c.WatchClusters(w.ctx, &towlinev1.WatchClustersRequest{}, func(ch client.Change[*towlinev1.Cluster]) error {
		ring := ch.Item.GetMetadata().GetLabels()["ring"]
		switch {
		case ch.Type == client.Synced || ch.Type == client.Modified && len(cuts) > 0 && ring != "canary":
			l.cut()
			change(cuts[0])
			cuts = cuts[1:]
		case ch.Type == client.Modified && ring == "three":
			return client.ErrStop
		}
		return nil
	})
	must(t, err)
	if kinds[client.Added] != 3 || len(broke) < 3 {
		t.Errorf("three clusters, and %d breaks: %v", len(broke), kinds)
	}
}
