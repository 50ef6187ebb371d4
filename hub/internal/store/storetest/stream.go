package storetest

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/pkg/fleet"
)

// streamed puts a content piece by piece, again where a store whose disk is busy gave up on a piece.
func streamed(t *testing.T, blobs store.Blobs, d fleet.Digest, content []byte, until time.Time) (err error) {
	for range 5 {
		err = blobs.PutFrom(timeout(t), d, func() (io.Reader, error) { return bytes.NewReader(content), nil }, until)
		if !errors.Is(err, fleet.ErrUnavailable) {
			return err
		}
	}
	return err
}

func testStream(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	blobs := s.Blobs()
	hour := time.Now().Add(time.Hour)
	for name, content := range map[string][]byte{"empty": {}, "small": []byte("small"), "text": bytes.Repeat([]byte("yaml: "), 100_000), "large": noise(11, 18<<20)} {
		d := fleet.DigestOf(content)
		for range 2 { // the second time it is there
			if err := streamed(t, blobs, d, content, hour); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		for _, read := range []func() ([]byte, error){func() ([]byte, error) { return blobs.Read(timeout(t), d) }, func() ([]byte, error) { return blobs.Get(timeout(t), d) }} {
			if got, err := read(); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%s came back as %d bytes, %v", name, len(got), err)
			}
		}
	}
	wrong, content := fleet.DigestOf([]byte("something else")), noise(12, 2<<20)
	if err := streamed(t, blobs, wrong, content, hour); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("content of another digest: %v", err)
	}
	if _, err := blobs.Read(timeout(t), wrong); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("it is there: %v", err)
	}
	broken := errors.New("the line broke")
	err := blobs.PutFrom(timeout(t), fleet.DigestOf(content), func() (io.Reader, error) { return nil, broken }, hour)
	if !errors.Is(err, broken) {
		t.Errorf("what cannot be read: %v", err)
	}
	if err := streamed(t, blobs, fleet.DigestOf(content), noise(13, 67<<20), hour); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("more than the limit: %v", err)
	}
	testStreamRace(t, blobs, content)
}

// testStreamRace: many put the same content, in pieces and whole, and none spoils what another one has stored.
func testStreamRace(t *testing.T, blobs store.Blobs, content []byte) {
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			var err error
			if i%2 == 0 {
				err = streamed(t, blobs, fleet.DigestOf(content), content, time.Now().Add(time.Hour))
			} else {
				_, err = blobs.Put(timeout(t), content)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, err := blobs.Read(timeout(t), fleet.DigestOf(content)); err != nil || !bytes.Equal(got, content) {
		t.Errorf("after all of them: %d bytes, %v", len(got), err)
	}
}

// testKeep: what nobody refers to is kept until its time, and goes after it.
func testKeep(t *testing.T, open Opener) {
	blobs := opened(t, open(t), engine.Options{}).Blobs()
	kept, over, again := []byte("kept"), []byte("over"), []byte("kept again")
	for content, until := range map[string]time.Time{string(kept): time.Now().Add(time.Hour), string(over): time.Now().Add(-time.Second), string(again): time.Now().Add(-time.Second)} {
		if err := streamed(t, blobs, fleet.DigestOf([]byte(content)), []byte(content), until); err != nil {
			t.Fatal(err)
		}
	}
	if err := blobs.Keep(timeout(t), fleet.DigestOf(again), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := blobs.Keep(timeout(t), fleet.DigestOf([]byte("never put")), time.Now().Add(time.Hour)); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a keep of what is not there: %v", err)
	}
	for range 4 {
		if _, err := blobs.Collect(timeout(t), func(func(fleet.Digest)) func([]byte) bool { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, content := range [][]byte{kept, again} {
		if _, err := blobs.Read(timeout(t), fleet.DigestOf(content)); err != nil {
			t.Errorf("%s: %v", content, err)
		}
	}
	if _, err := blobs.Read(timeout(t), fleet.DigestOf(over)); !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("over: %v", err)
	}
}
