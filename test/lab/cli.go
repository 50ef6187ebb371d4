package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	var stdout, stderr bytes.Buffer
	cmd := l.command(ctx, config, args)
	cmd.Env = append(cmd.Env, "NO_COLOR=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	code, err := exit(ctx, cmd.Run())
	if err != nil {
		stderr.WriteString(err.Error())
	}
	return Result{Args: args, Stdout: stdout.String(), Stderr: stderr.String(), Code: code}
}

// Show runs towline as the hub's admin with its output going to w as it comes; a terminal gets what it would get from
// towline itself. It returns the exit code.
func (l *Lab) Show(ctx context.Context, w io.Writer, args ...string) (int, error) {
	cmd := l.command(ctx, l.Hub.Config(), args)
	cmd.Stdout, cmd.Stderr = w, w
	return exit(ctx, cmd.Run())
}

func (l *Lab) command(ctx context.Context, config string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(l.o.Bin, "towline"), args...)
	cmd.Env = append(os.Environ(), "TOWLINE_CONFIG="+config)
	return cmd
}

// exit is the exit code; the error says why there is none.
func exit(ctx context.Context, err error) (int, error) {
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return -1, ctx.Err()
	case err == nil:
		return 0, nil
	case errors.As(err, &ended):
		return ended.ExitCode(), nil
	}
	return -1, err
}
