package artifact

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"towline.dev/towline/pkg/fleet"
)

// Check reads what Encode wrote to its end, and refuses everything else and what is over the limits. It holds no file. An error of
// the reader is passed on.
func Check(r io.Reader) error {
	in := &checker{r: bufio.NewReaderSize(r, 64<<10), names: NewNames()}
	if err := in.check(); err != nil {
		return err
	}
	switch _, err := in.r.ReadByte(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return corrupt("bytes follow its end")
}

type checker struct {
	r     *bufio.Reader
	names *Names
	total uint64
	last  string
}

func (c *checker) check() error {
	head := make([]byte, len(magic))
	if err := c.fill(head, "it is too short"); err != nil {
		return err
	}
	if string(head) != magic {
		return corrupt("it does not begin as one")
	}
	count, err := c.number()
	if err != nil {
		return err
	}
	if count > MaxEntries {
		return fleet.Errorf(fleet.ErrExhausted, "has %d files; at most %d are allowed", count, MaxEntries)
	}
	for i := range count {
		if err := c.file(i == 0); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) file(first bool) error {
	n, err := c.number()
	if err != nil {
		return err
	}
	if n > maxName {
		return fleet.Errorf(fleet.ErrInvalid, "has a file name of %d bytes; at most %d are allowed", n, maxName)
	}
	name := make([]byte, n)
	if err := c.fill(name, "it ends inside a name"); err != nil {
		return err
	}
	if err := c.names.Add(string(name), false); err != nil {
		return fleet.Errorf(fleet.ErrInvalid, "file %s", err)
	}
	if !first && string(name) <= c.last {
		return corrupt("names are out of order")
	}
	c.last = string(name)
	if n, err = c.number(); err != nil {
		return err
	}
	if c.total += n; n > MaxUnpackedBytes || c.total > MaxUnpackedBytes {
		return fleet.Errorf(fleet.ErrExhausted, "has more than %d MiB of files", MaxUnpackedBytes>>20)
	}
	if _, err := io.CopyN(io.Discard, c.r, int64(n)); err != nil {
		return c.ended(err, "it ends inside a file")
	}
	return nil
}

func (c *checker) fill(b []byte, why string) error {
	_, err := io.ReadFull(c.r, b)
	return c.ended(err, why)
}

// number reads a varint in its shortest form.
func (c *checker) number() (uint64, error) {
	var raw []byte
	for len(raw) < binary.MaxVarintLen64 {
		b, err := c.r.ReadByte()
		if err != nil {
			return 0, c.ended(err, "it ends inside a number")
		}
		if raw = append(raw, b); b < 0x80 {
			break
		}
	}
	n, rest, ok := cutNumber(raw)
	if !ok || len(rest) > 0 {
		return 0, corrupt("a number is none")
	}
	return n, nil
}

// ended explains an end that came too early.
func (c *checker) ended(err error, why string) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt(why)
	}
	return err
}
