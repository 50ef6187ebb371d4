package cli

import (
	"context"
	"io"
)

// interruptible reads until ctx is done: who waits at a prompt, or for a manifest that is typed, leaves with an interrupt like
// everywhere else. What is read after that is lost, for the command ends then.
type interruptible struct {
	ctx context.Context
	in  io.Reader
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
