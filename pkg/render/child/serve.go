package child

import (
	"bufio"
	"io"
	"os"
	"runtime/debug"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/render"
)

// maxInput bounds the files of a job: an artifact is not larger.
const maxInput = 256 << 20

// gcPercent lets the heap grow between two collections: a build is short, and its memory is bounded anyway.
const gcPercent = 400

// maxStack ends a process whose build calls itself without end, long before it has used its memory.
const maxStack = 128 << 20

// Serve answers jobs, one after the other, until in ends: it is all that a process of a Pool does. A process whose parent is gone
// ends at once, also in the middle of a build. What anything prints goes to stderr.
func Serve(limits Limits, build func(render.Job) (Result, error)) error {
	limits = limits.orDefaults()
	in, out := os.Stdin, os.Stdout
	os.Stdin, os.Stdout = nil, os.Stderr
	confine()
	time.Local = time.UTC // what is rendered must not depend on the machine
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(limits.Memory / 4 * 3)
	debug.SetMaxStack(maxStack)
	ended := make(chan error, 2)
	go func() {
		if hungUp(in) {
			ended <- nil
		}
	}()
	go func() { ended <- answerAll(in, out, limits, build) }()
	return <-ended
}

// answerAll answers jobs until there are no more, which is no error. It builds in the goroutine that reads: handed on, a small job would
// wait for another thread for as long as it takes.
func answerAll(in io.Reader, out io.Writer, limits Limits, build func(render.Job) (Result, error)) error {
	r, w := bufio.NewReaderSize(in, frameBuffer), bufio.NewWriterSize(out, frameBuffer)
	for {
		var head request
		err := readHead(r, &head)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		job := head.Job
		if job.Files, err = readParts(r, head.Files, maxInput); err != nil {
			return err
		}
		if err := answer(w, job, limits, build); err != nil {
			return err
		}
	}
}

func answer(out *bufio.Writer, job render.Job, limits Limits, build func(render.Job) (Result, error)) error {
	var result Result
	err := guard.Run(func() (err error) {
		result, err = build(job)
		return err
	})
	size := 0
	for _, text := range result.Texts {
		size += len(text)
	}
	if err == nil && size > limits.Output {
		err = fleet.Errorf(fleet.ErrExhausted, "renders to more than %d MiB: split the module", limits.Output>>20)
	}
	if err != nil {
		head := failed(err)
		head.Spent = true // whatever a build leaves behind where it fails
		return writeFrame(out, head, nil, nil)
	}
	parts := partsOf(result.Texts)
	return writeFrame(out, response{Done: true, Texts: parts, Reads: result.Reads, Spent: result.Spent}, parts, result.Texts)
}
