package store_test

import (
	"context"
	"testing"
	"time"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
)

func openMemory(t testing.TB, o store.Options) store.Store {
	t.Helper()
	s, err := store.NewMemory(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func openEtcd(t testing.TB, o store.Options) store.Store {
	t.Helper()
	return openDir(t, store.EtcdOptions{Options: o, Dir: t.TempDir(), UnsafeNoFsync: true})
}

func openDir(t testing.TB, o store.EtcdOptions) store.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := store.OpenEtcd(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMemory(t *testing.T) { storetest.Run(t, openMemory) }

func TestEtcd(t *testing.T) { storetest.Run(t, openEtcd) }
