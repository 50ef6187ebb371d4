package main

import (
	"context"
	"net"
	"os"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

type reference struct{ txn, rtt time.Duration }

// measureReference takes the medians of a store transaction (one put of 256 bytes, durable) and of a gRPC round trip on
// loopback.
func measureReference(ctx context.Context) (reference, error) {
	txn, err := measureTransaction(ctx)
	if err != nil {
		return reference{}, err
	}
	rtt, err := measureRoundTrip(ctx)
	return reference{txn: txn, rtt: rtt}, err
}

func median(n int, once func() error) (time.Duration, error) {
	var all []time.Duration
	for range n {
		start := time.Now()
		if err := once(); err != nil {
			return 0, err
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all[n/2], nil
}

func measureTransaction(ctx context.Context) (time.Duration, error) {
	dir, err := os.MkdirTemp("", "towline-bench-etcd-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.TickMs, c.ElectionMs = dir, "fatal", 10, 100
	c.ListenPeerUrls, c.ListenClientUrls = nil, nil
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	e, err := embed.StartEtcd(c)
	if err != nil {
		return 0, err
	}
	defer e.Close()
	<-e.Server.ReadyNotify()
	kv := v3client.New(e.Server)
	value := string(make([]byte, 256))
	return median(400, func() error {
		_, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision("x"), "=", 0)).Then(clientv3.OpPut("k", value)).Commit()
		return err
	})
}

func measureRoundTrip(ctx context.Context) (time.Duration, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	c := grpc_health_v1.NewHealthClient(conn)
	return median(400, func() error {
		_, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		return err
	})
}
