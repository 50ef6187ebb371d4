package bundle

import (
	"context"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// without is a source that has lost a content.
type without struct {
	*source
	lost fleet.Digest
}

func (w without) Get(ctx context.Context, d fleet.Digest) ([]byte, error) {
	if d == w.lost {
		return nil, fleet.Errorf(fleet.ErrNotFound, "content %s: is not there", d.Short())
	}
	return w.source.Get(ctx, d)
}

func TestPatchIsOfWhatChanged(t *testing.T) {
	s := &source{contents: map[fleet.Digest][]byte{}}
	c := New(s)
	long := strings.Repeat("what stays as it was ", 50)
	one, two := s.of("a", long+"1", "c"), s.of("a", long+"2", "c")
	plain, err := c.Patch(t.Context(), one, two, false)
	if err != nil || plain.GetDictionary() || len(plain.GetOrdinals()) != 1 || plain.GetOrdinals()[0] != 1 {
		t.Fatalf("%v, %v", plain, err)
	}
	packed, err := c.Patch(t.Context(), one, two, true)
	if err != nil || !packed.GetDictionary() || len(packed.GetContents()) >= len(plain.GetContents()) {
		t.Fatalf("%v, %v", packed, err)
	}
	reads := s.reads
	if again, err := c.Patch(t.Context(), one, two, true); err != nil || again != packed || s.reads != reads {
		t.Errorf("a patch that was made is made again: %v", err)
	}
}

func TestPatchThatThereIsNot(t *testing.T) {
	s := &source{contents: map[fleet.Digest][]byte{}}
	c := New(s)
	if p, err := c.Patch(t.Context(), s.of("a"), s.of("a", "b"), true); err != nil || p != nil {
		t.Errorf("of one more object: %v, %v", p, err)
	}
	huge := strings.Repeat("x", wire.MaxPatchBytes)
	if p, err := c.Patch(t.Context(), s.of("a"), s.of(huge+"1"), true); err != nil || p != nil {
		t.Errorf("of more than a move may have: %v, %v", p.GetSizes(), err)
	}
	if p, err := c.Patch(t.Context(), s.of(huge+"1"), s.of("a"), true); err != nil || p.GetDictionary() {
		t.Errorf("of a dictionary that is too large: %v, %v", p.GetDictionary(), err)
	}
}

// The hub may have forgotten what the objects were before; the agent gets them whole then.
func TestPatchWithoutItsDictionary(t *testing.T) {
	s := &source{contents: map[fleet.Digest][]byte{}}
	one, two := s.of("a", "b"), s.of("a", "c")
	c := New(without{s, fleet.DigestOf([]byte("b"))})
	p, err := c.Patch(t.Context(), one, two, true)
	if err != nil || p == nil || p.GetDictionary() {
		t.Errorf("%v, %v", p, err)
	}
}
