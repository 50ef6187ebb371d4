package fence

// Inherited is what stood on the Lease before this process took it.
type Inherited struct {
	// Epoch of the last holder; 0: there was no Lease.
	Epoch uint64

	notes map[string]string
}

// Note is the last that any holder left in an annotation; empty: none did.
func (i Inherited) Note(annotation string) string { return i.notes[annotation] }

// Found is what stood on the Lease when this process took it last.
func (f *Fence) Found() Inherited {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.found
}

// Note leaves a word in an annotation of the Lease for the next holder, and for this process after its disk was put back. It
// costs no request of its own: it goes with the next batch or the next sign of life.
func (f *Fence) Note(annotation, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.notes == nil {
		f.notes = map[string]string{}
	}
	f.notes[annotation] = text
}

// noted reports that the notes are on the Lease. The caller holds mu.
func (f *Fence) noted() bool {
	for annotation, text := range f.notes {
		if f.held == nil || f.held.Annotations[annotation] != text {
			return false
		}
	}
	return true
}
