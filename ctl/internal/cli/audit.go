package cli

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

// getAudit shows what was done and what was refused, the newest last, so that it is what a person sees first in a terminal. Names
// are those of what it was about.
func (a *app) getAudit(ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	names, err := auditAbout(o, names)
	if err != nil {
		return err
	}
	all, err := auditSince(ctx, c, o, "", names, a.Now().Add(-o.since))
	if err != nil {
		return err
	}
	if len(all) == 0 && !o.structured() {
		a.notef("Nothing is recorded%s of the last %s.\n", aboutText(names, o.by), span(o.since))
		return nil
	}
	return auditView.print(a, &o.output, all, false)
}

// auditAbout are the names to ask about, "" for all.
func auditAbout(o *getOptions, names []string) ([]string, error) {
	if o.since <= 0 {
		return nil, usagef("--since %s: write how long back, such as 24h", o.since)
	}
	if len(names) == 0 {
		return []string{""}, nil
	}
	return names, nil
}

// auditSince are the entries about some names, of a kind or of any, or all, from a time on, the newest last.
func auditSince(ctx context.Context, c *client.Client, o *getOptions, kind string, names []string, since time.Time) ([]*v1.AuditEntry, error) {
	var all []*v1.AuditEntry
	var errs []error
	for _, name := range names {
		found, err := collect(c.AllAuditEntries(ctx, &v1.ListAuditEntriesRequest{SubjectKind: kind, Subject: name, Caller: o.by, Refused: o.refused, Since: timestamppb.New(since)}))
		all, errs = append(all, found...), append(errs, err)
	}
	slices.SortStableFunc(all, func(x, y *v1.AuditEntry) int { return x.GetTime().AsTime().Compare(y.GetTime().AsTime()) })
	return all, errors.Join(errs...)
}

// auditEvery is how often a hub is asked for new entries.
var auditEvery = 2 * time.Second

// auditLate is how much later than another entry one may come that is older: hubs have clocks of their own, and write several at once. An
// entry of a hub whose clock is ahead of this one hides nothing of what others write.
const auditLate = time.Minute

// watchAudit shows the entries and then each new one.
func (a *app) watchAudit(ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	names, err := auditAbout(o, names)
	if err != nil {
		return err
	}
	w := &watcher[*v1.AuditEntry]{a: a, o: o, view: auditView, keep: func(*v1.AuditEntry) bool { return true }, absent: func([]*v1.AuditEntry) error { return nil }}
	t := auditTail{watcher: w, since: a.Now().Add(-o.since), shown: map[string]time.Time{},
		ask: func(since time.Time) ([]*v1.AuditEntry, error) { return auditSince(ctx, c, o, "", names, since) }}
	for {
		if err := t.look(); err != nil {
			return err
		}
		if err := backoff.Wait(ctx, auditEvery); err != nil {
			return err
		}
	}
}

// auditTail shows each entry once.
type auditTail struct {
	*watcher[*v1.AuditEntry]
	ask   func(since time.Time) ([]*v1.AuditEntry, error)
	since time.Time
	shown map[string]time.Time // of what may be answered again
}

// look shows what is new. A hub that does not answer, and did before, is asked again the next time.
func (t *auditTail) look() error {
	found, err := t.ask(t.since)
	switch {
	case err != nil && t.synced && errors.Is(err, fleet.ErrUnavailable):
		t.a.onBreak(err)
		return nil
	case err != nil:
		return err
	}
	for _, e := range found {
		key, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		if err != nil {
			return err
		}
		if _, before := t.shown[string(key)]; before {
			continue
		}
		at := e.GetTime().AsTime()
		t.shown[string(key)] = at
		if now := t.a.Now(); at.After(now) {
			at = now
		}
		if from := at.Add(-auditLate); from.After(t.since) {
			t.since = from
		}
		if err := t.take(client.Change[*v1.AuditEntry]{Type: client.Added, Item: e}); err != nil {
			return err
		}
	}
	maps.DeleteFunc(t.shown, func(_ string, at time.Time) bool { return at.Before(t.since) })
	if t.synced {
		return nil
	}
	return t.take(client.Change[*v1.AuditEntry]{Type: client.Synced})
}

func aboutText(names []string, by string) string {
	out := ""
	if names[0] != "" {
		out = " about " + enumerate(names, "and")
	}
	if by != "" {
		out += " by " + by
	}
	return out
}

var auditView = view[*v1.AuditEntry]{
	kind: "audit", name: func(e *v1.AuditEntry) string { return e.GetTime().AsTime().UTC().Format(time.RFC3339Nano) },
	table: func(a *app, items []*v1.AuditEntry) *table.Table {
		t := &table.Table{Columns: columns(left("TIME", "BY", "DID", "TO", "RESULT"), wide("KIND", "FROM", "CERTIFICATE", "HUB"), prose("REASON"))}
		for _, e := range items {
			t.Add(text(a.stamp(e.GetTime())), text(orDash(e.GetCaller())), text(e.GetMethod()), text(orDash(strings.TrimPrefix(e.GetSubject(), "default/"))), state(e.GetResult()),
				text(orDash(e.GetSubjectKind())), text(orDash(e.GetRemote())), text(orDash(e.GetCertificate())), text(orDash(e.GetHub())), text(orDash(saidText(e))))
		}
		return t
	},
}

// saidText is why, and what there is more.
func saidText(e *v1.AuditEntry) string {
	return strings.Join(slices.DeleteFunc([]string{e.GetReason(), e.GetDetail()}, func(s string) bool { return s == "" }), "; ")
}
