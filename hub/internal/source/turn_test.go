package source

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestUnpackingHasItsOwnTime: what a source gives its server, which its author chooses, is no time in which it keeps a place from others.
func TestUnpackingHasItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fetcher(t, Options{})
		slow := make(chan error, maxUnpacking)
		began := time.Now()
		for range maxUnpacking {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				_, err := f.unpackWith(ctx, func(ctx context.Context) (map[string][]byte, error) {
					<-ctx.Done()
					return nil, refused("is damaged: %v", ctx.Err())
				})
				slow <- place{name: "git.example.com", field: "source.git", timeout: 10 * time.Minute}.explain(ctx, err)
			}()
		}
		synctest.Wait()
		if _, err := f.unpackWith(t.Context(), func(context.Context) (map[string][]byte, error) { return nil, nil }); err != nil || time.Since(began) > maxUnpackTime {
			t.Errorf("another one waited %v: %v", time.Since(began), err)
		}
		for range maxUnpacking {
			if err := <-slow; !errors.Is(err, fleet.ErrStopped) || !strings.Contains(err.Error(), "takes the hub more than 2m0s to unpack") {
				t.Errorf("a slow one: %v", err)
			}
		}
	})
}

// TestTimeIsOverWhileItIsUnpacked: what has arrived in time is unpacked, and what is wrong with it is told; nobody is sent to look at a server
// that has done its part. Who is told to stop stops.
func TestTimeIsOverWhileItIsUnpacked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, from := fetcher(t, Options{}), place{name: "git.example.com", field: "source.git", timeout: time.Second}
		try := func(result error) error {
			ctx, cancel := context.WithTimeout(t.Context(), from.timeout)
			defer cancel()
			_, err := f.unpackWith(ctx, func(context.Context) (map[string][]byte, error) {
				<-time.After(2 * time.Second)
				return nil, result
			})
			if err != nil {
				err = from.explain(ctx, err)
			}
			return err
		}
		if err := try(nil); err != nil {
			t.Error(err)
		}
		if err := try(refused("has no end")); !errors.Is(err, fleet.ErrInvalid) || strings.Contains(err.Error(), "did not arrive") {
			t.Errorf("what is refused: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		time.AfterFunc(time.Second, cancel)
		_, err := f.unpackWith(ctx, func(ctx context.Context) (map[string][]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if err = from.explain(ctx, err); !errors.Is(err, context.Canceled) || time.Since(began) > time.Second {
			t.Errorf("a hub that stops: %v after %v", err, time.Since(began))
		}
	})
}
