// Command towline is the command line of Towline: it speaks to a hub through the public API and knows nothing else.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"towline.dev/towline/ctl/internal/cli"
	"towline.dev/towline/pkg/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the process at once
	code := cli.Main(ctx, os.Args[1:], cli.System(), client.Dial)
	stop()
	os.Exit(code)
}
