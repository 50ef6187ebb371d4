package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

func (a *app) rolloutStatusCommand() *cobra.Command {
	var o waitOptions
	var out output
	var id string
	var all, watch bool
	cmd := &cobra.Command{
		Use: "status MODULE[/N]", Short: "Follow a rollout to its end and exit with its result",
		Long: "Follows the module's newest rollout, or the one named, to its end. On a terminal a table is redrawn; elsewhere there is one\n" +
			"line for each change. With -o name, json, yaml or jsonpath nothing is printed before the end, and then the rollout.\n\n" + exitHelp,
		Args: ifNoID(&id, "a module or a rollout id"), ValidArgsFunction: a.completeArg("module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.parse(); err != nil {
				return err
			}
			ref, err := a.rolloutArg(id, args)
			if err != nil {
				return err
			}
			if !watch {
				return a.statusOnce(cmd.Context(), ref, &out, all)
			}
			ctx, cancel := o.deadline(cmd.Context())
			defer cancel()
			a.sayDeleting(ctx, ref.Module)
			if out.forPrograms() {
				return a.statusAtEnd(ctx, ref, &out, &o)
			}
			_, err = a.follow(ctx, followed{RolloutID: ref}, &o, all)
			return err
		},
	}
	o.flags(cmd)
	out.flags(cmd)
	cmd.Flags().StringVar(&id, "id", "", "rollout `MODULE/N` instead of the module's newest")
	cmd.Flags().BoolVar(&all, "all", false, "list every cluster, not only those that are not fine")
	cmd.Flags().BoolVarP(&watch, "watch", "w", true, "follow it; --watch=false prints once")
	return cmd
}

const exitHelp = "Exit codes: 0 done, 1 failed, aborted, rolled back or paused by failures, 2 usage, 3 waits for a person (--fail-on-wait),\n" +
	"4 timed out, 5 superseded."

func ifNoID(id *string, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if *id != "" {
			return exactly(0, "either --id or "+what)(cmd, args)
		}
		return exactly(1, what)(cmd, args)
	}
}

func (a *app) rolloutArg(id string, args []string) (fleet.RolloutID, error) {
	if id == "" {
		return a.rolloutRef(bare(args[0], "module", "rollout"))
	}
	ref, err := a.rolloutRef(bare(id, "rollout"))
	if err == nil && ref.Number == 0 {
		return ref, usagef("--id %s: write MODULE/N, such as shop/57", id)
	}
	return ref, err
}

func (a *app) statusOnce(ctx context.Context, ref fleet.RolloutID, out *output, all bool) error {
	r, err := a.rollout(ctx, ref)
	if err != nil {
		return err
	}
	if out.forPrograms() {
		return rolloutView(false).print(a, out, []*v1.Rollout{r}, true)
	}
	a.sayDeleting(ctx, ref.Module)
	a.printf("%s", a.rolloutPage(r, pageOptions{all: all, width: a.width()}))
	return nil
}

// statusAtEnd stays with a rollout to its end, or that of ctx, and prints it as it is then; the error is its result.
func (a *app) statusAtEnd(ctx context.Context, ref fleet.RolloutID, out *output, o *waitOptions) error {
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	var told string
	last, err := c.WaitRollout(ctx, watchRequest(ref), func(r *v1.Rollout) bool {
		_, done := o.outcome(r.GetStatus())
		told = a.sayAwaited(r, done, told)
		return done
	})
	if last != nil {
		if err := rolloutView(false).print(a, out, []*v1.Rollout{last}, true); err != nil {
			return err
		}
	}
	return o.finish(refText(ref), last, err)
}

// sayAwaited says what a rollout waits for that somebody has to do, where the command waits in silence; once for each reason, of which it returns the last.
func (a *app) sayAwaited(r *v1.Rollout, done bool, told string) string {
	s := r.GetStatus()
	if done || !waitsForPerson(s) {
		return ""
	}
	why := awaited(s)
	if why != told {
		a.warnf("rollout %s waits for somebody: %s; see: towline explain rollout %s", r.GetId(), cmp.Or(a.rolloutSays(why, s.GetFacts()), why), r.GetId())
	}
	return why
}

// sayDeleting says that a module is being deleted: its newest rollout, which may have succeeded long ago, knows nothing of that.
func (a *app) sayDeleting(ctx context.Context, ref fleet.ModuleRef) {
	if m, err := a.moduleOf(ctx, ref); err == nil && m.GetMetadata().GetDeletionTimestamp() != nil {
		with := "with what it has"
		if leavesObjects(m) {
			with = "and leaves what it has"
		}
		a.warnf("module %s is being deleted, since %s, %s; what follows is of before; see: towline describe module %s",
			ref.Display(), a.stamp(m.GetMetadata().GetDeletionTimestamp()), with, ref.Display())
	}
}

