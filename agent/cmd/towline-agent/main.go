// Command towline-agent is the agent of one workload cluster: it only starts and stops what package agent does.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"towline.dev/towline/agent"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := agent.Command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
