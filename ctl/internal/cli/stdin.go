package cli

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/term"
)

// interruptible reads until ctx is done: who waits at a prompt, or for a manifest that is typed, leaves with an interrupt like
// everywhere else. What is read after that is lost, for the command ends then.
type interruptible struct {
	ctx context.Context
	in  io.Reader
}

// readHidden reads a line from the terminal without showing it. The terminal is as it was when ctx ends before.
func readHidden(ctx context.Context) ([]byte, error) {
	fd := int(os.Stdin.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return nil, err
	}
	read := make(chan input, 1)
	go func() {
		line, err := term.ReadPassword(fd)
		read <- input{line, err}
	}()
	select {
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), term.Restore(fd, before))
	case got := <-read:
		return got.data, got.err
	}
}

type input struct {
	data []byte
	err  error
}

// Read implements io.Reader.
func (r interruptible) Read(p []byte) (int, error) {
	read := make(chan input, 1)
	go func() {
		data := make([]byte, len(p))
		n, err := r.in.Read(data)
		read <- input{data[:n], err}
	}()
	select {
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	case got := <-read:
		return copy(p, got.data), got.err
	}
}
