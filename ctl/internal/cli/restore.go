package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/plan"
)

func (a *app) restoreCommand() *cobra.Command {
	return group("restore", "A hub's store that was restored from a backup", a.restoreShowCommand(), a.restoreAcceptCommand(), a.restoreResumeCommand())
}

func (a *app) restoreShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Tell whether the store was restored, which clusters are ahead of the backup, and whether all goes on", Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := a.restored(cmd.Context())
			if err != nil {
				return err
			}
			a.printf("%s\n", sentence(a.restoreText(r)))
			return nil
		},
	}
}

func (a *app) restoreAcceptCommand() *cobra.Command {
	var clusters []string
	cmd := a.restoreWord(&cobra.Command{
		Use: "accept", Short: "Go on with a restored store in all clusters, or in some", Args: exactly(0, "no arguments"),
		Long: "Says that what came after the backup counts no more. Clusters that have seen it go on with the store as it is: modules go to\n" +
			"the revisions that the store has, those that it does not have stay where they are, as strays, and those that were deleted\n" +
			"after the backup come again. It holds for clusters that come back later, too. What stands still since the restore then goes on:\n" +
			"rollouts, looks at sources and catalogs, and the removal of modules that were on their way out when the backup was taken.\n\n" +
			"With --cluster it is said for these clusters alone, heard or not; all goes on when none of the others is left to wait for.",
		Example: "  towline restore accept\n  towline restore accept --cluster lost-1 --cluster lost-2",
	}, "accept the restored store", func(ctx context.Context, c *client.Client, reason string) (*v1.Restore, error) {
		resp, err := c.Store.AcceptRestore(ctx, &v1.AcceptRestoreRequest{Reason: reason, Clusters: clusters})
		return resp.GetRestore(), err
	}, func(r *v1.Restore) bool { return r.GetAcceptedBy() == "" })
	cmd.Flags().StringSliceVar(&clusters, "cluster", nil, "only this cluster; repeatable")
	return cmd
}

func (a *app) restoreResumeCommand() *cobra.Command {
	return a.restoreWord(&cobra.Command{
		Use: "resume", Short: "Go on without the clusters that are ahead of the backup, or were not heard", Args: exactly(0, "no arguments"),
		Long: "Has what stands still since the restore go on at once: rollouts, looks at sources and catalogs, and the removal of modules that\n" +
			"were on their way out when the backup was taken. Clusters that have seen what came after the backup keep what they hold, and\n" +
			"are told nothing before towline restore accept.",
	}, "go on now", func(ctx context.Context, c *client.Client, reason string) (*v1.Restore, error) {
		resp, err := c.Store.ResumeRestore(ctx, &v1.ResumeRestoreRequest{Reason: reason})
		return resp.GetRestore(), err
	}, func(r *v1.Restore) bool { return r.GetStands() })
}

// restoreWord makes a command that says something about a restore, and asks before if there is something to ask.
func (a *app) restoreWord(cmd *cobra.Command, what string, say func(context.Context, *client.Client, string) (*v1.Restore, error), asks func(*v1.Restore) bool) *cobra.Command {
	var yes bool
	var reason string
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx := cmd.Context()
		if err := a.askOf(yes, what, func() (string, error) {
			r, err := a.restored(ctx)
			if err != nil || !asks(r) {
				return "", err
			}
			return a.restoreText(r), nil
		}); err != nil {
			return err
		}
		c, err := a.hub(ctx)
		if err != nil {
			return err
		}
		r, err := say(ctx, c, reason)
		if err != nil {
			return err
		}
		a.printf("%s\n", sentence(a.restoreText(r)))
		return nil
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why; recorded")
	return cmd
}

func (a *app) restored(ctx context.Context) (*v1.Restore, error) {
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := c.Store.GetRestore(ctx, &v1.GetRestoreRequest{})
	return resp.GetRestore(), err
}

// restoreText is what there is to say of a restore.
func (a *app) restoreText(r *v1.Restore) string {
	if r == nil {
		return "the hub's store was never restored from a backup"
	}
	parts := []string{"the store was restored, the hub's record of when is damaged"}
	if r.GetRestored() != nil {
		parts[0] = "the store was restored " + a.since(r.GetRestored()) + " ago"
	}
	if by := r.GetAcceptedBy(); by != "" {
		parts[0] += ", and accepted by " + table.Clean(by) + " " + a.since(r.GetAccepted()) + " ago"
	}
	switch names := r.GetAhead(); {
	case r.GetAcceptedBy() != "": // they go on with it
	case len(names) == 1:
		parts = append(parts, "cluster "+names[0]+" has seen what came after the backup, and keeps what it holds")
	case len(names) > 1:
		parts = append(parts, fmt.Sprintf("%d clusters have seen what came after the backup, and keep what they hold: %s", len(names), plan.Names(names)))
	default:
		parts = append(parts, "no cluster that was heard has seen what came after the backup")
	}
	if names := r.GetUnheard(); len(names) > 0 {
		heard := agree(int32(len(names)), "cluster was", "clusters were") + " not heard since: " + plan.Names(names)
		if r.GetAcceptedBy() != "" {
			heard += ", and go on with the store when they are back; who left the fleet after the backup has to join again"
		}
		parts = append(parts, heard)
	}
	if names := r.GetAcceptedClusters(); len(names) > 0 && r.GetAcceptedBy() == "" {
		parts = append(parts, "accepted for "+plan.Names(names))
	}
	switch {
	case r.GetStands():
		parts = append(parts, "nothing begins by itself before all were heard and none is ahead, or towline restore accept (or resume) is said; look at towline get rollouts before, and abort what is not to go on")
	case r.GetSettledBy() != "" && r.GetAcceptedBy() == "":
		parts = append(parts, table.Clean(r.GetSettledBy())+" had all go on "+a.since(r.GetSettled())+" ago")
	case r.GetSettled() != nil && r.GetAcceptedBy() == "":
		parts = append(parts, "all goes on since "+a.since(r.GetSettled())+" ago, when every cluster had been heard, or accepted")
	}
	return strings.Join(parts, "; ")
}
