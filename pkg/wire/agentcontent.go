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
		return nil, corrupt(err)
	}
	size := h.FrameContentSize
	switch {
	case !h.HasFCS && len(b) > 2*small:
		return decompressStream(b, max)
	case !h.HasFCS:
		size = uint64(min(small, max))
	case size > uint64(max):
		return nil, tooLarge(max)
	}
	out, err := decoder.DecodeAll(b, make([]byte, 0, size))
	switch {
	case err != nil && !h.HasFCS: // it may be larger
		return decompressStream(b, max)
	case err != nil:
		return nil, corrupt(err)
	}
	return out, nil
}

// small is the size from which on a frame of Compress says how large its content is. A stream takes a hundred times that to
// read a content of less.
const small = 256

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
		return nil, corrupt(err)
	case len(out) > max:
		return nil, tooLarge(max)
	}
	return out, nil
}

func corrupt(err error) error { return fleet.Errorf(fleet.ErrCorrupt, "zstd: %v", err) }

func tooLarge(max int) error {
	return fleet.Errorf(fleet.ErrExhausted, "zstd: holds more than %d bytes", max)
}
