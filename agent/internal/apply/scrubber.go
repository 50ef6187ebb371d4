package apply

import (
	"encoding/base64"
	"encoding/binary"

	"towline.dev/towline/pkg/fleet"
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
	return maskEach(text, func(hide func(i, n int)) {
		s.each(text, func(i, n int) bool {
			hide(i, n)
			return true
		})
	})
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
	return !unpacked(text, func(text string) bool { return !s.in(text) })
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

// Quotes finds long values in a text, each as it stands there: whole, or as far as the text goes that was cut off. It looks into base64 with what
// stands beside a value, too. It goes on until the function says that this is enough, and reports that it did not.
func (s *Scrubber) Quotes(text string, found func(quote string) bool) bool {
	return unpacked(text, func(text string) bool {
		return s.whole(text, func(_ int, quote string) bool { return found(quote) })
	})
}

// Begins is Quotes of all that long values begin with, be it no more of them than tells them from most other texts.
func (s *Scrubber) Begins(text string, found func(begin string)) {
	unpacked(text, func(text string) bool {
		return s.begins(text, func(_ int, form string, n int) bool {
			found(form[:n])
			return true
		})
	})
}

// unpacked has a text looked at as it is, and out of base64, until the function says that this is enough.
func unpacked(text string, look func(string) bool) bool {
	if !look(text) {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	return err != nil || look(string(raw))
}

func (s *Scrubber) whole(text string, found func(i int, quote string) bool) bool {
	text, cut := fleet.Clipped(text)
	return s.begins(text, func(i int, form string, n int) bool {
		ends := n == len(form) || cut && i+n == len(text)
		return !ends || found(i, form[:n])
	})
}

// begins finds how much of long values stands where in a text.
func (s *Scrubber) begins(text string, found func(i int, form string, n int) bool) bool {
	for i := 0; i+stretch <= len(text); i++ {
		for _, form := range s.long[partAt(text, i)] {
			n := stretch
			for n < len(form) && i+n < len(text) && form[n] == text[i+n] {
				n++
			}
			if !found(i, form, n) {
				return false
			}
		}
	}
	return true
}

// ScrubWhole puts fleet.Masked in place of long values that Quotes finds in a text as it is, but not of what may be shown.
func (s *Scrubber) ScrubWhole(text string, shows func(quote string) bool) string {
	return maskEach(text, func(hide func(i, n int)) {
		s.whole(text, func(i int, quote string) bool {
			if !shows(quote) {
				hide(i, len(quote))
			}
			return true
		})
	})
}

// maskEach masks what is found in a text, of which most have nothing.
func maskEach(text string, find func(hide func(i, n int))) string {
	var hides []bool
	find(func(i, n int) {
		if hides == nil {
			hides = make([]bool, len(text))
		}
		hideAt(hides, i, n)
	})
	if hides == nil {
		return text
	}
	return masked(text, hides)
}
