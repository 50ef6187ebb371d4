package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"towline.dev/towline/hub/internal/store/backend"
)

// testShown: what a watch has shown, reads show too, whatever else is written: a reader that is behind what it was told would take
// the backend for an older copy.
func testShown(t *testing.T, open Opener) {
	b := open(t)
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	const prefix, writers, writes = "r/shown/", 4, 500
	ctx, cancel := context.WithCancel(timeout(t))
	defer cancel()
	from, err := b.Revision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	shown := make(chan int64, writers*writes)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { _ = b.Watch(ctx, prefix, from+1, func(c backend.Changes) { shown <- c.Revision }) })
	for i := range writers {
		running.Go(func() {
			for n := 0; n < writes && ctx.Err() == nil; n++ {
				op := backend.Op{Key: fmt.Sprintf("%s%d", prefix, i), Value: fmt.Append(nil, n)}
				if _, _, err := b.Commit(ctx, []backend.Part{{Then: []backend.Op{op}}}); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	for told := int64(0); told < from+writers*writes; {
		select {
		case told = <-shown:
		case <-ctx.Done():
			t.Fatalf("the watch is at revision %d of %d", told, from+writers*writes)
		}
		if now, err := b.Revision(ctx); err != nil || now < told {
			t.Fatalf("Revision: %d, %v, behind the watch at %d", now, err, told)
		}
		if p, err := b.Range(ctx, backend.RangeQuery{Prefix: prefix, Limit: 1}); err != nil || p.Revision < told {
			t.Fatalf("Range: %d, %v, behind the watch at %d", p.Revision, err, told)
		}
		if _, now, err := b.Get(ctx, told, prefix+"0"); err != nil || now < told {
			t.Fatalf("Get: %d, %v, behind the watch at %d", now, err, told)
		}
	}
}
