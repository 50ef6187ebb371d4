package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"runtime/pprof"

	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/heap"
)

// newHub is the child that is the hub, as towline-hub serve is; args: data directory, address for agents, address for people.
func newHub(args []string) (func(words []string) (string, error), error) {
	heap.Tune(hub.HeapPercent, hub.HeapFloor)
	agents, err := net.Listen("tcp", args[1])
	if err != nil {
		return nil, err
	}
	people, err := net.Listen("tcp", args[2])
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	h, err := hub.New(ctx, hub.Options{DataDir: args[0], Listen: agents, API: people,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		return nil, err
	}
	go func() { exit(h.Run(ctx)) }()
	return profile, nil
}

// profile writes a CPU profile to the file that is named, until it is told no file.
func profile(words []string) (string, error) {
	if len(words) < 2 {
		pprof.StopCPUProfile()
		return "stopped", nil
	}
	f, err := os.Create(words[1])
	if err != nil {
		return "", err
	}
	return "begun", pprof.StartCPUProfile(f)
}
