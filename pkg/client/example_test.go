package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// A program follows the newest rollout of a module to its end, through restarts of the hub. Without options it uses
// the current context of the client configuration, as the towline command does.
func ExampleClient_WatchRollout() {
	ctx := context.Background()
	opts, stop := exampleHub() // an in-memory hub that restarts once; a real program passes client.Options{}
	defer stop()

	c, err := client.Dial(ctx, opts)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	err = c.WatchRollout(ctx, &v1.WatchRolloutRequest{Project: "default", Module: "shop"}, func(r *v1.WatchRolloutResponse) error {
		s := r.GetRollout().GetStatus()
		fmt.Printf("%s %s: %d of %d clusters\n", r.GetRollout().GetId(), s.GetState(), s.GetSucceeded(), s.GetTotal())
		return nil
	})
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		fmt.Println("no such module")
	case err != nil:
		log.Fatal(err)
	}
	// Output:
	// shop/57 Progressing: 3 of 300 clusters
	// shop/57 Succeeded: 300 of 300 clusters
}

// restartingHub sends one status, breaks, and goes on after the resume token.
type restartingHub struct {
	v1.UnimplementedRolloutServiceServer
}

func (restartingHub) WatchRollout(r *v1.WatchRolloutRequest, s grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
	status := func(state string, succeeded int32) *v1.Rollout {
		return &v1.Rollout{Id: "shop/57", Number: 57, Status: &v1.RolloutStatus{State: state, Succeeded: succeeded, Total: 300}}
	}
	if r.GetResumeToken() == "" {
		err := s.Send(&v1.WatchRolloutResponse{Rollout: status("Progressing", 3), ResumeToken: "after-1"})
		return errors.Join(err, rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "the hub restarts")))
	}
	return s.Send(&v1.WatchRolloutResponse{Rollout: status("Succeeded", 300), ResumeToken: "after-2", Ended: true})
}

func exampleHub() (opts client.Options, stop func()) {
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer()
	v1.RegisterRolloutServiceServer(server, restartingHub{})
	go func() {
		if err := server.Serve(listener); err != nil {
			log.Print(err)
		}
	}()
	return client.Options{
		Server:      "hub.example.com:7444",
		Dialer:      func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) },
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
	}, server.Stop
}
