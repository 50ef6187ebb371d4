package watch

// Watches is how many there are in use, and how many of them nothing is seen by.
func (w *Watcher) Watches() (open, blind int) {
	for _, k := range w.inUse() {
		open++
		if k.blindness() != nil {
			blind++
		}
	}
	return open, blind
}
