package cli

import (
	"cmp"
	"context"
	"slices"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// resyncOptions are how a source is looked at, and what is waited for.
type resyncOptions struct {
	waitOptions
	wait   bool
	take   bool
	reason string

	modules []string // that are asked for together
	started []string // rollouts that began with that of another one
}

func (a *app) resyncCommand() *cobra.Command {
	o := &resyncOptions{}
	cmd := &cobra.Command{
		Use: "resync module X… | catalog Y…", Short: "Look at the sources of modules and catalogs now, and roll out what has changed",
		Long: "Has the hub look at the source of a module now, whether the module follows it or not. A rollout starts if it renders to something else\n" +
			"than the newest revision, or if that was rolled back: then it is rolled out again. --wait follows the rollout to its end.\n" +
			"Several modules of a project begin together, or none does: what one lets go and another lists goes over.\n" +
			"Of a catalog the modules are put as its files say, those too whose rollout was aborted; --take takes what was put by hand, or is of others.\n\n" + exitHelp,
		Example: "  towline resync module shop --wait\n  towline resync module/shop module/base\n  towline resync catalog team --wait",
		Args:    atLeast(1, "a module or a catalog"), ValidArgsFunction: a.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := targets(args)
			if err != nil {
				return err
			}
			for _, t := range found {
				switch {
				case t.kind.resync == nil:
					return usagef("resync %s: only modules and catalogs have sources", t.kind.plural)
				case o.take && !t.kind.takes:
					return usagef("--take is for catalogs, not %s", t.kind.plural)
				case len(t.names) == 0:
					return usagef("resync %s: name the %s", t.kind.name, t.kind.name)
				}
			}
			return a.resyncAll(cmd.Context(), found, o)
		},
	}
	cmd.Flags().BoolVar(&o.wait, "wait", false, "follow the rollouts to their end and exit with their result")
	cmd.Flags().BoolVar(&o.take, "take", false, "catalogs: put modules of the files although they were put by hand, or are of a set or another catalog")
	cmd.Flags().StringVarP(&o.reason, "message", "m", "", "why; recorded")
	o.flags(cmd)
	return cmd
}

// resyncAll asks for all first, and then waits for what began.
func (a *app) resyncAll(ctx context.Context, all []target, o *resyncOptions) error {
	timed, cancel := o.deadline(ctx)
	defer cancel()
	var begun []followed
	var errs []error
	for _, t := range all {
		if !t.kind.takes {
			o.modules = append(o.modules, t.names...)
		}
	}
	for _, t := range all {
		errs = append(errs, eachName(t.names, func(name string) error {
			list, err := t.kind.resync(a, timed, name, o)
			for _, of := range list {
				if of.Number != 0 {
					begun = append(begun, of)
				}
			}
			return err
		}))
	}
	if !o.wait {
		return joinCodes(errs)
	}
	return joinCodes(append(errs, a.followAll(ctx, timed, begun, &o.waitOptions)))
}

// resyncedWith are the other modules of its project that are asked for with one.
func (a *app) resyncedWith(meta *v1.Metadata, o *resyncOptions) (names []string, err error) {
	for _, name := range o.modules {
		ref, err := a.moduleRef(name)
		if err != nil {
			return nil, err
		}
		if ref.Project == meta.GetProject() && ref.Name != meta.GetName() && !slices.Contains(names, ref.Name) {
			names = append(names, ref.Name)
		}
	}
	return names, nil
}

// resync returns the rollout that is to be waited for.
func (a *app) resync(ctx context.Context, name string, o *resyncOptions) (begun []followed, err error) {
	m, err := a.module(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	meta := m.GetMetadata()
	req := &v1.ResyncModuleRequest{Project: meta.GetProject(), Name: meta.GetName(), Uid: meta.GetUid(), Reason: o.reason}
	if req.With, err = a.resyncedWith(meta, o); err != nil {
		return nil, err
	}
	resp, again, err := insisted(ctx, a, &insistence{passes: passes}, func() (*v1.ResyncModuleResponse, error) { return c.Modules.ResyncModule(ctx, req) })
	if err != nil {
		return nil, err
	}
	if again && resp.GetResult() == "Unchanged" { // by what began before the hub went away
		now, err := a.module(ctx, name)
		if err != nil {
			return nil, err
		}
		if id := now.GetStatus().GetRollout(); id != m.GetStatus().GetRollout() {
			resp.Result, resp.Rollout = "Started", id
		}
	}
	o.started = append(o.started, resp.GetOthers()...)
	if i := slices.IndexFunc(o.started, func(id string) bool {
		of, err := parseRolloutOf(meta.GetProject(), id)
		return err == nil && of.Module == refOfModule(m)
	}); i >= 0 && resp.GetResult() != "Started" {
		resp.Result, resp.Rollout = "Started", o.started[i]
	}
	said := "unchanged"
	switch resp.GetResult() {
	case "Started":
		said = "rollout " + a.paint(table.Cyan, resp.GetRollout()) + " started"
	case "Waiting":
		said = "rollout " + a.paint(table.Cyan, resp.GetRollout()) + " waits for its source, which is asked for now"
	}
	if at := resp.GetResolvedRef(); at != "" {
		said += "; at " + table.Clean(at)
	}
	a.printf("module/%s %s\n", moduleName(meta.GetProject(), meta.GetName()), said)
	of := followed{RolloutID: fleet.RolloutID{Module: refOfModule(m)}, uid: meta.GetUid()}
	if id := cmp.Or(resp.GetRollout(), m.GetStatus().GetRollout()); id != "" {
		of.RolloutID, err = parseRolloutOf(meta.GetProject(), id)
	}
	return []followed{of}, err
}
