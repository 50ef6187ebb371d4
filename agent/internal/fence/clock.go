package fence

import "time"

// Moment is a point in time on two clocks: what people's clocks show, and how long the machine has been up, suspends
// included.
type Moment struct {
	Wall time.Time
	Boot time.Duration
}

// Since is the time that passed from an earlier moment. Where the clocks disagree the longer time counts: a right that
// may have ended has ended.
func (m Moment) Since(earlier Moment) time.Duration {
	return max(m.Boot-earlier.Boot, m.Wall.Sub(earlier.Wall))
}

// now reads the machine's clocks. Go's own reading is no use for this: it stands still during a suspend.
func now() Moment { return Moment{Wall: time.Now().Round(0), Boot: boot()} }

var started = time.Now()

// sinceStart is the best that there is without the kernel's clock.
func sinceStart() time.Duration { return time.Since(started) }
