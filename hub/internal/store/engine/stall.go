package engine

import (
	"context"
	"time"

	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// A watch may come to say nothing more without ending: its server has lost it, or what stands between keeps the connection alive by itself. Then a
// hub that leads keeps its lease and does nothing, and another one shows people and sends agents what was. So it is looked now and then, and
// whenever somebody waits for long, whether the watch has come as far as the backend says it is.
const (
	lookEvery  = 15 * time.Second
	longWait   = 3 * time.Second // of somebody who waits for a revision
	showWithin = 5 * time.Second // what is there, for a watch that is asked how far it is
	deafFor    = time.Hour       // a new watch is taken for no better, and is not tried
)

// errStalled ends a watch that is begun anew where it was.
var errStalled = fleet.Errorf(fleet.ErrUnavailable, "store: the watch says nothing of what is there")

// mind has a watch begun anew that says nothing of what is there, and has all listed if that is of no use.
func (e *Engine) mind() {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var deaf time.Time // when a new watch said no more, and a list was needed; zero: never
	for {
		select {
		case <-e.ctx.Done():
			return
		case <-e.doubted:
		case <-look.C:
		}
		if e.shows() {
			continue
		}
		if deaf.IsZero() || time.Since(deaf) > deafFor {
			e.log.Warn("store: the watch says nothing of what is there, and is begun anew", "revision", e.model.snapshot().revision)
			dirty.Poke(e.rewatch)
			if e.shows() {
				continue
			}
			deaf = time.Now()
			e.log.Warn("store: a new watch says no more, and all is listed instead, again and again. Does something stand before etcd that answers no requests for progress, as etcd grpc-proxy? Have --etcd-endpoints name etcd itself, or what passes connections on as they are")
		}
		e.askRelist()
	}
}

// shows reports that the watch has come as far as the backend is, or further than it was; or that this cannot be told, for nobody answers, or no
// watch is open.
func (e *Engine) shows() bool {
	before := e.model.snapshot().revision
	rev, err := e.backend.Revision(e.ctx)
	if e.answered(err) != nil {
		return true
	}
	e.suspect(before, rev)
	ctx, cancel := context.WithTimeout(e.ctx, showWithin)
	defer cancel()
	return e.reach(ctx, rev) == nil || e.model.snapshot().revision > before || !e.watching.Load()
}
