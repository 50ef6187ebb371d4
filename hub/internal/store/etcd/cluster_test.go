package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/etcd"
)

// Endpoints of two clusters of etcd, as when a member was made anew as a cluster of its own, are refused: what is written to the one is not
// to be read from the other.
func TestEndpointsOfTwoClustersAreRefused(t *testing.T) {
	one, two := ownEtcd(t), ownEtcdAt(t, "", "another")
	ctx := within(t)
	for ctx.Err() == nil { // it asks those that it has reached
		b, err := etcd.Open(ctx, etcd.Options{Endpoints: append(endpoint(one), endpoint(two)...)})
		if err == nil {
			err = asked(ctx, b)
		}
		if errors.Is(err, backend.ErrAnother) {
			if !strings.Contains(err.Error(), "--etcd-endpoints") || !strings.Contains(err.Error(), "restored from a snapshot may be another one") {
				t.Errorf("it does not say what to do: %v", err)
			}
			return
		}
		t.Log(err)
	}
	t.Error("they are taken for one")
}

// asked asks a backend some times, and closes it.
func asked(ctx context.Context, b backend.Backend) (err error) {
	for n := 0; n < 100 && err == nil; n++ {
		_, err = b.Revision(ctx)
	}
	return errors.Join(err, b.Close())
}

// The same where the other one comes later: what was told as written is where it was read from, and the store ends.
func TestStoreEndsWhenAnotherClusterAnswers(t *testing.T) {
	one := ownEtcd(t)
	later := filepath.Join(t.TempDir(), "s")
	o := etcd.Options{Endpoints: append(endpoint(one), "unix:"+later)}
	e, err := engine.Open(within(t), openBackend(t, o), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	s := e.As(store.Everyone)
	sub := e.Subscribe(nil, "meta/")
	defer sub.Stop()
	count(t, s, "meta/uid/first", 1)
	ownEtcdAt(t, later, "another")

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range sub.C() {
		}
	}()
	ctx := within(t)
	var told []string
	for n := 0; ; n++ {
		key := fmt.Sprintf("meta/uid/%d", n)
		if _, err = s.Update(ctx, func(w store.Writer) error {
			w.Put(key, &storev1.Counter{Value: 1})
			return nil
		}); err != nil {
			break
		}
		told = append(told, key)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatalf("it goes on: %v", err)
	}
	b := openBackend(t, etcd.Options{Endpoints: endpoint(one)})
	defer func() { _ = b.Close() }()
	for _, key := range told {
		found, _, err := b.Get(ctx, 0, "r/"+key)
		if err != nil || len(found) == 0 {
			t.Errorf("%s was told as written, and is not: %v", key, err)
		}
	}
}
