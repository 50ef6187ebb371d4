package plan

import "time"

// Scaling is what is known of the replicas of an object that a program set through the scale subresource. What the server
// notes of that stays when the program is gone, so that it takes a look whether an autoscaler still exists.
type Scaling struct {
	// Missing is since when no autoscaler targets the object; zero: one does, or nobody looked.
	Missing time.Time
	// By is who set the replicas that we took back last, at Taken.
	By    string
	Taken time.Time
	// Kept is a program that is no HorizontalPodAutoscaler, but scales again when its replicas are taken back.
	Kept string
}

// comesBack is how soon a program sets the replicas again that means to.
const comesBack = 10 * time.Minute

// Judge takes note of whether an autoscaler targets the object now, and says whether the replicas are the module's again:
// they are when there was none for the grace. by is who set them.
func (s *Scaling) Judge(exists bool, by string, now time.Time, grace time.Duration) bool {
	switch {
	case exists:
		*s = Scaling{} // what it sets is its own to set, and no program comes back
		return false
	case s.Kept != "" && s.Kept == by:
		return false
	case !s.Taken.IsZero() && s.By == by && now.Sub(s.Taken) < comesBack:
		s.Kept = by
		return false
	case s.Missing.IsZero():
		s.Missing = now
	}
	return now.Sub(s.Missing) >= grace
}

// Took takes note that the replicas were set to what the module says.
func (s *Scaling) Took(from string, now time.Time) {
	s.Missing, s.By, s.Taken = time.Time{}, from, now
}