func (a *app) rollout(ctx context.Context, ref fleet.RolloutID) (*v1.Rollout, error) {
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := c.Rollouts.GetRollout(ctx, &v1.GetRolloutRequest{Project: ref.Module.Project, Module: ref.Module.Name, Number: ref.Number})
	return resp.GetRollout(), err
}

func watchRequest(ref fleet.RolloutID) *v1.WatchRolloutRequest {
	return &v1.WatchRolloutRequest{Project: ref.Module.Project, Module: ref.Module.Name, Number: ref.Number}
}

// followed is a rollout to stay with, and the UID of its module if that is known: another module of the name may have a
// rollout of the number.
type followed struct {
	fleet.RolloutID
	uid string
}

func (f followed) request() *v1.WatchRolloutRequest {
	req := watchRequest(f.RolloutID)
	req.ModuleUid = f.uid
	return req
}

// refText is the id, or the module's name while the number is not known.
func refText(ref fleet.RolloutID) string {
	if ref.Number == 0 {
		return ref.Module.Display()
	}
	return ref.String()
}

// follow stays with a rollout to its end, or that of ctx; the error is its result.
func (a *app) follow(ctx context.Context, of followed, o *waitOptions, all bool) (last *v1.Rollout, err error) {
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	take := a.printEvents
	if a.OutTerminal {
		live := a.newLive(all)
		defer live.close()
		take = live.take
	}
	err = c.WatchRollout(ctx, of.request(), func(resp *v1.WatchRolloutResponse) error {
		last = resp.GetRollout()
		take(resp)
		if _, done := o.outcome(last.GetStatus()); done {
			return client.ErrStop
		}
		return nil
	})
	if last != nil && !a.OutTerminal {
		a.printf("%s\n", a.ending(last))
	}
	return last, o.finish(refText(of.RolloutID), last, err)
}

// lastLook is how long the hub is asked how one rollout stands when the time to stay with it is over.
const lastLook = 5 * time.Second

// followAll stays with every rollout until timed, which is ctx with the deadline, is over, one after the other: one that ended meanwhile answers at once. Those of which
// nothing was heard by then are asked once how they stand, so that none is called unfinished that has ended.
func (a *app) followAll(ctx, timed context.Context, all []followed, o *waitOptions) error {
	var errs []error
	for i, of := range all {
		err := a.followOne(ctx, timed, of, o)
		errs = append(errs, err)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			errs = append(errs, goOn(all[i:]))
			break
		}
	}
	return joinCodes(errs)
}

// followOne stays with one of many. What is asked after the time has a time of its own for each: the last of them is not called unfinished
// because those before it were asked, too.
func (a *app) followOne(ctx, timed context.Context, of followed, o *waitOptions) error {
	var last *v1.Rollout
	var err error
	if timed.Err() == nil {
		last, err = a.follow(timed, of, o, false)
	}
	if over := o.timeout > 0 && timed.Err() != nil && ctx.Err() == nil; over && last == nil {
		later, cancel := context.WithTimeout(ctx, lastLook)
		defer cancel()
		timed = later
		last, err = a.stands(timed, of, o)
	}
	if err == nil && last != nil {
		err = a.delivered(timed, of.Module, last)
	}
	return cmp.Or(err, ctx.Err())
}

// stands asks once how a rollout stands for which no time is left; the error is that of follow.
func (a *app) stands(ctx context.Context, of followed, o *waitOptions) (*v1.Rollout, error) {
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	last, err := c.WaitRollout(ctx, of.request(), func(*v1.Rollout) bool { return true })
	if last == nil {
		return nil, o.unheard(refText(of.RolloutID), err)
	}
	a.printf("%s\n", a.ending(last))
	if _, done := o.outcome(last.GetStatus()); !done {
		err = context.DeadlineExceeded
	}
	return last, o.finish(refText(of.RolloutID), last, err)
}

// unheard says of a rollout that nobody knows whether it is done.
func (o *waitOptions) unheard(id string, err error) error {
	said := fmt.Sprintf("rollout %s: the hub did not say within %s how it stands, after the wait of %s; see: towline rollout status %s --watch=false", id, span(lastLook), o.timeout, id)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return &exitError{exitTimedOut, fmt.Errorf("%s: %w", said, err)}
	}
	return &exitError{exitTimedOut, errors.New(said)}
}

