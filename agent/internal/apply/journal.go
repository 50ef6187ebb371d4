package apply

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Limits of the inventory's writing.
const (
	flushRecords  = 1000
	flushDelay    = 200 * time.Millisecond
	flushRetry    = time.Second
	maxSegments   = 64
	minCompaction = 64 << 10
)

// Sync returns when every change so far is durable. It fails if the store does.
func (inv *Inventory) Sync(ctx context.Context) error {
	inv.mu.Lock()
	want := inv.change
	inv.failed = nil
	for {
		done, failed, moved := inv.durable >= want, inv.failed, inv.moved
		inv.mu.Unlock()
		switch {
		case done:
			return nil
		case failed != nil:
			return &Failure{Reason: ReasonInventory, Transient: true, Kind: fleet.ErrUnavailable,
				Message: fmt.Sprintf("inventory cannot be written, so nothing is: %v", failed)}
		}
		dirty.Poke(inv.urgent)
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
		inv.mu.Lock()
	}
}

// Run writes changes until the context ends, and what is left then.
func (inv *Inventory) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			return inv.flush(last)
		case <-inv.urgent:
		case <-inv.soon:
			inv.linger(ctx)
		}
		if err := inv.flush(ctx); err != nil && ctx.Err() == nil {
			inv.log.Warn("inventory cannot be written", "error", err)
			_ = backoff.Wait(ctx, flushRetry)
			dirty.Poke(inv.soon)
		}
	}
}

// linger waits for more changes to share the write.
func (inv *Inventory) linger(ctx context.Context) {
	t := time.NewTimer(flushDelay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-inv.urgent:
	case <-ctx.Done():
	}
}

// writing is one write of the inventory under way.
type writing struct {
	name  string
	as    uint64 // its number
	base  bool   // it replaces all segments before it
	part  segment
	dirty map[fleet.ObjectID]bool
	lossy map[fleet.ModuleRef]bool
	upTo  uint64 // the newest change in it
}

// flush writes what changed as one segment, or everything as a new base.
func (inv *Inventory) flush(ctx context.Context) error {
	inv.mu.Lock()
	if len(inv.dirty)+len(inv.lossy) == 0 && !inv.rewrite {
		inv.mu.Unlock()
		return nil
	}
	w := inv.begin()
	inv.mu.Unlock()
	data, err := w.part.encode(inv.vault)
	if err == nil {
		err = inv.state.Write(ctx, w.name, data)
	}
	inv.mu.Lock()
	replaced := inv.end(w, len(data), err)
	inv.wake()
	inv.mu.Unlock()
	for _, n := range replaced {
		inv.discard(ctx, n)
	}
	return err
}

// begin takes what is to be written.
func (inv *Inventory) begin() writing {
	inv.sequence++
	base := inv.rewrite || len(inv.segments) >= maxSegments || inv.bytes > minCompaction && inv.bytes > 2*inv.baseBytes
	w := writing{name: segmentName(inv.sequence, base), as: inv.sequence, base: base, dirty: inv.dirty, lossy: inv.lossy, upTo: inv.change}
	inv.dirty, inv.lossy = map[fleet.ObjectID]bool{}, map[fleet.ModuleRef]bool{}
	if base {
		for _, r := range inv.records {
			w.part.records = append(w.part.records, r)
		}
		known := map[fleet.ModuleRef]bool{}
		for _, refs := range []iter.Seq[fleet.ModuleRef]{maps.Keys(inv.losses), maps.Keys(inv.left), maps.Keys(inv.revisions), maps.Keys(inv.listings)} {
			for ref := range refs {
				if !known[ref] {
					known[ref] = true
					w.part.losses = append(w.part.losses, inv.lossOf(ref))
				}
			}
		}
		return w
	}
	w.part.after = firstSegment
	if n := len(inv.segments); n > 0 {
		w.part.after = inv.segments[n-1]
	}
	for ref := range w.lossy {
		w.part.losses = append(w.part.losses, inv.lossOf(ref))
	}
	for id := range w.dirty {
		if r := inv.records[id]; r != nil {
			w.part.records = append(w.part.records, r)
			continue
		}
		w.part.dropped = append(w.part.dropped, id)
	}
	return w
}

