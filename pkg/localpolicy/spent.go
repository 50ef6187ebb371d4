package localpolicy

import (
	"slices"
	"time"
)

// Spent is how many objects were deleted in the last hour, by minute. The zero value is none. It is kept over restarts.
type Spent struct {
	Minutes []Minute `json:"minutes,omitempty"`
}

// Minute is how many were deleted in the minute that begins at At.
type Minute struct {
	At time.Time `json:"at"`
	N  int       `json:"n"`
}

// span is how long a delete counts from the end of its minute on.
const span = time.Hour + time.Minute

// settle forgets what does not count any more. What lies ahead, because the clock was put back, counts from now on.
func (s *Spent) settle(now time.Time) {
	s.Minutes = slices.DeleteFunc(s.Minutes, func(m Minute) bool { return !now.Before(m.At.Add(span)) || m.N <= 0 })
	ahead := 0
	s.Minutes = slices.DeleteFunc(s.Minutes, func(m Minute) bool {
		if m.At.After(now) {
			ahead += m.N
		}
		return m.At.After(now)
	})
	if ahead > 0 {
		s.add(ahead, now)
	}
}

func (s *Spent) add(n int, now time.Time) {
	at := now.UTC().Truncate(time.Minute)
	if last := len(s.Minutes) - 1; last >= 0 && s.Minutes[last].At.Equal(at) {
		s.Minutes[last].N += n
		return
	}
	s.Minutes = append(s.Minutes, Minute{At: at, N: n})
}

// Take counts one delete if there is room for it in a budget. If not, until is when there will be; zero: never.
func (s *Spent) Take(perHour int, now time.Time) (ok bool, until time.Time) {
	if ok, until = s.Room(perHour, now); ok {
		s.add(1, now)
	}
	return ok, until
}

// Room reports whether there is room for one more, without counting it.
func (s *Spent) Room(perHour int, now time.Time) (ok bool, until time.Time) {
	s.settle(now)
	total := 0
	for _, m := range s.Minutes {
		total += m.N
	}
	if total < perHour {
		return true, time.Time{}
	}
	for _, m := range s.Minutes {
		if total -= m.N; total < perHour {
			return false, m.At.Add(span)
		}
	}
	return false, time.Time{}
}

// Give takes back the newest delete, which was not carried out.
func (s *Spent) Give(now time.Time) {
	s.settle(now)
	if last := len(s.Minutes) - 1; last >= 0 {
		s.Minutes[last].N--
	}
}
