package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
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

// profile begins to write a CPU profile into the file of a name, or ends that and writes the others beside it.
func profile(words []string) (string, error) {
	switch {
	case len(words) == 2 && words[0] == "begin":
		f, err := os.Create(words[1] + ".cpu.pprof")
		if err != nil {
			return "", err
		}
		return "begun", pprof.StartCPUProfile(f)
	case len(words) == 2 && words[0] == "end":
		pprof.StopCPUProfile()
		runtime.GC() // what the profile of the heap has is of the last collection
		return "ended", errors.Join(write("heap", words[1]), write("goroutine", words[1]))
	}
	return "", fmt.Errorf("the hub does not know %q", words)
}

func write(profile, name string) error {
	f, err := os.Create(name + "." + profile + ".pprof")
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup(profile).WriteTo(f, 0), f.Close())
}