// end takes note of what became of a write, and returns the segments that it replaces.
func (inv *Inventory) end(w writing, bytes int, err error) (replaced []string) {
	if err != nil {
		for id := range w.dirty {
			inv.dirty[id] = true
		}
		for ref := range w.lossy {
			inv.lossy[ref] = true
		}
		inv.failed = err
		return nil
	}
	inv.durable = w.upTo
	inv.note(strconv.FormatUint(w.as, 10))
	if !w.base {
		inv.segments, inv.bytes = append(inv.segments, w.name), inv.bytes+bytes
		return nil
	}
	replaced = inv.segments
	inv.rewrite, inv.segments, inv.bytes, inv.baseBytes = false, []string{w.name}, 0, bytes
	return replaced
}

// discard removes a segment that a newer base replaces. Until it is gone it is passed over.
func (inv *Inventory) discard(ctx context.Context, name string) {
	if err := inv.state.Remove(ctx, name); err != nil && !errors.Is(err, fleet.ErrNotFound) {
		inv.log.Warn("old inventory segment stays until the next start", "name", name, "error", err)
	}
}

func (inv *Inventory) wake() {
	close(inv.moved)
	inv.moved = make(chan struct{})
}

const segmentPrefix = "inventory-"

func segmentName(sequence uint64, base bool) string {
	if base {
		return fmt.Sprintf("%s%020d-base", segmentPrefix, sequence)
	}
	return fmt.Sprintf("%s%020d", segmentPrefix, sequence)
}

// load reads the newest base and the segments after it.
func (inv *Inventory) load(ctx context.Context) error {
	names, err := inv.state.List(ctx, segmentPrefix)
	if err != nil {
		return fmt.Errorf("inventory: %w", err)
	}
	names = sortedSegments(names)
	start := 0
	for i, n := range names {
		if strings.HasSuffix(n, "-base") {
			start = i
		}
		if _, err := fmt.Sscanf(strings.TrimPrefix(n, segmentPrefix), "%d", &inv.sequence); err != nil {
			return fleet.Errorf(fleet.ErrCorrupt, "inventory: segment %q has no number", n)
		}
	}
	for _, n := range names[:start] {
		inv.discard(ctx, n)
	}
	for _, n := range names[start:] {
		data, err := inv.state.Read(ctx, n)
		if err != nil {
			return fmt.Errorf("inventory: %w", err)
		}
		part, err := decodeSegment(data, inv.Paths)
		if err != nil {
			return fmt.Errorf("inventory %s: %w", n, err)
		}
		if part.after != "" && part.after != firstSegment && !slices.Contains(names, part.after) {
			inv.log.Error("a part of the inventory is missing: objects that only it listed are searched for by their marks", "part", part.after)
			inv.partial, inv.rewrite = true, true
		}
		plain, lost := part.unseal(inv.vault)
		if plain { // as an agent of before stored it
			inv.rewrite = true
			dirty.Poke(inv.soon)
		}
		if lost > 0 {
			inv.log.Warn("values that objects keep by a policy cannot be decrypted; those are kept that they have in the cluster", "part", n, "objects", lost)
		}
		for _, r := range part.records {
			inv.put(r)
		}
		for _, id := range part.dropped {
			if r := inv.records[id]; r != nil {
				inv.unlist(r)
				delete(inv.records, id)
			}
		}
		for _, l := range part.losses {
			inv.lose(l.module, l.change)
			inv.succeed(l.module, l.revision)
			if l.listing != (Listing{}) {
				inv.listings[l.module] = l.listing
			}
			delete(inv.left, l.module)
			if len(l.left) > 0 {
				inv.leave(l.module, l.left...)
			}
		}
		inv.bytes += len(data)
	}
	inv.segments = names[start:]
	inv.dirty, inv.lossy, inv.durable = map[fleet.ObjectID]bool{}, map[fleet.ModuleRef]bool{}, inv.change
	return nil
}

// reset starts empty, after what was there. The next write is a base that replaces it.
func (inv *Inventory) reset() {
	inv.records, inv.modules = map[fleet.ObjectID]*Record{}, map[fleet.ModuleRef]map[fleet.ObjectID]bool{}
	inv.losses, inv.left, inv.lossy = map[fleet.ModuleRef]plan.Change{}, map[fleet.ModuleRef]map[string]bool{}, map[fleet.ModuleRef]bool{}
	inv.revisions, inv.listings, inv.given = map[fleet.ModuleRef]int64{}, map[fleet.ModuleRef]Listing{}, map[fleet.ObjectID]bool{}
	inv.dirty, inv.durable, inv.bytes, inv.baseBytes = map[fleet.ObjectID]bool{}, inv.change, minCompaction+1, 0
}
