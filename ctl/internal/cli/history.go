package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) historyCommand() *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use: "history KIND/NAME", Short: "Show who did what to a module, a cluster or another thing, when and why",
		Long: "Shows what the audit of the hub has about one thing, the newest last, also when it is deleted: what was done, and what was refused. What is done\n" +
			"with a module's rollouts, pins, assignments and trackers is about the module, and about the clusters that it names. The hub keeps the newest\n" +
			"10,000 entries of what was done.\n" +
			"How each rollout of a module went is told by: towline rollout history MODULE",
		Example: "  towline history module/shop\n  towline history cluster/prod-eu-01 --since 24h\n  towline history user/maria -o yaml",
		Args:    atLeast(1, "a kind and a name"), ValidArgsFunction: a.completeTargets,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("since") && o.since <= 0 {
				return usagef("--since %s: write how long back, such as 24h", o.since)
			}
			if err := o.parse(); err != nil {
				return err
			}
			return a.history(cmd.Context(), o, args)
		},
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&o.by, "by", "", "only what this user, or \"cluster NAME\" or \"catalog NAME\", did")
	cmd.Flags().DurationVar(&o.since, "since", 0, "only of the last so long")
	cmd.Flags().BoolVar(&o.refused, "refused", false, "only what was refused or failed")
	return cmd
}

func (a *app) history(ctx context.Context, o *getOptions, args []string) error {
	k, name, err := one(args)
	switch {
	case err != nil:
		return err
	case !k.recorded:
		return usagef("history tells of %s; what is done with rollouts and trackers is in the history of their module", enumerate(singulars(kindsWith(func(k *kind) bool { return k.recorded })), "or"))
	}
	subject := name
	if k.project {
		ref, err := a.moduleRef(name)
		if err != nil {
			return err
		}
		subject = ref.String()
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	since := time.Unix(0, 0)
	if o.since > 0 {
		since = a.Now().Add(-o.since)
	}
	all, err := auditSince(ctx, c, o, k.name, []string{subject}, since)
	if err != nil {
		return err
	}
	if len(all) == 0 && !o.structured() {
		if k.there != nil {
			if err := k.there(a, ctx, name); err != nil {
				return err
			}
		}
		a.notef("Nothing is recorded%s.\n", aboutText([]string{k.name + " " + name}, o.by))
		return nil
	}
	return auditView.print(a, &o.output, all, false)
}
