package client

import (
	"context"
	"errors"
	"io"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
)

const (
	uploadPiece = 256 << 10
	uploadTries = 3
)

// Upload has the hub hold files by their digest; what it has already is not sent. packed makes what is sent: the files' encoding as one
// zstd frame, as UploadArtifact says. It tells whether anything was sent.
func (c *Client) Upload(ctx context.Context, digest string, packed func() ([]byte, error)) (sent bool, err error) {
	var frame []byte
	for tries := 1; ; tries++ {
		kept, err := c.Artifacts.KeepArtifact(ctx, &v1.KeepArtifactRequest{Digest: digest})
		if err != nil || kept.GetHeld() {
			return false, err
		}
		if frame == nil {
			if frame, err = packed(); err != nil {
				return false, err
			}
		}
		err = c.send(ctx, digest, frame)
		if !errors.Is(err, fleet.ErrUnavailable) || tries == uploadTries {
			return err == nil, err
		}
		if waited := backoff.Wait(ctx, lastDelay); waited != nil {
			return false, err
		}
	}
}

func (c *Client) send(ctx context.Context, digest string, frame []byte) error {
	ctx, cancel := context.WithCancel(ctx) // what is given up is not left open
	defer cancel()
	st, err := c.Artifacts.UploadArtifact(ctx)
	if err != nil {
		return err
	}
	for m := (&v1.UploadArtifactRequest{Digest: digest}); ; m = new(v1.UploadArtifactRequest) {
		n := min(len(frame), uploadPiece)
		m.Data, frame = frame[:n], frame[n:]
		if err := st.Send(m); err != nil && !errors.Is(err, io.EOF) { // which says that the answer is there already
			return err
		} else if err != nil || len(frame) == 0 {
			break
		}
	}
	_, err = st.CloseAndRecv()
	return err
}
