package dirty_test

import (
	"slices"
	"sync"
	"testing"

	"towline.dev/towline/pkg/dirty"
)

func TestMarksCoalesceIntoOneSignal(t *testing.T) {
	s := dirty.New[string]()
	for range 1000 {
		s.Mark("a", "b")
	}
	<-s.C()
	select {
	case <-s.C():
		t.Fatal("a second signal for marks that one Take answers")
	default:
	}
	got := s.Take()
	slices.Sort(got)
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("took %v", got)
	}
	if again := s.Take(); again != nil || s.Len() != 0 {
		t.Fatalf("took %v from an empty set", again)
	}
	s.Mark("a")
	<-s.C()
}

func TestMarkingNothingWakesNobody(t *testing.T) {
	s := dirty.New[int]()
	s.Mark()
	select {
	case <-s.C():
		t.Fatal("woken for nothing")
	default:
	}
}

func TestCloseEndsTheReaderAndKeepsWhatIsThere(t *testing.T) {
	s := dirty.New[int]()
	s.Mark(1)
	s.Close()
	s.Close()
	s.Mark(2)
	for range s.C() {
	}
	if got := s.Take(); !slices.Equal(got, []int{1}) {
		t.Fatalf("took %v", got)
	}
}

func TestNoMarkIsLost(t *testing.T) {
	const writers, each = 8, 2000
	s := dirty.New[int]()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				s.Mark(w*each + i)
			}
		})
	}
	go func() { wg.Wait(); s.Close() }()
	seen := make(map[int]bool)
	for range s.C() {
		for _, k := range s.Take() {
			seen[k] = true
		}
	}
	for _, k := range s.Take() {
		seen[k] = true
	}
	if len(seen) != writers*each {
		t.Fatalf("saw %d keys of %d", len(seen), writers*each)
	}
}
