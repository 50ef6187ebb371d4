// Command towline is the command line of Towline: it speaks to a hub through the public API and knows nothing else.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"towline.dev/towline/ctl/internal/cli"
	"towline.dev/towline/pkg/client"
)

// oneInterrupt is how soon after a signal another one counts as the same: timeout(1) sends its signal to the process and to its group.
const oneInterrupt = 50 * time.Millisecond

func main() {
	ctx, stop := interrupted(oneInterrupt, os.Interrupt, syscall.SIGTERM)
	code := cli.Main(ctx, os.Args[1:], cli.System(), client.Dial)
	stop()
	os.Exit(code)
}

// interrupted is a context that ends with the first of the signals. One that comes later than the time after it ends the process at once.
func interrupted(one time.Duration, signals ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, func() { time.AfterFunc(one, stop) })
	return ctx, stop
}
