package bundle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// of stores a bundle of ConfigMaps with these contents.
func (s *source) of(contents ...string) fleet.Digest {
	var entries []fleet.BundleEntry
	for i, text := range contents {
		d := fleet.DigestOf([]byte(text))
		s.contents[d] = []byte(text)
		entries = append(entries, fleet.BundleEntry{Digest: d, Version: "v1", ID: fleet.ObjectID{Kind: "ConfigMap", Name: fmt.Sprintf("c-%d", i)}})
	}
	d, content := assemble.BundleDigest(entries)
	s.contents[d] = content
	return d
}

func TestDeltaHasWhatIsNew(t *testing.T) {
	s := &source{contents: map[fleet.Digest][]byte{}}
	c := New(s)
	one, two := s.of("a", "b"), s.of("a", "c", "c")
	for name, tc := range map[string]struct {
		from, to fleet.Digest
		objects  string
	}{
		"from nothing":   {fleet.Digest{}, one, "a b"},
		"one is new":     {one, two, "c"},
		"to the same":    {one, one, ""},
		"and once more":  {one, two, "c"},
		"and back again": {two, one, "b"},
	} {
		d, err := c.Delta(t.Context(), tc.from, tc.to)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, o := range d.GetObjects() {
			if digest, err := fleet.DigestFromBytes(o.GetDigest()); err != nil || digest != fleet.DigestOf(o.GetData()) {
				t.Errorf("%s: object %v, %v", name, digest, err)
			}
			got = append(got, string(o.GetData()))
		}
		if strings.Join(got, " ") != tc.objects || string(d.GetManifest()) != string(s.contents[tc.to]) {
			t.Errorf("%s: objects %q, want %q; manifest %q", name, got, tc.objects, d.GetManifest())
		}
	}
	reads := s.reads
	if _, err := c.Delta(t.Context(), one, two); err != nil || s.reads != reads {
		t.Errorf("a delta that was made is made again: %v", err)
	}
}

func TestDeltaIsNoneWhereItIsLarge(t *testing.T) {
	s := &source{contents: map[fleet.Digest][]byte{}}
	c := New(s)
	half := strings.Repeat("x", MaxDelta/2)
	to := s.of(half+"1", half+"2")
	if d, err := c.Delta(t.Context(), fleet.Digest{}, to); err != nil || d != nil {
		t.Errorf("%d objects, %v", len(d.GetObjects()), err)
	}
	if d, err := c.Delta(t.Context(), s.of(half+"1"), to); err != nil || len(d.GetObjects()) != 1 {
		t.Errorf("%d objects, %v; want the one that is new", len(d.GetObjects()), err)
	}
	missing := s.of("gone")
	delete(s.contents, missing)
	if _, err := c.Delta(t.Context(), fleet.Digest{}, missing); err == nil {
		t.Error("a bundle that is not there has a delta")
	}
}

func TestDeltasAreBounded(t *testing.T) {
	s := &source{contents: map[fleet.Digest][]byte{}}
	c := New(s)
	for i := range 2 * maxKept / (MaxDelta / 2) {
		if _, err := c.Delta(t.Context(), fleet.Digest{}, s.of(strings.Repeat("x", MaxDelta/2)+fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for _, d := range c.deltas.of {
		total += keptCost + Size(d)
	}
	if total > maxKept || total != c.deltas.bytes || len(c.deltas.of) != len(c.deltas.order) || len(c.deltas.of) < 100 {
		t.Errorf("%d bytes in %d deltas, counted %d, ordered %d", total, len(c.deltas.of), c.deltas.bytes, len(c.deltas.order))
	}
}

// patient answers as long as the one who asks waits.
type patient struct {
	*source
	asked chan struct{}
	goOn  chan struct{}
}

func (p patient) GetCompressed(ctx context.Context, d fleet.Digest) ([]byte, error) {
	p.asked <- struct{}{}
	select {
	case <-p.goOn:
		return p.source.GetCompressed(ctx, d)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestDeltaOutlivesWhoAsksFirst: that the session of the agent that asks first ends breaks off nothing that others wait for.
func TestDeltaOutlivesWhoAsksFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{contents: map[fleet.Digest][]byte{}}
		to := src.of("a")
		blobs := patient{source: src, asked: make(chan struct{}, 9), goOn: make(chan struct{})}
		c := New(blobs)
		first, end := context.WithCancel(t.Context())
		over, got := make(chan error, 1), make(chan error, 1)
		go func() { _, err := c.Delta(first, fleet.Digest{}, to); over <- err }()
		<-blobs.asked
		go func() { _, err := c.Delta(t.Context(), fleet.Digest{}, to); got <- err }()
		synctest.Wait() // the other one waits, too
		end()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Errorf("who has gone is told %v", err)
		}
		close(blobs.goOn)
		if err := <-got; err != nil {
			t.Errorf("who waits is told %v", err)
		}
	})
}

// broken has a bug.
type broken struct{ *source }

func (broken) GetCompressed(context.Context, fleet.Digest) ([]byte, error) { panic("of the blobs") }

// TestDeltaThatPanicsIsAnError of those who ask for it, and ends no other.
func TestDeltaThatPanicsIsAnError(t *testing.T) {
	src := &source{contents: map[fleet.Digest][]byte{}}
	to := src.of("a")
	if _, err := New(broken{src}).Delta(t.Context(), fleet.Digest{}, to); err == nil || !strings.Contains(err.Error(), "panic") {
		t.Errorf("got %v", err)
	}
}
