// Package child runs an engine of package render in other processes: it owns the pool of them, what a job may use, and the bytes that
// go between. It must not know what an engine is made of, and gives a process nothing but the job: no environment, no file, no network.
package child

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
)

// Result is what a build came to.
type Result struct {
	// Texts are manifests in YAML by the name of where they come from.
	Texts map[string][]byte
	// Reads is what a chart asks of the cluster that it is rendered for.
	Reads render.Reads
	// Spent says that the process must not build again: what it built stays in it.
	Spent bool
}

// part is one named text of a frame; its bytes follow the head.
type part struct {
	Name string `json:"name"`
	Size int    `json:"size"`
}

// request is the head of a frame to the process.
type request struct {
	render.Job
	Files []part `json:"files"`
}

// response is the head of its answer.
type response struct {
	// Done is in every answer, so that nothing else is taken for one.
	Done  bool   `json:"done"`
	Texts []part `json:"texts,omitempty"`
	// Reads is as in Result.
	Reads render.Reads `json:"reads"`
	Spent bool         `json:"spent,omitempty"`
	// Field and Message are a fleet.FieldError; Exhausted is that a limit was met.
	Field     string `json:"field,omitempty"`
	Message   string `json:"message,omitempty"`
	Exhausted bool   `json:"exhausted,omitempty"`
}

// frameBuffer is of one size with a pipe of Linux: what fits goes at once.
const frameBuffer = 64 << 10

// maxHead bounds the head of a frame.
const maxHead = 16 << 20

// errTooMuch is that what follows a head is larger than it may be.
var errTooMuch = errors.New("more than it may be")

func writeFrame(out *bufio.Writer, head any, parts []part, texts map[string][]byte) error {
	data, err := json.Marshal(head)
	if err != nil {
		return err
	}
	_ = binary.Write(out, binary.BigEndian, uint32(len(data)))
	_, _ = out.Write(data)
	for _, p := range parts {
		_, _ = out.Write(texts[p.Name])
	}
	return out.Flush()
}

// readHead reads the head of a frame. io.EOF is that there is no more.
func readHead(r io.Reader, head any) error {
	var size uint32
	if err := binary.Read(r, binary.BigEndian, &size); err != nil {
		return err
	}
	if size > maxHead {
		return fmt.Errorf("a head of %d bytes is %w", size, errTooMuch)
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return noEnd(err)
	}
	return json.Unmarshal(data, head)
}

// readParts reads what follows a head.
func readParts(r io.Reader, parts []part, limit int) (map[string][]byte, error) {
	total := 0
	for _, p := range parts {
		if p.Size < 0 || p.Size > limit-total {
			return nil, fmt.Errorf("%d bytes and more are %w", limit, errTooMuch)
		}
		total += p.Size
	}
	all := make([]byte, total)
	if _, err := io.ReadFull(r, all); err != nil {
		return nil, noEnd(err)
	}
	out := make(map[string][]byte, len(parts))
	for _, p := range parts {
		out[p.Name], all = all[:p.Size:p.Size], all[p.Size:]
	}
	return out, nil
}

func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func partsOf(texts map[string][]byte) []part {
	out := make([]part, 0, len(texts))
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		out = append(out, part{name, len(texts[name])})
	}
	return out
}

// failed is the answer of a build that failed.
func failed(err error) response {
	r := response{Done: true, Message: err.Error(), Exhausted: errors.Is(err, fleet.ErrExhausted)}
	var field *fleet.FieldError
	if errors.As(err, &field) {
		r.Field, r.Message = field.Path, field.Message
	}
	return r
}

// err is the error of an answer.
func (r response) err() error {
	switch {
	case r.Message == "":
		return nil
	case r.Exhausted:
		return fleet.Errorf(fleet.ErrExhausted, "%s", r.Message)
	}
	return fleet.Invalid(r.Field, r.Message)
}
