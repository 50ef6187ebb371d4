package watch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"towline.dev/towline/pkg/fleet"
)

// framer cuts the stream of a watch into events. API servers write each on a line of its own, so that the end of a line
// is the end of an event; where a line is not an event that is closed, lines are put together until they are JSON.
type framer struct {
	runtime.Framer
	// rest is called before the stream is waited for; it may be nil.
	rest func()
}

// NewFrameReader implements runtime.Framer.
func (f framer) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	return newFrames(r, f.rest, maxSilence)
}

func newFrames(r io.ReadCloser, rest func(), silence time.Duration) *frames {
	f := &frames{source: r, lines: bufio.NewReaderSize(r, frameBuffer), wait: rest, silence: silence}
	f.silent = time.AfterFunc(silence, func() { _ = r.Close() }) // the read fails then, and the watch begins anew
	return f
}

const (
	frameBuffer = 32 << 10
	maxFrame    = 64 << 20
	// maxSilence is how long an API server may send nothing: it sends a bookmark every minute. One that hangs, beside others
	// that answer, would otherwise hide what happens in the cluster.
	maxSilence = 90 * time.Second
)

type frames struct {
	source io.ReadCloser
	lines  *bufio.Reader
	wait   func()
	// silent ends the stream when nothing comes for silence.
	silent  *time.Timer
	silence time.Duration
	frame   []byte
	rest    []byte // of frame, not read yet
}

// Read gives a whole frame, or io.ErrShortBuffer with a part of it.
func (f *frames) Read(data []byte) (int, error) {
	if len(f.rest) == 0 {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	n := copy(data, f.rest)
	if f.rest = f.rest[n:]; len(f.rest) > 0 {
		return n, io.ErrShortBuffer
	}
	return n, nil
}

// Close ends the stream.
func (f *frames) Close() error {
	f.silent.Stop()
	return f.source.Close()
}

// next reads the next frame.
func (f *frames) next() error {
	f.frame = f.frame[:0]
	if f.wait != nil && f.lines.Buffered() == 0 {
		f.wait()
	}
	for {
		err := f.line()
		text := bytes.TrimSpace(f.frame)
		switch {
		case errors.Is(err, io.EOF) && len(text) == 0:
			return io.EOF
		case len(text) > 0 && (closed(text) || json.Valid(text)):
			f.rest = text
			return nil
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case len(f.frame) > maxFrame:
			return fleet.Errorf(fleet.ErrExhausted, "event of the API server: more than %d bytes", maxFrame)
		}
	}
}

// line appends a line to the frame.
func (f *frames) line() error {
	for {
		part, err := f.lines.ReadSlice('\n')
		f.silent.Reset(f.silence)
		f.frame = append(f.frame, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
		if len(f.frame) > maxFrame {
			return nil
		}
	}
}

// closed reports that a line begins and ends as an event does. Inside one, a line cannot end: its strings are escaped.
func closed(line []byte) bool {
	return bytes.HasPrefix(line, eventStart) && bytes.HasSuffix(line, []byte("}}"))
}

var eventStart = []byte(`{"type":"`)
