package cli

import (
	"context"
	"slices"
	"strconv"
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

func (a *app) rolloutCommand() *cobra.Command {
	cmd := group("rollout", "Follow rollouts and steer them", a.rolloutStatusCommand(), a.rolloutWaitCommand(), a.rolloutHistoryCommand(),
		a.rolloutSimulateCommand())
	cmd.Aliases = []string{"ro"}
	for _, v := range verbs {
		cmd.AddCommand(a.verbCommand(v))
	}
	return cmd
}

func (a *app) rolloutHistoryCommand() *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use: "history MODULE", Short: "List the rollouts of a module, newest first",
		Args: exactly(1, "a module"), ValidArgsFunction: a.completeArg("module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(); err != nil {
				return err
			}
			ref, err := a.moduleRef(bare(args[0], "module"))
			if err != nil {
				return err
			}
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			return a.getRollouts(cmd.Context(), c, o, []string{ref.String()})
		},
	}
	o.flags(cmd)
	return cmd
}

// verb is an act on a rollout with the flags it takes.
type verb struct {
	name, short            string
	clusters, stage, gate  bool
	rollback, until, about bool
}

var verbs = []verb{
	{name: "pause", short: "Stop moving clusters until it is resumed; drift is still corrected"},
	{name: "resume", short: "Go on after a pause"},
	{name: "approve", short: "Open an approval gate", stage: true, gate: true, about: true},
	{name: "reject", short: "Fail an approval gate", stage: true, gate: true, about: true},
	{name: "abort", short: "End it and leave every cluster as it is"},
	{name: "retry", short: "Try again what failed", clusters: true},
	{name: "skip", short: "Go on without a cluster; it does not count as done", clusters: true},
	{name: "pin", short: "Keep the module in a cluster at its revision through any number of rollouts", clusters: true, until: true},
	{name: "unpin", short: "End a pin", clusters: true},
	{name: "promote", short: "End a soak, or go on with an empty stage; an approval it does not end", stage: true},
	{name: "override", short: "Pass a gate that is not open; needs -m", stage: true, gate: true},
	{name: "rollback", short: "Return the clusters it moved to an earlier revision, newest first", rollback: true},
}

// act is what the flags of a verb say.
type act struct {
	id, scope, to, until, revision string
	word                           client.Word
}

func (a *app) verbCommand(v verb) *cobra.Command {
	x := &act{}
	cmd := &cobra.Command{
		Use: v.name + " MODULE[/N]", Short: v.short, Args: ifNoID(&x.id, "a module or a rollout id"), ValidArgsFunction: a.completeArg("module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := a.rolloutArg(x.id, args)
			if err != nil {
				return err
			}
			if err := x.fill(v); err != nil {
				return err
			}
			if x.word.Until, err = a.end(cmd.Context(), x.until); err != nil {
				return err
			}
			return a.act(cmd.Context(), ref, x.word)
		},
	}
	f := cmd.Flags()
	f.StringVar(&x.id, "id", "", "rollout `MODULE/N` instead of the active one")
	f.StringVarP(&x.word.Reason, "message", "m", "", "why; recorded")
	if v.clusters {
		f.StringSliceVar(&x.word.Clusters, "cluster", nil, "cluster; may be repeated")
		must(cmd.RegisterFlagCompletionFunc("cluster", a.completeKind("cluster")))
	}
	if v.stage {
		f.StringVar(&x.word.Stage, "stage", "", "stage (default the present one)")
	}
	if v.gate {
		f.StringVar(&x.word.Gate, "gate", "", "gate (default the one that waits)")
	}
	if v.about {
		f.StringVar(&x.revision, "revision", "", "revision that is meant, such as r42 (default the rollout's)")
	}
	if v.until {
		f.StringVar(&x.until, "until", "", "when it ends by itself: a time (2026-07-03T12:00:00Z), a date or a duration (48h)")
		f.BoolVar(&x.word.Shorten, "shorten", false, "have a pin of the cluster end sooner than it does; without it that is refused")
	}
	if v.rollback {
		f.StringVar(&x.to, "to-revision", "", "revision to go to, such as r41 (default the last that succeeded)")
		f.StringVar(&x.scope, "clusters", "moved", "moved or failed")
		must(cmd.RegisterFlagCompletionFunc("clusters", cobra.FixedCompletions([]string{"moved", "failed"}, cobra.ShellCompDirectiveNoFileComp)))
	}
	return cmd
}

func (x *act) fill(v verb) error {
	x.word.Verb = v.name
	switch {
	case (v.name == "pin" || v.name == "unpin" || v.name == "skip") && len(x.word.Clusters) == 0:
		return usagef("%s: name the cluster with --cluster", v.name)
	case v.name == "override" && x.word.Reason == "":
		return usagef("override: say why with -m")
	}
	if v.rollback {
		if x.scope != "moved" && x.scope != "failed" {
			return usagef("--clusters %s: use moved or failed", x.scope)
		}
		x.word.Scope = x.scope
	}
	for _, text := range []string{x.to, x.revision} {
		if text == "" {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimPrefix(text, "r"), 10, 64)
		if err != nil || n < 1 {
			return usagef("%q is no revision; write r41 or 41", text)
		}
		x.word.Revision = n
	}
	return nil
}

// end reads --until; nil: there is none. What lasts for so long does so by the clock of the hub, which ends it: that of this machine
// may be minutes off.
func (a *app) end(ctx context.Context, until string) (*timestamppb.Timestamp, error) {
	if until == "" {
		return nil, nil
	}
	end, err := parseUntil(until, a.Now(), a.Zone)
	length, isTime := time.ParseDuration(until)
	if err != nil || isTime != nil {
		return end, err
	}
	info, err := a.serverInfo(ctx, false)
	if err != nil || info.GetTime() == nil {
		return end, err
	}
	return timestamppb.New(info.GetTime().AsTime().Add(length)), nil
}

// parseUntil reads a time, a date or a duration from now.
func parseUntil(s string, now time.Time, zone *time.Location) (*timestamppb.Timestamp, error) {
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return timestamppb.New(now.Add(d)), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02"} {
		t, err := time.ParseInLocation(layout, s, zone)
		if err != nil {
			continue
		}
		if !t.After(now) {
			return nil, usagef("--until %s: is in the past", s)
		}
		return timestamppb.New(t), nil
	}
	return nil, usagef("--until %s: write a time (2026-07-03T12:00:00Z), a date (2026-07-03) or a duration (48h)", s)
}

func (a *app) act(ctx context.Context, ref fleet.RolloutID, w client.Word) error {
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	w.Project, w.Module, w.Number = ref.Module.Project, ref.Module.Name, ref.Number
	resp, err := c.Steer(ctx, w)
	if err != nil {
		return err
	}
	anew := slices.ContainsFunc(resp.GetNotes(), func(n *v1.Note) bool { return n.GetCode() == rollout.NoteNewRollout })
	now := ""
	if s := resp.GetRollout().GetStatus(); s.GetState() != "" && !anew { // of one that stays as it ended there is nothing to tell
		now = "; now " + a.paint(stateColors[s.GetState()], stateWord(s))
	}
	a.printf("%s %s accepted%s\n", a.paint(table.Cyan, resp.GetId()), w.Verb, now)
	for _, note := range resp.GetNotes() {
		a.printf("%s\n", noteSays(ref.Module.Display(), note))
		for _, x := range note.GetActions() {
			a.printf("to undo: %s\n", commandOf(x, &v1.Reason{Subject: &v1.Subject{Kind: rollout.AboutRollout, Name: resp.GetId()}}).line)
		}
	}
	return nil
}
