package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
)

// live redraws a rollout in place, on every change and every second.
type live struct {
	app *app
	all bool

	mu      sync.Mutex
	rollout *v1.Rollout
	lost    error // the hub is away
	screen  screen

	stop, stopped chan struct{}
}

func (a *app) newLive(all bool) *live {
	l := &live{app: a, all: all, screen: screen{w: a.Out}, stop: make(chan struct{}), stopped: make(chan struct{})}
	a.onBreak = l.takeBreak
	l.screen.open()
	go l.run()
	return l
}

func (l *live) run() {
	defer close(l.stopped)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			l.draw(nil, false)
		case <-l.stop:
			return
		}
	}
}

func (l *live) take(resp *v1.WatchRolloutResponse) { l.draw(resp.GetRollout(), false) }

// takeBreak tells that what is shown may be old.
func (l *live) takeBreak(err error) {
	l.mu.Lock()
	l.lost = err
	l.mu.Unlock()
	l.draw(nil, false)
}

// close draws the last state whole and gives the terminal back.
func (l *live) close() {
	close(l.stop)
	<-l.stopped
	l.draw(nil, true)
	l.screen.close()
}

func (l *live) draw(r *v1.Rollout, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r != nil {
		l.rollout, l.lost = r, nil
	}
	if l.rollout == nil {
		return
	}
	columns, rows := l.app.Size()
	o := pageOptions{all: l.all, width: columns}
	if !last {
		o.rows = max(rows-16-2*len(l.rollout.GetStatus().GetStages()), 3)
	}
	page := l.app.rolloutPage(l.rollout, o)
	if l.lost != nil {
		page += "\n" + l.app.paint(table.Red, table.Clean(l.lost.Error())) + "; this is how it last stood\n"
	}
	l.screen.draw(page, columns)
}

// screen overwrites what it drew last.
type screen struct {
	w     io.Writer
	lines int
}

const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	clearLine  = "\x1b[K"
	clearBelow = "\x1b[J"
)

func (s *screen) open()  { io.WriteString(s.w, hideCursor) }
func (s *screen) close() { io.WriteString(s.w, showCursor) }

func (s *screen) draw(page string, columns int) {
	var b strings.Builder
	if s.lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", s.lines)
	}
	lines := strings.Split(strings.TrimSuffix(page, "\n"), "\n")
	for _, line := range lines {
		b.WriteString(crop(line, columns) + clearLine + "\n")
	}
	b.WriteString(clearBelow)
	s.lines = len(lines)
	io.WriteString(s.w, b.String())
}

// crop cuts a line with colours to the width, so that it takes one row of the terminal.
func crop(line string, width int) string {
	var b strings.Builder
	shown, inCode := 0, false
	for _, r := range line {
		switch {
		case r == '\x1b':
			inCode = true
		case inCode:
			inCode = r != 'm'
		case shown == width:
			return b.String() + "\x1b[0m"
		default:
			shown++
		}
		b.WriteRune(r)
	}
	return b.String()
}
