package cli

import (
	"context"
	"fmt"
	"strings"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/resource"
)

// objectNamed reads KIND/NAMESPACE/NAME, or KIND/NAME of an object without a namespace.
func objectNamed(name string) (*v1.ObjectReference, error) {
	parts := strings.Split(name, "/")
	for _, p := range parts {
		if p == "" {
			parts = nil
		}
	}
	switch len(parts) {
	case 2:
		return &v1.ObjectReference{Kind: parts[0], Name: parts[1]}, nil
	case 3:
		return &v1.ObjectReference{Kind: parts[0], Namespace: parts[1], Name: parts[2]}, nil
	}
	return nil, usagef("object %s: write KIND/NAMESPACE/NAME, or KIND/NAME of one without a namespace", name)
}

func (a *app) explainObject(ctx context.Context, c *client.Client, out *output, name, cluster string) error {
	ref, err := objectNamed(name)
	if err != nil {
		return err
	}
	resp, err := c.Trackers.ExplainObject(ctx, &v1.ExplainObjectRequest{Cluster: cluster, Object: ref})
	if err != nil {
		return err
	}
	if out.structured() {
		return out.node(a, resource.Node(resp))
	}
	a.printf("%s", a.objectExplained(resp))
	return nil
}

func (a *app) objectExplained(x *v1.ExplainObjectResponse) string {
	var b strings.Builder
	o := x.GetObject()
	drift := ", " + a.paint(stateColors[o.GetDrift()], o.GetDrift())
	if o.GetWatched() { // nobody compares it with anything
		drift = ""
	}
	fmt.Fprintf(&b, "%s in cluster %s is %s, %s%s%s.\n", objectText(o.GetObject()), o.GetCluster(), a.cell(syncCell(o)),
		a.cell(objectHealth(o)), drift, sinceText(a.clock(o.GetSince())))
	if says := a.objectSays(o); says != "" && says != "-" {
		fmt.Fprintf(&b, "%s.\n", strings.TrimSuffix(sentence(says), "."))
	}
	if o.GetField() != "" {
		there := "there is"
		if o.GetLastHeard() != nil {
			there = "there was"
		}
		fmt.Fprintf(&b, "Field %s: the module says %s, %s %s", o.GetField(), valueText(o.GetWant()), there, valueText(o.GetLive()))
		if o.GetChangedBy() != "" {
			fmt.Fprintf(&b, ", changed by %s", o.GetChangedBy())
		}
		if o.GetSeen() > 1 {
			fmt.Fprintf(&b, ", %s until now", count(o.GetSeen(), "time"))
			if o.GetLastChanged() != nil {
				fmt.Fprintf(&b, ", first at %s and last at %s", a.clock(o.GetFirstChanged()), a.clock(o.GetLastChanged()))
			}
		}
		b.WriteString(".\n")
	}
	for _, h := range x.GetHolds() {
		fmt.Fprintf(&b, "%s; end it with: %s\n", sentence(holdText(h)+", "+a.heldBy(h)), a.paint(table.Cyan, holdEnd(h)))
	}
	module := moduleName(o.GetProject(), o.GetModule())
	switch {
	case o.GetWatched():
		fmt.Fprintf(&b, "Module %s only watches it, in r%d (spec.watch): it is somebody else's, and its health counts for the module.\n", module, o.GetRevision())
		return b.String()
	case o.GetExtra() && o.GetRevision() == 0:
		fmt.Fprintf(&b, "Module %s had it, and does not list it any more.\n\n", module)
		a.writeDecisions(&b, x)
		return b.String()
	case o.GetExtra():
		fmt.Fprintf(&b, "Module %s does not list it any more; the last that did here was r%d%s", module, o.GetRevision(), sinceText(a.clock(x.GetRevised())))
	default:
		fmt.Fprintf(&b, "Module %s lists it, in r%d%s", module, o.GetRevision(), sinceText(a.clock(x.GetRevised())))
	}
	if x.GetChangedBy() != "" {
		fmt.Fprintf(&b, ", put by %s", x.GetChangedBy())
	}
	if x.GetChangeReason() != "" {
		fmt.Fprintf(&b, ": %q", x.GetChangeReason())
	}
	if x.GetRollout() != "" {
		fmt.Fprintf(&b, "; brought by rollout %s", a.paint(table.Cyan, x.GetRollout()))
	}
	b.WriteString(".\n\n")
	a.writeDecisions(&b, x)
	return b.String()
}

// writeDecisions says how the policies treat the object.
func (a *app) writeDecisions(b *strings.Builder, x *v1.ExplainObjectResponse) {
	t := &table.Table{Columns: left("POLICY", "VALUE", "DECIDED BY")}
	for _, p := range x.GetPolicies() {
		by := "default"
		switch {
		case p.GetEntry() > 0:
			by = fmt.Sprintf("spec.policies[%d]", p.GetEntry()-1)
		case p.GetEntry() < 0:
			by = chartAnnotation(p.GetField()) + " of the chart"
		}
		value := p.GetValue()
		if value == "" {
			value = "-"
		}
		t.Add(text(p.GetField()), text(value), text(by))
	}
	must(t.Write(b, table.Style{Color: a.color()}))
}

// chartAnnotation is by which a chart decides a field of the policies.
func chartAnnotation(field string) string {
	if field == "applyOnce" {
		return manifest.HookAnnotation
	}
	return manifest.KeepAnnotation
}
