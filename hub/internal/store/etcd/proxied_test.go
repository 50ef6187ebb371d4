package etcd_test

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/etcd"
)

// proxied is what `etcd grpc-proxy` serves in front of an etcd.
func proxied(t testing.TB, e *embed.Etcd) []string {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoint(e), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	kv, kvDone := grpcproxy.NewKvProxy(client)
	watch, watchDone := grpcproxy.NewWatchProxy(client.Ctx(), zap.NewNop(), client)
	lease, leaseDone := grpcproxy.NewLeaseProxy(client.Ctx(), client)
	server := grpc.NewServer()
	pb.RegisterKVServer(server, kv)
	pb.RegisterWatchServer(server, watch)
	pb.RegisterLeaseServer(server, lease)
	l, err := net.Listen("unix", filepath.Join(filepath.Dir(e.Config().Dir), "p"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
		_ = client.Close()
		<-watchDone
		<-leaseDone
		<-kvDone
	})
	return []string{"unix:" + l.Addr().String()}
}

// etcd's own proxy answers no request for how far a watch is, so that what changes no record, as a blob, has to be found out otherwise.
func TestHubsBehindTheProxyOfEtcd(t *testing.T) {
	o := etcd.Options{Endpoints: proxied(t, ownEtcd(t)), SessionTTL: 2 * time.Second}
	a, b := openDir(t, o), openDir(t, o)
	defer shut(t, a)
	defer shut(t, b)
	l, err := a.Campaign(within(t), store.Candidate{Instance: "control"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Batch(within(t), l.Fence(), []store.Op{{Key: "meta/uid/n", Value: &storev1.Counter{Value: 7}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Blobs().Put(within(t), []byte("blob")); err != nil {
		t.Fatal(err)
	}
	at, err := b.Barrier(within(t))
	if err != nil {
		t.Fatal("who waits for all that there is:", err)
	}
	if got := counted(t, b, at, "meta/uid/n"); got != 7 {
		t.Errorf("the other hub reads %d", got)
	}
}