// printEvents prints a line for each change.
func (a *app) printEvents(resp *v1.WatchRolloutResponse) {
	id := resp.GetRollout().GetId()
	for _, e := range resp.GetEvents() {
		if e.GetFrom() == "" && e.GetTo() == "ToApply" {
			continue // a cluster whose turn has not come is no news
		}
		at := e.GetAt()
		if at == nil {
			at = timestamppb.New(a.Now())
		}
		a.printf("%s %s\n", a.stamp(at), table.Clean(a.eventText(id, e)))
	}
}

// eventText is such as "shop/57 cluster prod-eu-07: Progressing → Failed: image not found".
func (a *app) eventText(id string, e *v1.RolloutEvent) string {
	subject, said := id, ""
	switch s := e.GetSubject(); s.GetKind() {
	case rollout.AboutCluster:
		said = cmp.Or(a.memberSays(e.GetTo(), e.GetReason(), e.GetFacts()), e.GetReason())
		subject += " " + subjectSays(s)
	case rollout.AboutGate:
		said = a.gateSays(e.GetFacts())
		subject += " " + subjectSays(s)
	case rollout.AboutStage:
		said = a.rolloutSays(e.GetReason(), e.GetFacts())
		subject += " " + subjectSays(s)
	default:
		said = cmp.Or(a.rolloutSays(e.GetReason(), e.GetFacts()), e.GetReason())
	}
	change := e.GetTo()
	if e.GetFrom() != "" {
		change = e.GetFrom() + " → " + e.GetTo()
	}
	if said == "" {
		return subject + ": " + change
	}
	return subject + ": " + change + ": " + said
}

func (a *app) rolloutWaitCommand() *cobra.Command {
	var o waitOptions
	var id, until string
	cmd := &cobra.Command{
		Use: "wait MODULE[/N]", Short: "Wait for a rollout in silence and exit with its result",
		Long: "Waits until the rollout ends, or with --for until the stage has succeeded, and prints one line.\n\n" + exitHelp,
		Args: ifNoID(&id, "a module or a rollout id"), ValidArgsFunction: a.completeArg("module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := a.rolloutArg(id, args)
			if err != nil {
				return err
			}
			stage, isStage := strings.CutPrefix(until, "stage=")
			if until != "" && (!isStage || stage == "") {
				return usagef("--for %s: write stage=NAME", until)
			}
			return a.wait(cmd.Context(), ref, &o, stage)
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&id, "id", "", "rollout `MODULE/N` instead of the module's newest")
	cmd.Flags().StringVar(&until, "for", "", "stage=`NAME`: until this stage has succeeded")
	return cmd
}

func (a *app) wait(ctx context.Context, ref fleet.RolloutID, o *waitOptions, stage string) error {
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := o.deadline(ctx)
	defer cancel()
	var wrong error
	reached, told := false, ""
	last, err := c.WaitRollout(ctx, watchRequest(ref), func(r *v1.Rollout) bool {
		if stage != "" {
			reached, wrong = stageDone(r, stage)
		}
		_, done := o.outcome(r.GetStatus())
		done = done || reached || wrong != nil
		told = a.sayAwaited(r, done, told)
		return done
	})
	if wrong != nil {
		return wrong
	}
	if err == nil && last != nil {
		a.sayDeleting(ctx, ref.Module)
		a.printf("%s\n", a.ending(last))
	}
	if reached {
		return nil
	}
	if stage != "" && err == nil && len(last.GetStatus().GetStages()) == 0 && last.GetStatus().GetState() == stateSucceeded {
		return &exitError{exitFailed, fmt.Errorf("rollout %s has no stages, so stage %s was not waited for", last.GetId(), stage)}
	}
	return o.finish(refText(ref), last, err)
}

// stageDone reports that the stage has succeeded; a rollout whose plan is made and lacks it is wrong.
func stageDone(r *v1.Rollout, name string) (bool, error) {
	stages := r.GetStatus().GetStages()
	var names []string
	for _, s := range stages {
		if s.GetName() == name {
			return s.GetState() == stateSucceeded && !goesBack(r), nil // what had succeeded is on its way back
		}
		names = append(names, s.GetName())
	}
	if len(stages) == 0 {
		return false, nil
	}
	return false, usagef("rollout %s has no stage %s; it has %s", r.GetId(), name, strings.Join(names, ", "))
}

// tick is how often the live view looks at the clock.
const tick = time.Second
