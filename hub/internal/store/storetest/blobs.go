package storetest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/pkg/fleet"
)

// noise is content that does not compress.
func noise(seed uint64, n int) []byte {
	var key [32]byte
	key[0] = byte(seed)
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

func testBlobs(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	blobs := s.Blobs()
	contents := [][]byte{{}, []byte("small"), bytes.Repeat([]byte("yaml: "), 100_000), noise(1, 600_000), noise(2, 3<<20), []byte("small")}
	digests, err := blobs.Put(timeout(t), contents...)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range digests {
		if d != fleet.DigestOf(contents[i]) {
			t.Fatalf("content %d has digest %s", i, d)
		}
		got, err := blobs.Get(timeout(t), d)
		if err != nil || !bytes.Equal(got, contents[i]) {
			t.Fatalf("content %d came back as %d bytes, %v", i, len(got), err)
		}
	}
	before, err := s.Barrier(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blobs.Put(timeout(t), contents...); err != nil {
		t.Fatal(err)
	}
	if after, err := s.Barrier(timeout(t)); err != nil || after != before {
		t.Errorf("what is there was written again: revision %d to %d, %v", before, after, err)
	}
	frame, err := blobs.GetCompressed(timeout(t), digests[2])
	if err != nil {
		t.Fatal(err)
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	if plain, err := dec.DecodeAll(frame, nil); err != nil || !bytes.Equal(plain, contents[2]) || len(frame) > len(plain)/10 {
		t.Errorf("the frame of %d bytes holds %d, %v", len(frame), len(plain), err)
	}
	if _, err := blobs.Get(timeout(t), fleet.DigestOf([]byte("never put"))); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a blob that is not there: %v", err)
	}
	if _, err := blobs.Put(timeout(t), noise(3, 67<<20)); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("a blob over the limit: %v", err)
	}
	testDamagedBlob(t, open)
}

// testDamagedBlob stores other bytes in chunks and reads them past the cache.
func testDamagedBlob(t *testing.T, open Opener) {
	f := &faulty{Backend: open(t)}
	s := opened(t, f, engine.Options{BlobCacheBytes: 1})
	flipped, swapped, whole := noise(1, 600_000), noise(8, 1000), noise(9, 1000)
	digests, err := s.Blobs().Put(timeout(t), flipped, swapped, whole)
	if err != nil {
		t.Fatal(err)
	}
	chunk := func(i int) string { return "b/blobchunks/" + digests[i].String() + "/0000" }
	damaged := bytes.Clone(mustGet(t, f, chunk(0)))
	damaged[100] ^= 1
	_, _, err = f.Backend.Commit(timeout(t), []backend.Part{{Then: []backend.Op{
		{Key: chunk(0), Value: damaged},
		{Key: chunk(1), Value: mustGet(t, f, chunk(2))}, // a sound frame, of another content
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if _, err := s.Blobs().Get(timeout(t), digests[i]); !errors.Is(err, fleet.ErrCorrupt) {
			t.Errorf("content %d: %v", i, err)
		}
		if _, err := s.Blobs().GetCompressed(timeout(t), digests[i]); !errors.Is(err, fleet.ErrCorrupt) {
			t.Errorf("frame %d: %v", i, err)
		}
	}
	if _, err := s.Blobs().Get(timeout(t), digests[2]); err != nil {
		t.Errorf("another blob: %v", err)
	}
	// Whoever puts them again mends them.
	if _, err := s.Blobs().Put(timeout(t), flipped, swapped, whole); err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]byte{flipped, swapped, whole} {
		if got, err := s.Blobs().Get(timeout(t), digests[i]); err != nil || !bytes.Equal(got, want) {
			t.Errorf("content %d, put again: %v", i, err)
		}
	}
}

func testCollect(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	blobs := s.Blobs()
	kept, dropped, late := []byte("kept"), bytes.Repeat([]byte("dropped"), 10), noise(4, 700_000)
	digests, err := blobs.Put(timeout(t), kept, dropped, late)
	if err != nil {
		t.Fatal(err)
	}
	live := func(yield func(fleet.Digest)) func([]byte) bool { yield(digests[0]); return nil }
	collect := func(want int) {
		t.Helper()
		if n, err := blobs.Collect(timeout(t), live); err != nil || n != want {
			t.Fatalf("collected %d, %v; want %d", n, err, want)
		}
	}
	collect(0) // the first sweep only looks
	// Somebody puts one of them again: it stays for two more sweeps.
	epoch, err := blobs.Epoch(timeout(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blobs.Put(timeout(t), late); err != nil {
		t.Fatal(err)
	}
	collect(1)
	if _, err := blobs.Get(timeout(t), digests[1]); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("the dropped one: %v", err)
	}
	for _, i := range []int{0, 2} {
		if _, err := blobs.Get(timeout(t), digests[i]); err != nil {
			t.Errorf("blob %d: %v", i, err)
		}
	}
	// A commit under the epoch before the sweep fails; put again, it passes.
	refer := func(epoch uint64) error {
		_, err := s.Update(timeout(t), func(w store.Writer) error {
			w.References(epoch)
			w.Put(key("ref"), counter(epoch))
			return nil
		})
		return err
	}
	if err := refer(epoch); !errors.Is(err, fleet.ErrConflict) {
		t.Errorf("a reference under an old epoch: %v", err)
	}
	if epoch, err = blobs.Epoch(timeout(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := blobs.Put(timeout(t), dropped); err != nil {
		t.Fatal(err)
	}
	if err := refer(epoch); err != nil {
		t.Errorf("a reference under the epoch of the put: %v", err)
	}
	if got, err := blobs.Get(timeout(t), digests[1]); err != nil || !bytes.Equal(got, dropped) {
		t.Errorf("put again: %v", err)
	}
	testOrphans(t, open)
}

// testOrphans leaves chunks of an upload that never got its head.
func testOrphans(t *testing.T, open Opener) {
	s, f := openFaulty(t, open)
	orphan := "b/blobchunks/" + fleet.DigestOf([]byte("orphan")).String() + "/0000"
	if _, _, err := f.Backend.Commit(timeout(t), []backend.Part{{Then: []backend.Op{{Key: orphan, Value: []byte("x")}}}}); err != nil {
		t.Fatal(err)
	}
	for sweep := range 2 {
		if len(mustGet(t, f, orphan)) == 0 {
			t.Fatalf("gone before sweep %d", sweep+1)
		}
		if _, err := s.Blobs().Collect(timeout(t), func(func(fleet.Digest)) func([]byte) bool { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if len(mustGet(t, f, orphan)) > 0 {
		t.Error("the orphan is still there after two sweeps")
	}
}
