package engine

import (
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/feed"
)

// feedLimits bound what is kept of a class: enough for a reader that comes back after a moment.
var feedLimits = feed.Limits{Changes: 4096, Bytes: 4 << 20}

// feeds are those that were asked for, by the prefix of their class. The model's lock guards them.
type feeds map[string]*feed.Feed[store.Change]

// feed returns the class's, which begins at the present revision when nobody has asked for it before.
func (m *model) feed(class *store.Class) *feed.Feed[store.Change] {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, ok := m.feeds[class.Prefix]
	if ok {
		return f
	}
	f = feed.New[store.Change](feedLimits, m.snapshot().revision, func() int64 { return m.snapshot().revision })
	if m.closed {
		f.Close()
	}
	if m.feeds == nil {
		m.feeds = make(feeds)
	}
	m.feeds[class.Prefix] = f
	return f
}

// add puts a change into the feed of its class, if there is one. It goes in before the model is published, so that a feed
// is complete up to the model's revision at any time.
func (fs feeds) add(s step, old *record) {
	if len(fs) == 0 {
		return
	}
	class := store.ClassOf(s.key)
	if class == nil || fs[class.Prefix] == nil {
		return
	}
	c, bytes := store.Change{Key: s.key}, len(s.key)
	if s.rec != nil {
		c.Value, bytes = s.rec.Value, bytes+int(s.rec.size)
	}
	if old != nil {
		c.Was, bytes = old.Value, bytes+int(old.size)
	}
	fs[class.Prefix].Add(s.revision, bytes, c)
}

func (fs feeds) wake() {
	for _, f := range fs {
		f.Wake()
	}
}

func (fs feeds) close() {
	for _, f := range fs {
		f.Close()
	}
}
