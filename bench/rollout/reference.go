package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
)

type reference struct{ txn, rtt time.Duration }

// measureReference takes the medians of a store transaction that does what a step does (the rollout's head, a chunk of
// its members and the assignments of a sixth of 100 clusters, guarded, durable) and of a round trip on an open stream over
// mTLS to another process on loopback.
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
	assignment, head := string(make([]byte, 256)), string(make([]byte, 1024))
	return median(400, func() error {
		ops := []clientv3.Op{clientv3.OpPut("head", head), clientv3.OpPut("chunk", head)}
		guards := []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision("leader"), "=", 0)}
		for i := range 100 / 6 {
			key := fmt.Sprintf("desired/cluster-%d/module", i)
			ops = append(ops, clientv3.OpPut(key, assignment))
			guards = append(guards, clientv3.Compare(clientv3.ModRevision(key), ">", -1))
		}
		_, err := kv.Txn(ctx).If(guards...).Then(ops...).Commit()
		return err
	})
}

func measureRoundTrip(ctx context.Context) (time.Duration, error) {
	addr, stop, err := startEcho(ctx)
	if err != nil {
		return 0, err
	}
	defer stop()
	cert, err := selfSigned()
	if err != nil {
		return 0, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13} // our own child
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	st, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		return 0, err
	}
	return median(400, func() error {
		if err := st.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
			return err
		}
		_, err := st.Recv()
		return err
	})
}

// startEcho starts the other end of the stream in a process of its own, as the agents are.
func startEcho(ctx context.Context) (addr string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	child := exec.CommandContext(ctx, self, "-echo")
	child.Stderr = os.Stderr
	in, err := child.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := child.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = in.Close()
		_ = child.Wait() // ends with its standard input
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("the other end of the stream: %w", err)
	}
	return strings.TrimSpace(line), stop, nil
}

// runEcho is the child: it answers on streams over mTLS until its standard input ends.
func runEcho() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	cert, err := selfSigned()
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13})))
	reflection.Register(s)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		s.Stop()
	}()
	fmt.Println(l.Addr())
	return s.Serve(l)
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
