package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Result is how a command ended.
type Result struct {
	Args           []string
	Stdout, Stderr string
	Code           int
}

// Err is nil when the command ended with 0.
func (r Result) Err() error {
	if r.Code == 0 {
		return nil
	}
	return fmt.Errorf("towline %s: exit code %d\n%s%s", strings.Join(r.Args, " "), r.Code, r.Stdout, r.Stderr)
}

// CLI runs towline as the hub's admin.
func (l *Lab) CLI(ctx context.Context, args ...string) Result { return l.Feed(ctx, "", args...) }

// Feed is CLI with text on the standard input.
func (l *Lab) Feed(ctx context.Context, stdin string, args ...string) Result {
	return l.As(ctx, l.Hub.Config(), stdin, args...)
}

// As runs towline with a client configuration.
func (l *Lab) As(ctx context.Context, config, stdin string, args ...string) Result {
	cmd := exec.CommandContext(ctx, filepath.Join(l.o.Bin, "towline"), args...)
	cmd.Env = append(os.Environ(), "TOWLINE_CONFIG="+config, "NO_COLOR=1")
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	r := Result{Args: args, Stdout: stdout.String(), Stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
	default:
		r.Code = -1
		r.Stderr += err.Error()
	}
	if ctx.Err() != nil {
		r.Code = -1
		r.Stderr += ctx.Err().Error()
	}
	return r
}
