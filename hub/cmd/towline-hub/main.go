// Command towline-hub is the hub: its command line and its flags are in package hub, which it only starts and stops.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"towline.dev/towline/hub"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := hub.Command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
