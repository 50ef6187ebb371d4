// Package audit owns the record of what was done and what was refused: who, what, when, why. It knows neither what the methods
// do nor who may read of them.
package audit

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
)

// OK is the result of what was done.
const OK = "OK"

const (
	// Done and Refused are how many entries the store keeps of each sort. They are apart so that who is refused a thousand
	// times hides nothing that was done.
	Done    = 10_000
	Refused = 2_000
	// spare is how many more there may be before the oldest go, so that not each write looks for them.
	spare = 100
	// maxBatch is how many entries one write has.
	maxBatch = 64
	// maxWaiting is how many entries wait to be written; what comes then is in the hub's log only.
	maxWaiting = 4096
	// patience is how long what was done waits for its entry before it is answered.
	patience = 2 * time.Second
	// refusedEach is how many refusals a second are stored, so that who has no right to anything cannot keep the store busy.
	refusedEach  = 10
	refusedBurst = 100
	// limit is for one write to the store.
	limit = 10 * time.Second
)

// Log writes entries to the hub's log and to the store.
type Log struct {
	store    store.Store
	log      *slog.Logger
	hub      string
	now      func() time.Time
	waiting  chan *waiting
	refusals *rate.Limiter
	lost     atomic.Int64
	last     int64 // the time of the newest key, in nanoseconds
	written  int   // since what is too old was looked for
}

type waiting struct {
	entry *towlinev1.AuditEntry
	done  chan struct{}
}

// New makes the log of a hub, which goes by that name.
func New(s store.Store, log *slog.Logger, hub string) *Log {
	return &Log{store: s, log: log, hub: hub, now: time.Now, refusals: rate.NewLimiter(refusedEach, refusedBurst), waiting: make(chan *waiting, maxWaiting), written: spare}
}

// Lost is how many entries are in the hub's log only.
func (l *Log) Lost() int64 { return l.lost.Load() }

// Record logs an entry and has it stored. What was done is stored before it returns, if the store takes it soon: who was told
// that something is done finds the entry of it.
func (l *Log) Record(ctx context.Context, e *towlinev1.AuditEntry) {
	e.Hub = l.hub
	if e.GetTime() == nil {
		e.Time = timestamppb.New(l.now())
	}
	if e.GetSubjectKind() == "" {
		e.SubjectKind = kindOf(e.GetMethod())
	}
	l.log.LogAttrs(ctx, slog.LevelInfo, "audit", attrs(e)...)
	if e.GetResult() != OK && !l.refusals.AllowN(l.now(), 1) {
		l.lost.Add(1)
		return
	}
	w := &waiting{entry: proto.CloneOf(e), done: make(chan struct{})}
	select {
	case l.waiting <- w:
	default:
		l.lost.Add(1)
		return
	}
	if e.GetResult() != OK {
		return
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-w.done:
	case <-ctx.Done():
	case <-late.C:
	}
}

func attrs(e *towlinev1.AuditEntry) []slog.Attr {
	out := []slog.Attr{slog.String("caller", e.GetCaller()), slog.String("method", e.GetMethod()), slog.String("subject", e.GetSubject()),
		slog.String("reason", e.GetReason()), slog.String("result", e.GetResult())}
	for _, a := range []slog.Attr{slog.String("remote", e.GetRemote()), slog.String("certificate", e.GetCertificate()), slog.String("detail", e.GetDetail())} {
		if a.Value.String() != "" {
			out = append(out, a)
		}
	}
	return out
}

// Run stores entries until ctx ends, and then those that wait: it ends when nobody records any more.
func (l *Log) Run(ctx context.Context) {
	for {
		select {
		case w := <-l.waiting:
			l.write(l.batch(w))
		case <-ctx.Done():
			for len(l.waiting) > 0 {
				l.write(l.batch(<-l.waiting))
			}
			return
		}
	}
}

func (l *Log) batch(first *waiting) []*waiting {
	out := []*waiting{first}
	for len(out) < maxBatch {
		select {
		case w := <-l.waiting:
			out = append(out, w)
		default:
			return out
		}
	}
	return out
}

// write stores a batch. In the end it adds nothing to what the store holds, so that a full store takes it.
func (l *Log) write(batch []*waiting) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	keys := make([]string, len(batch))
	for i, w := range batch {
		keys[i] = l.key(w.entry)
	}
	rev, err := l.store.Update(ctx, func(w store.Writer) error {
		for i, b := range batch {
			w.Put(keys[i], &storev1.AuditRecord{Entry: b.entry})
		}
		return nil
	})
	if err == nil { // who reads at this hub finds it
		err = l.store.View(ctx, rev, func(store.Reader) error { return nil })
	}
	if err != nil {
		l.lost.Add(int64(len(batch)))
		l.log.Warn("audit entries are in this log only", "entries", len(batch), "error", err)
	}
	for _, w := range batch {
		close(w.done)
	}
	if l.written += len(batch); l.written >= spare {
		l.written = 0
		l.forget(ctx)
	}
}

// key sorts before those of all entries before. Two hubs have no key alike.
func (l *Log) key(e *towlinev1.AuditEntry) string {
	l.last = max(l.last+1, e.GetTime().AsTime().UnixNano())
	prefix := store.AuditDone
	if e.GetResult() != OK {
		prefix = store.AuditRefused
	}
	return fmt.Sprintf("%s%019d-%s", prefix, math.MaxInt64-l.last, l.hub)
}

// forget deletes the oldest entries that are too many.
func (l *Log) forget(ctx context.Context) {
	for prefix, keep := range map[string]int{store.AuditDone: Done, store.AuditRefused: Refused} {
		for {
			gone := 0
			_, err := l.store.Update(ctx, func(w store.Writer) error {
				old := beyond(w, prefix, keep)
				for _, key := range old {
					w.Delete(key)
				}
				gone = len(old)
				return nil
			})
			if err != nil {
				l.log.Warn("old audit entries stay for now", "error", err)
			}
			if err != nil || gone < store.MaxOps {
				break
			}
		}
	}
}

// beyond are keys of what is older than the newest so many; at most as many as one write takes.
func beyond(r store.Reader, prefix string, keep int) (out []string) {
	n := 0
	r.Scan(prefix, func(e store.Entry) bool {
		if n++; n > keep {
			out = append(out, e.Key)
		}
		return len(out) < store.MaxOps
	})
	return out
}
