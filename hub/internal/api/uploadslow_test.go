package api

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

// slowStore takes its time to keep a content.
type slowStore struct {
	store.Store
	takes time.Duration
}

func (s slowStore) Blobs() store.Blobs { return slowBlobs{takes: s.takes} }

type slowBlobs struct {
	store.Blobs
	takes time.Duration
}

func (s slowBlobs) PutFrom(ctx context.Context, _ fleet.Digest, _ func() (io.Reader, error), _ time.Time) error {
	select {
	case <-time.After(s.takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// uploading is a client that sends an upload.
type uploading struct {
	grpc.ClientStreamingServer[towlinev1.UploadArtifactRequest, towlinev1.UploadArtifactResponse]
	ctx   context.Context
	sends []*towlinev1.UploadArtifactRequest
	hangs bool // in place of its end
	got   *towlinev1.UploadArtifactResponse
}

func (u *uploading) Context() context.Context { return u.ctx }

func (u *uploading) Recv() (*towlinev1.UploadArtifactRequest, error) {
	if len(u.sends) == 0 && u.hangs {
		<-u.ctx.Done()
		return nil, u.ctx.Err()
	}
	if len(u.sends) == 0 {
		return nil, io.EOF
	}
	m := u.sends[0]
	u.sends = u.sends[1:]
	return m, nil
}

func (u *uploading) SendAndClose(m *towlinev1.UploadArtifactResponse) error {
	u.got = m
	return nil
}

// TestUploadIntoASlowStore: a client that has sent all of it is not silent while the hub keeps it. One that stops before is.
func TestUploadIntoASlowStore(t *testing.T) {
	data := artifact.Encode(map[string][]byte{"a.yaml": []byte("a")})
	pack, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	frame := pack.EncodeAll(data, nil)
	for name, hangs := range map[string]bool{"all of it": false, "a part": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				a := &API{o: Options{Store: slowStore{takes: 3 * uploadSilence}}, uploads: make(chan struct{}, 1), now: time.Now}
				u := &uploading{ctx: ctx, hangs: hangs, sends: []*towlinev1.UploadArtifactRequest{{Digest: fleet.DigestOf(data).String(), Data: frame}}}
				err := a.UploadArtifact(u)
				if silent := err != nil && strings.Contains(err.Error(), "nothing came for"); silent != hangs || !hangs && (err != nil || u.got == nil) {
					t.Errorf("got %v, %v", u.got, err)
				}
			})
		})
	}
}
