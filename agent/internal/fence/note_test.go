package fence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

const noteAnnotation = "towline.dev/test"

// note is what stands on the Lease.
func (s *server) note() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.Annotations[noteAnnotation]
}

// A note goes with the swaps that are made anyway, and the next holder finds it.
func TestNoteCostsNoRequest(t *testing.T) {
	puts := func(notes func(*Fence)) (puts int) {
		synctest.Test(t, func(t *testing.T) {
			s := &server{}
			f, _ := led(t, &inProcess{Handler: s}, &machine{})
			_, _, before := s.state()
			for range 15 {
				notes(f)
				<-time.After(4 * time.Second)
			}
			_, _, after := s.state()
			puts = after - before
		})
		return puts
	}
	none := puts(func(*Fence) {})
	if got := puts(func(f *Fence) { f.Note(noteAnnotation, time.Now().String()) }); got > none+1 { // ticks that fall together may go either way
		t.Errorf("%d swaps with notes in a minute, %d without", got, none)
	}
}

func TestNoteIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p := &inProcess{Handler: s}
		f, _ := led(t, p, &machine{})
		if found := f.Found(); found.Epoch != 0 || found.Note(noteAnnotation) != "" {
			t.Errorf("found %+v on a new Lease", f.Found())
		}
		f.Note(noteAnnotation, "one")
		<-time.After(f.o.Period + time.Second)
		if s.note() != "one" {
			t.Errorf("%q stands on the Lease a period later", s.note())
		}
		f.Note(noteAnnotation, "two")
		f.release(context.Background())
		synctest.Wait()
		if s.note() != "two" {
			t.Errorf("%q was left with the Lease", s.note())
		}
		next, _ := led(t, p, &machine{})
		if found := next.Found(); found.Epoch != 1 || found.Note(noteAnnotation) != "two" || found.Note("towline.dev/other") != "" {
			t.Errorf("found %+v", next.Found())
		}
		if next.Epoch() != 2 || s.note() != "two" {
			t.Errorf("epoch %d, note %q: what was left stays until there is something newer", next.Epoch(), s.note())
		}
	})
}
