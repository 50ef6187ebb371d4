package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// screen is where the story is told: what is said, the commands that run, and what they print.
type screen struct {
	w        io.Writer
	terminal bool
	color    bool
}

func newScreen(f *os.File) *screen {
	terminal := term.IsTerminal(int(f.Fd()))
	return &screen{w: f, terminal: terminal, color: terminal && os.Getenv("NO_COLOR") == ""}
}

const (
	bold = "1"
	cyan = "36"
)

func (s *screen) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// line prints one line. A screen that cannot be written to ends nothing.
func (s *screen) line(text string) { _, _ = fmt.Fprintln(s.w, text) }

func (s *screen) title(number, of int, text string) {
	s.line("")
	s.line(s.paint(bold, fmt.Sprintf("%d/%d  %s", number, of, text)))
}

func (s *screen) say(format string, args ...any) { s.line(fmt.Sprintf(format, args...)) }

// command shows a command before it runs.
func (s *screen) command(text string) { s.line(s.paint(cyan, "$ "+text)) }

// quote shows what a command printed.
func (s *screen) quote(text string) {
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		s.line("  " + line)
	}
}

// output is where a command prints: the terminal itself, so that tables redraw, or lines that are set off. done prints
// what is left.
func (s *screen) output() (w io.Writer, done func()) {
	if s.terminal {
		return s.w, func() {}
	}
	lines := &indented{screen: s}
	return lines, lines.flush
}

// indented sets off whole lines.
type indented struct {
	screen *screen
	rest   []byte
}

func (i *indented) Write(p []byte) (int, error) {
	i.rest = append(i.rest, p...)
	for {
		line, rest, found := bytes.Cut(i.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		i.screen.line("  " + string(line))
		i.rest = rest
	}
}

func (i *indented) flush() {
	if len(i.rest) > 0 {
		i.screen.line("  " + string(i.rest))
		i.rest = nil
	}
}
