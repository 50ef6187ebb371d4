package wire

import (
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"towline.dev/towline/pkg/fleet"
)

// MaxContentBytes is the largest content (object, bundle, policies) after decompression.
const MaxContentBytes = 16 << 20

// The coders are shared; EncodeAll and DecodeAll are safe for concurrent use.
var (
	encoder = newEncoder()
	decoder = must(zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxContentBytes), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true)))
)

// newEncoder makes the encoder's own channels now: those made later would belong to the first synctest bubble that uses
// them, and to no other.
func newEncoder() *zstd.Encoder {
	e := must(zstd.NewWriter(nil, zstd.WithWindowSize(512<<10), zstd.WithLowerEncoderMem(true)))
	e.EncodeAll([]byte{0}, nil)
	return e
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Compress is b as zstd.
func Compress(b []byte) []byte { return encoder.EncodeAll(b, make([]byte, 0, len(b)/4+64)) }

// Decompress undoes Compress, or any zstd, and allocates at most max bytes for the result whatever the input says.
func Decompress(b []byte, max int) ([]byte, error) {
	var h zstd.Header
	if err := h.Decode(b); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "zstd: %v", err)
	}
	if !h.HasFCS {
		return decompressStream(b, max)
	}
	if h.FrameContentSize > uint64(max) {
		return nil, tooLarge(max)
	}
	out, err := decoder.DecodeAll(b, make([]byte, 0, h.FrameContentSize))
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "zstd: %v", err)
	}
	return out, nil
}

// decompressStream reads a frame that does not say its size.
func decompressStream(b []byte, max int) ([]byte, error) {
	r, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxContentBytes),
		zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	defer r.Close()
	out, err := io.ReadAll(io.LimitReader(r, int64(max)+1))
	switch {
	case err != nil:
		return nil, fleet.Errorf(fleet.ErrCorrupt, "zstd: %v", err)
	case len(out) > max:
		return nil, tooLarge(max)
	}
	return out, nil
}

func tooLarge(max int) error {
	return fleet.Errorf(fleet.ErrExhausted, "zstd: holds more than %d bytes", max)
}
