package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
)

func (a *app) confirmCommand() *cobra.Command {
	var yes bool
	var reason string
	cmd := &cobra.Command{
		Use: "confirm HOLD-ID…", Short: "Release exactly what a hold lists",
		Long: "Releases what waits for a person. The list that is shown is what is released: if it has changed meanwhile, nothing is.\n" +
			"On a terminal it asks first, also where the output goes elsewhere.",
		Args: atLeast(1, "the id of a hold, as `towline get holds` shows it"), ValidArgsFunction: a.completeKind("hold"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.mayConfirm(cmd.Context(), args); err != nil {
				return err
			}
			return eachName(args, func(id string) error { return a.confirm(cmd.Context(), bare(id, "hold"), reason, yes) })
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why; recorded")
	return cmd
}

// mayConfirm refuses what waits for no confirm, before anything is released. One that is not there any more may have been confirmed.
func (a *app) mayConfirm(ctx context.Context, args []string) error {
	holds, err := a.holds(ctx, &v1.ListHoldsRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, h := range holds {
		if slices.Contains(args, h.GetId()) || slices.Contains(args, "hold/"+h.GetId()) {
			errs = append(errs, confirmable(h))
		}
	}
	return errors.Join(errs...)
}

// confirmable is an error for a hold that somebody put: it ends with that word, or in its cluster.
func confirmable(h *v1.Hold) error {
	if err := endsThere(h); err != nil || h.GetKind() != kindFreeze {
		return err
	}
	return usagef("hold %s was put by %s and waits for no confirm: nothing is confirmed; to end it: towline unhold %s", h.GetId(), h.GetBy(), h.GetId())
}

// itemCount is how many items a hold has with those that it does not list.
func itemCount(h *v1.Hold) int { return max(int(h.GetCount()), len(h.GetItems())) }

func (a *app) confirm(ctx context.Context, id, reason string, yes bool) error {
	h, err := a.hold(ctx, id)
	if err != nil {
		return err
	}
	if err := confirmable(h); err != nil {
		return err
	}
	a.notef("%s\n", holdText(h))
	for _, item := range h.GetItems() {
		a.notef("  %s\n", table.Clean(item))
	}
	if err := a.askWhoIsThere(yes, "confirm "+id, ""); err != nil {
		return err
	}
	if err := a.release(ctx, h, reason, "confirmed"); err != nil {
		return a.changed(ctx, h, err)
	}
	return nil
}

func (a *app) hold(ctx context.Context, id string) (*v1.Hold, error) {
	holds, err := a.holds(ctx, &v1.ListHoldsRequest{})
	if err != nil {
		return nil, err
	}
	for _, h := range holds {
		if h.GetId() == id {
			return h, nil
		}
	}
	return nil, noHold(id, holds)
}

// noHold says what became of a hold, and what waits now instead: an id is of one list, so that another list has another.
func noHold(id string, holds []*v1.Hold) error {
	kind := id[:strings.LastIndex(id, "-")+1]
	var now []string
	for _, h := range holds {
		if h.GetKind() != kindFreeze && kind != "" && strings.HasPrefix(h.GetId(), kind) {
			now = append(now, holdText(h)+"; look at it with: towline describe hold "+h.GetId())
		}
	}
	const ended = "hold %s: there is none of that id: it was confirmed or has ended, or what it listed has changed, and has another id then; "
	switch len(now) {
	case 0:
		return fleet.Errorf(fleet.ErrNotFound, ended+"see: towline get holds -A", id)
	case 1:
		return fleet.Errorf(fleet.ErrNotFound, ended+"one waits now, of that list or another: %s", id, now[0])
	}
	return fleet.Errorf(fleet.ErrNotFound, ended+"%d others wait: towline get holds -A", id, len(now))
}

// changed says what has become of a list between its being shown and the word that was to release it, if that is why the hub refused it.
func (a *app) changed(ctx context.Context, was *v1.Hold, refused error) error {
	if !errors.Is(refused, fleet.ErrConflict) && !errors.Is(refused, fleet.ErrNotFound) {
		return refused
	}
	holds, err := a.holds(ctx, &v1.ListHoldsRequest{})
	if err != nil {
		return refused
	}
	i := slices.IndexFunc(holds, func(h *v1.Hold) bool {
		return h.GetKind() == was.GetKind() && h.GetCode() == was.GetCode() && h.GetProject() == was.GetProject() && h.GetModule() == was.GetModule() &&
			h.GetCluster() == was.GetCluster() && h.GetCatalog() == was.GetCatalog()
	})
	switch {
	case i < 0:
		return noHold(was.GetId(), holds)
	case holds[i].GetDigest() == was.GetDigest():
		return fleet.Errorf(fleet.ErrConflict, "hold %s was asked anew meanwhile, with the same list; nothing is confirmed; again: towline confirm %s", was.GetId(), holds[i].GetId())
	}
	return fleet.Errorf(fleet.ErrConflict, "hold %s: what it lists has changed since it was shown%s; nothing is confirmed; look at it again: towline describe hold %s", was.GetId(), listChange(was.GetItems(), holds[i].GetItems()), holds[i].GetId())
}

// listChange is ": 2 more, as ConfigMap shop/a; 1 not any more, as ConfigMap shop/b".
func listChange(was, now []string) string {
	var out []string
	for _, x := range []struct {
		in, without []string
		word        string
	}{{now, was, "more"}, {was, now, "not any more"}} {
		only := slices.DeleteFunc(slices.Clone(x.in), func(s string) bool { return slices.Contains(x.without, s) })
		if len(only) > 0 {
			out = append(out, fmt.Sprintf("%d %s, as %s", len(only), x.word, table.Clean(only[0])))
		}
	}
	if len(out) == 0 {
		return ""
	}
	return ": " + strings.Join(out, "; ")
}

func (a *app) release(ctx context.Context, h *v1.Hold, reason, done string) error {
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	if _, err := c.Modules.ConfirmHold(ctx, &v1.ConfirmHoldRequest{Id: h.GetId(), Digest: h.GetDigest(), ResourceVersion: h.GetResourceVersion(), Reason: reason}); err != nil {
		return err
	}
	later := ""
	if why, until := a.absent(ctx, h); why != "" {
		later = "; " + why + ": heard of there when " + until
	}
	a.printf("hold/%s %s%s\n", h.GetId(), done, later)
	return nil
}

// meanwhile is what goes on where a hold is not heard of. An agent that was locked out, or whose identity is revoked, writes nothing, and
// counts as away, too.
func meanwhile(h *v1.Hold, why string) string {
	const goesOn = ", what was told before goes on, and drift is corrected"
	switch {
	case h.GetCluster() == "":
		return goesOn + ", except in one that is locked or revoked"
	case why != agentAway && why != agentAhead:
		return ""
	}
	return goesOn
}

// absent says why what a hold is of does not hear of a change of it now, and until when; empty: all hear of it.
func (a *app) absent(ctx context.Context, h *v1.Hold) (why, until string) {
	switch {
	case h.GetCluster() != "":
		if c, err := a.cluster(ctx, h.GetCluster()); err == nil {
			return absence(c.GetStatus())
		}
	case h.GetModule() != "":
		return a.absentOf(ctx, h)
	}
	return "", ""
}

// absentOf is absent of a module in all of its clusters.
func (a *app) absentOf(ctx context.Context, h *v1.Hold) (why, until string) {
	var whys, untils []string
	m, err := a.moduleOf(ctx, fleet.ModuleRef{Project: h.GetProject(), Name: h.GetModule()})
	told := m.GetStatus().GetAhead()
	switch n := m.GetStatus().GetAway() - told; {
	case err != nil || n <= 0:
	case n == 1:
		whys, untils = append(whys, "1 cluster is away"), append(untils, "it is back")
	default:
		whys, untils = append(whys, number(n)+" clusters are away"), append(untils, "they are back")
	}
	switch {
	case told == 1:
		whys, untils = append(whys, "1 cluster is told nothing, for its agent has seen a newer store of the hub"), append(untils, accepted)
	case told > 1:
		whys, untils = append(whys, number(told)+" clusters are told nothing, for their agents have seen a newer store of the hub"), append(untils, accepted)
	}
	return strings.Join(whys, ", and "), strings.Join(untils, " and ")
}

// holdText is "hold h-1 of module shop in cluster prod-eu-01: drops 12 of 20 objects".
func holdText(h *v1.Hold) string {
	out := fmt.Sprintf("hold %s (%s)", h.GetId(), h.GetKind())
	if h.GetModule() != "" {
		out += " of module " + moduleName(h.GetProject(), h.GetModule())
	}
	if h.GetCatalog() != "" {
		out += " of catalog " + moduleName(h.GetProject(), h.GetCatalog())
	}
	if h.GetObject() != nil {
		out += ", " + objectText(h.GetObject())
	}
	if h.GetCluster() != "" {
		out += " in cluster " + h.GetCluster()
	}
	if why := holdSays(h); why != "" {
		out += ": " + why
	}
	return table.Clean(out)
}

func (a *app) holdCommand() *cobra.Command {
	var cluster, reason, until string
	var length time.Duration
	var shorten bool
	cmd := &cobra.Command{
		Use: "hold module/X [--cluster C] | cluster/Y | KIND/NAMESPACE/NAME --cluster C", Short: "Stop all writes of a module, a cluster, a module in a cluster, or one object",
		Long: "Nothing is written there any more: no correction of drift, no other revision, no deletion, until `towline unhold`, --until or\n" +
			"the end of --for. Rollouts pass a cluster by in which a module or one of its objects is held, and the deletion of the module\n" +
			"waits there. An object is one that a module has in the cluster; one without a namespace is KIND/NAME. In its\n" +
			"cluster the annotation towline.dev/hold=REASON on an object does the same, until it is taken away there.\n" +
			"Your hold of the same for the same reason ends later with this; sooner only with --shorten, for others who go by your name may count on it.\n" +
			"An agent that is away hears of a hold when it is back, and corrects drift until then; the annotation counts at once.",
		Example: "  towline hold module/shop --for 2h -m 'migration of the data'\n  towline hold cluster/prod-eu-01 --until 2026-07-03T12:00:00Z\n" +
			"  towline hold Deployment/shop/web --cluster prod-eu-01 --for 30m -m 'looking at it'",
		Args: atLeast(1, "a module, a cluster or an object"), ValidArgsFunction: a.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := a.holdSubject(args, cluster)
			if err != nil {
				return err
			}
			req := &v1.PutHoldRequest{Project: of.project, Module: of.module, Cluster: of.cluster, Object: of.object, Reason: reason, Shorten: shorten}
			switch {
			case cmd.Flags().Changed("for") && until != "":
				return usagef("write --for or --until, not both")
			case cmd.Flags().Changed("for") && length <= 0:
				return usagef("--for %s: how long, as 2h or 30m", length)
			case cmd.Flags().Changed("for"):
				until = length.String()
			}
			if req.Until, err = a.end(cmd.Context(), until); err != nil {
				return err
			}
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			resp, err := c.Modules.PutHold(cmd.Context(), req)
			if err != nil {
				return err
			}
			end := ""
			if t := resp.GetHold().GetUntil(); t != nil {
				end = " until " + a.clock(t)
			}
			a.printf("hold/%s put%s; end it with: towline unhold %s\n", resp.GetHold().GetId(), end, resp.GetHold().GetId())
			if why, until := a.absent(cmd.Context(), resp.GetHold()); why != "" {
				a.warnf("%s: until %s the hold is not heard of there%s; the annotation towline.dev/hold holds an object at once", why, until, meanwhile(resp.GetHold(), why))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "the module in this cluster only; the cluster of the object")
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why; recorded")
	cmd.Flags().DurationVar(&length, "for", 0, "how long, as 2h or 30m; it ends by itself then")
	cmd.Flags().BoolVar(&shorten, "shorten", false, "have a hold of yours for the same reason end sooner than it does; without it that is refused")
	cmd.Flags().StringVar(&until, "until", "", "when it ends by itself: a time (2026-07-03T12:00:00Z), a date or a duration (2h)")
	must(cmd.RegisterFlagCompletionFunc("cluster", a.completeKind("cluster")))
	return cmd
}

// held is what a hold is of: a module, a cluster, a module in a cluster, or an object there.
type held struct {
	project, module, cluster string
	object                   *v1.ObjectReference
}

var errHeldWhat = usagef("name module/X, cluster/Y, module/X --cluster C, or KIND/NAMESPACE/NAME --cluster C")

// holdSubject reads module/X [--cluster C], cluster/Y, or KIND/NAMESPACE/NAME --cluster C of an object.
func (a *app) holdSubject(args []string, inCluster string) (held, error) {
	if o, is, err := heldObject(args); is {
		switch {
		case err != nil:
			return held{}, err
		case inCluster == "":
			return held{}, usagef("%s: in which cluster? --cluster C", strings.Join(args, " "))
		}
		return held{cluster: inCluster, object: o}, nil
	}
	k, name, err := one(args)
	switch {
	case err != nil:
		return held{}, err
	case k.hold == nil:
		return held{}, usagef("%s is a kind of Towline's, too, of which nothing is held; an object of a cluster is written: object %s --cluster C", k.name, strings.Join(args, " "))
	}
	return k.hold(a, name, inCluster)
}

// heldObject reads KIND/NAMESPACE/NAME or KIND/NAME, behind the word object where Towline itself has a kind of that name.
func heldObject(args []string) (o *v1.ObjectReference, is bool, err error) {
	word, _, slashed := strings.Cut(args[0], "/")
	switch k, unknown := kindOf(word); {
	case unknown == nil && k.explainIn != nil:
		_, name, err := one(args)
		if err != nil {
			return nil, true, err
		}
		o, err = objectNamed(name)
		return o, true, err
	case unknown == nil, !slashed, len(args) != 1:
		return nil, false, nil
	case word == strings.ToLower(word) && resource.Nearest(word, plurals(kinds())) != "":
		return nil, true, unknown // a kind of Towline's that is misspelt
	}
	o, err = objectNamed(args[0])
	return o, true, err
}

func (a *app) holdOfModule(name, inCluster string) (held, error) {
	ref, err := a.moduleRef(name)
	return held{project: ref.Project, module: ref.Name, cluster: inCluster}, err
}

func (a *app) holdOfCluster(name, inCluster string) (held, error) {
	if inCluster != "" {
		return held{}, errHeldWhat
	}
	return held{cluster: name}, nil
}

func (a *app) unholdCommand() *cobra.Command {
	var cluster, reason string
	cmd := &cobra.Command{
		Use: "unhold HOLD-ID | module/X [--cluster C] | cluster/Y | KIND/NAMESPACE/NAME --cluster C", Short: "End a hold put with `towline hold`",
		Args: atLeast(1, "the id of a hold, a module, a cluster or an object"), ValidArgsFunction: a.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if id := bare(args[0], "hold"); len(args) == 1 && !strings.Contains(id, "/") {
				h, err := a.hold(cmd.Context(), id)
				if err != nil {
					return err
				}
				return a.unhold(cmd.Context(), h, a.me(cmd.Context()), reason)
			}
			of, err := a.holdSubject(args, cluster)
			if err != nil {
				return err
			}
			holds, err := a.holds(cmd.Context(), &v1.ListHoldsRequest{Project: of.project, Module: of.module, Cluster: of.cluster})
			if err != nil {
				return err
			}
			holds = slices.DeleteFunc(holds, func(h *v1.Hold) bool { return h.GetKind() != kindFreeze || !of.is(h) })
			if len(holds) == 0 {
				return fleet.Errorf(fleet.ErrNotFound, "%s: is not held; see: towline get holds -A", strings.Join(args, " "))
			}
			// What was put at the hub comes first, and of that one's own: that is what this command ends.
			me := a.me(cmd.Context())
			others := func(h *v1.Hold) int {
				if h.GetBy() == me {
					return 0
				}
				return 1
			}
			slices.SortStableFunc(holds, func(x, y *v1.Hold) int {
				return cmp.Or(cmp.Compare(x.GetSource(), y.GetSource()), others(x)-others(y))
			})
			if err := whichHold(holds, me); err != nil {
				return err
			}
			if err := a.unhold(cmd.Context(), holds[0], me, reason); err != nil {
				return err
			}
			for _, h := range holds[1:] {
				a.notef("It is held still: %s; put by %s; end that with: %s\n", holdText(h), orDash(h.GetBy()), holdEnd(h))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "the module in this cluster only")
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why; recorded")
	return cmd
}

// whichHold refuses to choose where one name has put several of the same at the hub, for several reasons: it may be that of several people.
func whichHold(holds []*v1.Hold, me string) error {
	var mine []string
	for _, h := range holds {
		if h.GetBy() == me && endsThere(h) == nil {
			mine = append(mine, fmt.Sprintf("towline unhold %s (%s)", h.GetId(), cmp.Or(table.Clean(h.GetReason()), "without a reason")))
		}
	}
	if len(mine) < 2 {
		return nil
	}
	return usagef("%s has put %d of these holds: name the one that is to end: %s", orDash(me), len(mine), strings.Join(mine, "; "))
}

// is reports that a hold is of this.
func (of held) is(h *v1.Hold) bool {
	if of.object == nil {
		return h.GetObject() == nil && h.GetModule() == of.module && h.GetCluster() == of.cluster
	}
	o := h.GetObject()
	return o != nil && h.GetCluster() == of.cluster && strings.EqualFold(o.GetKind(), of.object.GetKind()) && o.GetNamespace() == of.object.GetNamespace() && o.GetName() == of.object.GetName()
}

// endsThere is an error for a hold that only the people of its cluster can end.
func endsThere(h *v1.Hold) error {
	if h.GetSource() != fleet.HoldOfAnnotation {
		return nil
	}
	return usagef("hold %s is an annotation on the object in cluster %s; take it away there: %s", h.GetId(), h.GetCluster(), holdEnd(h))
}

// me is who the hub takes this command for; empty: it does not say.
func (a *app) me(ctx context.Context) string {
	info, err := a.serverInfo(ctx, false)
	if err != nil {
		return ""
	}
	return info.GetUser()
}

// unhold ends a hold, and says so where it is somebody else's, who counts on it.
func (a *app) unhold(ctx context.Context, h *v1.Hold, me, reason string) error {
	if err := endsThere(h); err != nil {
		return err
	}
	if h.GetKind() != kindFreeze {
		return usagef("hold %s waits for a confirm; release it with: towline confirm %s", h.GetId(), h.GetId())
	}
	if h.GetBy() != me {
		a.warnf("%s; it was put by %s", holdText(h), orDash(h.GetBy()))
	}
	return a.release(ctx, h, reason, "ended")
}
