package apply

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// Scrubber knows hidden values by a table, so that it goes over a text once, however many values there are.
type Scrubber struct {
	parts map[uint64]struct{} // every part of a value that may not stand in a text
	long  map[uint64][]string // the forms by what they begin with
	short map[string]struct{} // those that are shorter than a part
	sizes [stretch]bool       // which lengths the short ones have
}

// Scrubber of the values.
func (h Hidden) Scrubber() *Scrubber {
	s := &Scrubber{parts: map[uint64]struct{}{}, long: map[uint64][]string{}, short: map[string]struct{}{}}
	for _, form := range h.forms {
		if len(form) < stretch {
			s.short[form], s.sizes[len(form)] = struct{}{}, true
			continue
		}
		begin := partAt(form, 0)
		s.long[begin] = append(s.long[begin], form)
		for i := 0; i+stretch <= len(form); i++ {
			s.parts[partAt(form, i)] = struct{}{}
		}
	}
	return s
}

func partAt(text string, i int) uint64 {
	return binary.LittleEndian.Uint64([]byte(text[i : i+stretch]))
}

// Scrub puts fleet.Masked in place of what is hidden, and leaves all else of a text.
func (s *Scrubber) Scrub(text string) string {
	var hide []bool
	s.each(text, func(i, n int) bool {
		if hide == nil {
			hide = make([]bool, len(text))
		}
		hideAt(hide, i, n)
		return true
	})
	if hide == nil {
		return text
	}
	return masked(text, hide)
}

// Shows reports that a text has no value, and no long part of one.
func (s *Scrubber) Shows(text string) bool {
	return s.each(text, func(int, int) bool { return false })
}

// each finds what is hidden in a text until the function says that this is enough, and reports that it did not.
func (s *Scrubber) each(text string, found func(i, n int) bool) bool {
	for i := range len(text) {
		if i+stretch <= len(text) {
			if _, known := s.parts[partAt(text, i)]; known && !found(i, stretch) {
				return false
			}
		}
		for n, has := range s.sizes {
			if !has || i+n > len(text) {
				continue
			}
			if _, known := s.short[text[i:i+n]]; known && (n > boundedForm || !inWord(text, i-1) && !inWord(text, i+n)) && !found(i, n) {
				return false
			}
		}
	}
	return true
}

// In reports that a text has one of the values, whole, in one of its forms, also in base64 with what stands beside it.
func (s *Scrubber) In(text string) bool {
	if s.in(text) {
		return true
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	return err == nil && s.in(string(raw))
}

func (s *Scrubber) in(text string) bool {
	if _, known := s.short[text]; known || !s.whole(text, func(int, string) bool { return false }) {
		return true
	}
	for i := range len(text) {
		for n := boundedForm + 1; n < stretch && i+n <= len(text); n++ {
			if !s.sizes[n] {
				continue
			}
			if _, known := s.short[text[i:i+n]]; known {
				return true
			}
		}
	}
	return false
}

// Forms are those of long values that stand in a text, whole, also in base64 with what stands beside it, until the function says that this is
// enough; reports that it did not.
func (s *Scrubber) Forms(text string, found func(form string) bool) bool {
	each := func(_ int, form string) bool { return found(form) }
	if !s.whole(text, each) {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	return err != nil || s.whole(string(raw), each)
}

// whole finds long values in a text, each where it stands and in its form, until the function says that this is enough; reports that it did not.
func (s *Scrubber) whole(text string, found func(i int, form string) bool) bool {
	for i := 0; i+stretch <= len(text); i++ {
		for _, form := range s.long[partAt(text, i)] {
			if strings.HasPrefix(text[i:], form) && !found(i, form) {
				return false
			}
		}
	}
	return true
}

// ScrubWhole puts fleet.Masked in place of long values that stand whole in a text, but not of the forms that may be shown.
func (s *Scrubber) ScrubWhole(text string, shows func(form string) bool) string {
	var hide []bool
	s.whole(text, func(i int, form string) bool {
		if shows(form) {
			return true
		}
		if hide == nil {
			hide = make([]bool, len(text))
		}
		hideAt(hide, i, len(form))
		return true
	})
	if hide == nil {
		return text
	}
	return masked(text, hide)
}
