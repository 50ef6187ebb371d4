package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// getAudit shows what was done and what was refused, the newest last, so that it is what a person sees first in a terminal. Names
// are those of what it was about.
func (a *app) getAudit(ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	if o.since <= 0 {
		return usagef("--since %s: write how long back, such as 24h", o.since)
	}
	if len(names) == 0 {
		names = []string{""}
	}
	since := a.Now().Add(-o.since)
	var all []*v1.AuditEntry
	var errs []error
	for _, name := range names {
		found, err := collect(c.AllAuditEntries(ctx, &v1.ListAuditEntriesRequest{Subject: name, Caller: o.by, Refused: o.refused, Since: timestamppb.New(since)}))
		all, errs = append(all, found...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	slices.SortStableFunc(all, func(x, y *v1.AuditEntry) int { return x.GetTime().AsTime().Compare(y.GetTime().AsTime()) })
	if len(all) == 0 && !o.structured() {
		a.notef("Nothing is recorded%s of the last %s.\n", aboutText(names, o.by), span(o.since))
		return nil
	}
	return auditView.print(a, &o.output, all, false)
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
		t := &table.Table{Columns: columns(left("TIME", "BY", "DID", "TO", "RESULT"), wide("FROM", "CERTIFICATE", "HUB"), prose("REASON"))}
		for _, e := range items {
			t.Add(text(a.stamp(e.GetTime())), text(orDash(e.GetCaller())), text(e.GetMethod()), text(orDash(strings.TrimPrefix(e.GetSubject(), "default/"))), state(e.GetResult()),
				text(orDash(e.GetRemote())), text(orDash(e.GetCertificate())), text(orDash(e.GetHub())), text(orDash(saidText(e))))
		}
		return t
	},
}

// saidText is why, and what there is more.
func saidText(e *v1.AuditEntry) string {
	return strings.Join(slices.DeleteFunc([]string{e.GetReason(), e.GetDetail()}, func(s string) bool { return s == "" }), "; ")
}
