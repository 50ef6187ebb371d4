package fence

// Inherited is what stood on the Lease before this process took it.
type Inherited struct {
	// Epoch of the last holder; 0: there was no Lease.
	Epoch uint64
	// Note is the last that any holder left.
	Note string
}

// Found is what stood on the Lease when this process took it last.
func (f *Fence) Found() Inherited {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.found
}

// Note leaves a word on the Lease for the next holder, and for this process after its disk was put back. It costs no
// request of its own: it goes with the next batch or the next sign of life.
func (f *Fence) Note(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note = text
}

// noted reports that the note is on the Lease. The caller holds mu.
func (f *Fence) noted() bool {
	return f.note == "" || f.held != nil && f.held.Annotations[NoteAnnotation] == f.note
}
