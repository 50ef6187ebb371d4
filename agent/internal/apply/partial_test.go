package apply

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// written makes an inventory of a base and two segments, with one write that failed between.
func written(t *testing.T) (store *files, newest string) {
	t.Helper()
	store = &files{names: map[string][]byte{}}
	inv, err := Open(context.Background(), store, newVault(t), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	inv.Recall("", func(part string) { newest = part })
	for i := range 4 {
		inv.Put(rec(i, nil))
		if i == 1 {
			inv.Rewrite()
		}
		if i == 2 {
			store.fail = fleet.ErrUnavailable
			_ = inv.flush(context.Background())
			store.fail = nil
		}
		if err := inv.flush(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	return store, newest
}

// A Secret of the state may be deleted by somebody, or by a tool that takes it for unused. What it listed must not count as
// what was never ours.
func TestMissingPartOfTheInventoryIsSeen(t *testing.T) {
	whole, newest := written(t)
	if len(whole.names) != 3 {
		t.Fatalf("%d segments", len(whole.names))
	}
	open := func(names map[string][]byte) *Inventory {
		inv, err := Open(context.Background(), &files{names: names}, newVault(t), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		inv.Recall(newest, func(part string) { newest = part })
		return inv
	}
	if inv := open(maps.Clone(whole.names)); inv.Partial() || len(inv.Module(shop)) != 4 {
		t.Errorf("a whole inventory of %d records is called partial: %v", len(inv.Module(shop)), inv.Partial())
	}
	was := newest
	for name := range whole.names {
		newest = was
		left := maps.Clone(whole.names)
		delete(left, name)
		inv := open(left)
		if !inv.Partial() {
			t.Errorf("that %s is missing is not seen", name)
		}
		if err := inv.flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		if again := open(left); again.Partial() || len(again.Module(shop)) != len(inv.Module(shop)) {
			t.Errorf("without %s: what is left was not written as a whole: %d segments", name, len(left))
		}
	}
}

// A write that arrived though its answer was lost leaves a base that no segment names.
func TestWriteWithoutAnAnswerLeavesNoHole(t *testing.T) {
	store, _ := written(t)
	for name, data := range maps.Clone(store.names) {
		if !strings.HasSuffix(name, "-base") {
			continue
		}
		store.names[segmentName(3, true)] = data // 3 is the write that failed
		inv, err := Open(context.Background(), store, newVault(t), slog.New(slog.DiscardHandler))
		if err != nil || inv.Partial() {
			t.Errorf("%v, or called partial", err)
		}
	}
}
