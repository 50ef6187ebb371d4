package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// watching is the stream of one watch. It is read by one goroutine; Close may come from another.
type watching struct {
	s        *Server
	ctx      context.Context
	cancel   context.CancelFunc
	resource resource
	chosen   chosen
	marks    bool // bookmarks are asked for
	partial  func(*unstructured.Unstructured) any
	from     uint64
	ends     time.Time
	marked   time.Time // when something was written last
	buffer   bytes.Buffer
}

// marksEvery is how often a watch says how far it is.
const marksEvery = time.Minute

func (s *Server) watch(q *request, c chosen) (any, error) {
	v := q.URL.Query()
	ctx, cancel := context.WithCancel(q.Context())
	w := &watching{s: s, ctx: ctx, cancel: cancel, resource: q.resource, chosen: c, marks: v.Get("allowWatchBookmarks") == "true",
		partial: func(o *unstructured.Unstructured) any { return shown(q, o) }}
	seconds, _ := strconv.Atoi(v.Get("timeoutSeconds"))
	if seconds == 0 {
		seconds = 1800
	}
	w.marked = time.Now()
	w.ends = w.marked.Add(time.Duration(seconds) * time.Second)
	version := v.Get("resourceVersion")
	if initial := v.Get("sendInitialEvents"); initial == "true" || version == "" || version == "0" {
		for _, o := range s.all(q.Resource) {
			if c.has(o) {
				w.write("ADDED", w.partial(o))
			}
		}
		if initial == "true" {
			w.mark(s.rev, map[string]any{"k8s.io/initial-events-end": "true"})
		}
		w.from = s.rev
		return w, nil
	}
	from, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		cancel()
		return nil, apierrors.NewBadRequest("resourceVersion " + version)
	}
	w.from = from
	return w, nil
}

func (w *watching) write(kind string, object any) {
	text, _ := json.Marshal(object)
	w.buffer.WriteString(`{"type":"` + kind + `","object":` + string(text) + "}\n")
}

func (w *watching) mark(rev uint64, annotations map[string]any) {
	meta := map[string]any{"resourceVersion": strconv.FormatUint(rev, 10)}
	if annotations != nil {
		meta["annotations"] = annotations
	}
	w.write("BOOKMARK", map[string]any{"apiVersion": w.resource.GroupVersion().String(), "kind": w.resource.kind, "metadata": meta})
}

// catchUp writes what has happened, and returns what is closed when more has.
func (w *watching) catchUp() <-chan struct{} {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for _, e := range w.s.history {
		if e.rev <= w.from || e.resource != w.resource.Resource {
			continue
		}
		was, is := w.chosen.has(e.old), w.chosen.has(e.now)
		switch {
		case e.kind == "DELETED" && is, was && !is:
			w.write("DELETED", w.partial(e.now))
		case e.kind != "DELETED" && is && !was:
			w.write("ADDED", w.partial(e.now))
		case e.kind != "DELETED" && is:
			w.write(e.kind, w.partial(e.now))
		}
	}
	w.from = w.s.rev
	return w.s.changed
}

// Read gives the events so far, or waits for one.
func (w *watching) Read(p []byte) (int, error) {
	for w.buffer.Len() == 0 {
		changed := w.catchUp()
		if w.buffer.Len() > 0 {
			break
		}
		if !time.Now().Before(w.ends) {
			return 0, io.EOF
		}
		if w.marks && time.Since(w.marked) >= marksEvery {
			w.mark(w.from, nil)
			break
		}
		timer := time.NewTimer(min(marksEvery-time.Since(w.marked), time.Until(w.ends)))
		select {
		case <-changed:
		case <-w.ctx.Done():
			timer.Stop()
			return 0, w.ctx.Err()
		case <-timer.C:
		}
		timer.Stop()
	}
	w.marked = time.Now()
	return w.buffer.Read(p)
}

// Close ends the watch.
func (w *watching) Close() error {
	w.cancel()
	return nil
}
