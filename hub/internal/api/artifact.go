package api

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
)

const (
	// keptUpload is how long an upload is kept that no module names yet.
	keptUpload = time.Hour
	// maxUploads is how many may be under way: each has a file of up to artifact.MaxPackedBytes.
	maxUploads = 16
	// uploadSilence is how long one may say nothing.
	uploadSilence = time.Minute
	// maxUploadPiece is how much one message may carry.
	maxUploadPiece = 256 << 10
	// uploadWindow bounds the memory that a frame asks for.
	uploadWindow = 32 << 20
)

// KeepArtifact tells whether the hub has the files of a digest.
func (a *API) KeepArtifact(ctx context.Context, req *towlinev1.KeepArtifactRequest) (*towlinev1.KeepArtifactResponse, error) {
	d, err := uploadDigest(req.GetDigest())
	if err != nil {
		return nil, err
	}
	switch err := a.o.Store.Blobs().Keep(ctx, d, a.now().Add(keptUpload)); {
	case errors.Is(err, fleet.ErrNotFound):
		return &towlinev1.KeepArtifactResponse{}, nil
	case err != nil:
		return nil, err
	}
	return &towlinev1.KeepArtifactResponse{Held: true}, nil
}

func uploadDigest(s string) (fleet.Digest, error) {
	d, err := fleet.ParseDigest(s)
	if err == nil && d.IsZero() {
		err = errors.New("is all zeros, which is no files' digest")
	}
	if err != nil {
		return d, fleet.Invalid("digest", err.Error())
	}
	return d, nil
}

// UploadArtifact spools what comes into a file, so that a slow client keeps neither memory nor the store, looks at all of it, and only
// then stores it.
func (a *API) UploadArtifact(st grpc.ClientStreamingServer[towlinev1.UploadArtifactRequest, towlinev1.UploadArtifactResponse]) error {
	select {
	case a.uploads <- struct{}{}:
	default:
		return fleet.Errorf(fleet.ErrUnavailable, "%d uploads are under way: try again in a moment", maxUploads)
	}
	received := make(chan struct{})
	u := &upload{stream: st, heard: make(chan struct{}, 1), received: received}
	done := make(chan error, 1)
	go func() { // it may have to wait for its client longer than the call does
		defer func() { <-a.uploads }()
		var err error
		defer func() { done <- guard.Caught(recover(), err) }()
		err = u.run(a)
	}()
	silence := time.NewTimer(uploadSilence)
	defer silence.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			return st.SendAndClose(&towlinev1.UploadArtifactResponse{Digest: u.digest.String()})
		case <-u.heard:
			silence.Reset(uploadSilence)
		case <-received: // its client has done its part; what is left has an end of its own
			silence.Stop()
			received = nil
		case <-silence.C:
			return fleet.Errorf(fleet.ErrUnavailable, "upload: nothing came for %s: try again", uploadSilence)
		}
	}
}

// upload is one call.
type upload struct {
	stream   grpc.ClientStreamingServer[towlinev1.UploadArtifactRequest, towlinev1.UploadArtifactResponse]
	heard    chan struct{}
	received chan struct{} // all of it
	digest   fleet.Digest
	file     *os.File
}

func (u *upload) run(a *API) (err error) {
	if u.file, err = os.CreateTemp("", "towline-upload-"); err != nil {
		return fleet.Errorf(fleet.ErrUnavailable, "upload: the hub has no place to put it: %v", err)
	}
	defer func() { err = errors.Join(err, u.file.Close()) }()
	if err := os.Remove(u.file.Name()); err != nil { // it goes with its last handle, also when the hub is killed
		return fmt.Errorf("upload: %w", err)
	}
	if err := u.receive(); err != nil {
		return err
	}
	close(u.received)
	if err := u.check(); err != nil {
		return named("upload", u.digest.Short(), err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.stream.Context()), storeUpload)
	defer cancel()
	if err := a.o.Store.Blobs().PutFrom(ctx, u.digest, u.unpacked, a.now().Add(keptUpload)); err != nil {
		return named("upload", u.digest.Short(), err)
	}
	return nil
}

// storeUpload is how long storing may take when all has come.
const storeUpload = 5 * time.Minute

// receive reads all messages.
func (u *upload) receive() error {
	total := 0
	for first := true; ; first = false {
		m, err := u.stream.Recv()
		if errors.Is(err, io.EOF) && !first {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return fleet.Invalid("digest", "is missing: an upload begins with it")
		}
		if err != nil {
			return err
		}
		select {
		case u.heard <- struct{}{}:
		default:
		}
		switch total += len(m.GetData()); {
		case first:
			if u.digest, err = uploadDigest(m.GetDigest()); err != nil {
				return err
			}
		case m.GetDigest() != "":
			return fleet.Invalid("digest", "is in the first message only")
		}
		if len(m.GetData()) > maxUploadPiece {
			return fleet.Errorf(fleet.ErrExhausted, "upload: a message of %d bytes; at most %d are allowed", len(m.GetData()), maxUploadPiece)
		}
		if total > artifact.MaxPackedBytes {
			return fleet.Errorf(fleet.ErrExhausted, "upload: has more than %d MiB packed: leave out what is not to be delivered, or use another source", artifact.MaxPackedBytes>>20)
		}
		if _, err := u.file.Write(m.GetData()); err != nil {
			return fleet.Errorf(fleet.ErrUnavailable, "upload: the hub has no place to put it: %v", err)
		}
	}
}

// check refuses what is no set of files, or not that of the digest.
func (u *upload) check() error {
	r, err := u.unpacked()
	if err != nil {
		return err
	}
	sum := sha256.New()
	if err := artifact.Check(io.TeeReader(r, sum)); err != nil {
		return err
	}
	if got := fleet.Digest(sum.Sum(nil)); got != u.digest {
		return fleet.Errorf(fleet.ErrCorrupt, "the files have digest %s, not %s: they changed on the way", got, u.digest)
	}
	return nil
}

// unpacked reads the frame from its beginning.
func (u *upload) unpacked() (io.Reader, error) {
	if _, err := u.file.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	dec, err := zstd.NewReader(u.file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(uploadWindow))
	if err != nil {
		return nil, fmt.Errorf("upload: %w", err)
	}
	return &frame{dec}, nil
}

// frame explains what cannot be unpacked, and lets go of the decoder at its end.
type frame struct{ dec *zstd.Decoder }

func (f *frame) Read(p []byte) (int, error) {
	n, err := f.dec.Read(p)
	if err != nil {
		f.dec.Close()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = fleet.Errorf(fleet.ErrInvalid, "is no zstd frame, or cut off: %v", err)
	}
	return n, err
}
