package desired

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/pkg/fleet"
)

// maxLoose is how many bytes of packs the record may carry. One write is durable sooner than several in order, and a
// change waits for it; a record that carries much is slow to write each time.
const maxLoose = 64 << 10

// keepOnly is a new map of the packs that are needed still.
func keepOnly(loose map[fleet.Digest][]byte, roots []fleet.Digest) map[fleet.Digest][]byte {
	out := map[fleet.Digest][]byte{}
	for _, root := range roots {
		if pack, ok := loose[root]; ok {
			out[root] = pack
		}
	}
	return out
}

func size(loose map[fleet.Digest][]byte) (bytes int) {
	for _, pack := range loose {
		bytes += len(pack)
	}
	return bytes
}

func items(loose map[fleet.Digest][]byte) []state.Item {
	var out []state.Item
	for _, root := range slices.SortedFunc(maps.Keys(loose), compareDigests) {
		out = append(out, state.Item{Name: packName(root), Data: loose[root]})
	}
	return out
}

// file writes loose packs into files, so that the next record need not carry them. The record that does is not written
// again for that: it says the same.
func (s *Store) file(ctx context.Context) error {
	loose := items(s.current().loose)
	if len(loose) == 0 {
		return nil
	}
	if err := s.state.WriteAll(ctx, loose...); err != nil {
		return fmt.Errorf("desired: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := *s.set
	next.loose = nil
	s.set = &next
	return nil
}
