package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// sink is the standard output. What could not be written there, as to a disk that is full, is not taken for written: a token that is shown
// once, or half of a list, would be lost with exit code 0.
type sink struct {
	w io.Writer

	mu  sync.Mutex
	err error // the first
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	return n, err
}

// with is a command's error, and what is lost of its output.
func (s *sink) with(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil || err != nil && strings.Contains(err.Error(), s.err.Error()) { // libraries do not always wrap it
		return err
	}
	return joinCodes([]error{err, fmt.Errorf("the output is not whole: %w", s.err)})
}
