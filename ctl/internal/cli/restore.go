package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/plan"
)

func (a *app) restoreCommand() *cobra.Command {
	return group("restore", "A hub's store that was restored from a backup", a.restoreShowCommand(), a.restoreAcceptCommand())
}

func (a *app) restoreShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show", Short: "Tell whether the store was restored, and which clusters have seen what came after the backup", Args: exactly(0, "no arguments"),
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
	var yes bool
	var reason string
	cmd := &cobra.Command{
		Use: "accept", Short: "Go on with a restored store in all clusters", Args: exactly(0, "no arguments"),
		Long: "Says that what came after the backup counts no more. Clusters that have seen it go on with the store as it is: modules go to\n" +
			"the revisions that the store has, those that it does not have stay where they are, as strays, and those that were deleted\n" +
			"after the backup come again. Accepting deletes nothing by itself; modules that were on their way out when the backup was taken go on\n" +
			"leaving. It holds for clusters that come back later, too.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if err := a.askOf(yes, "accept the restored store", func() (string, error) {
				r, err := a.restored(ctx)
				if err != nil || r.GetAcceptedBy() != "" {
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
			resp, err := c.Store.AcceptRestore(ctx, &v1.AcceptRestoreRequest{Reason: reason})
			if err != nil {
				return err
			}
			a.printf("%s\n", a.restoreText(resp.GetRestore()))
			return nil
		},
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
	text := "the store was restored " + a.since(r.GetRestored()) + " ago"
	if by := r.GetAcceptedBy(); by != "" {
		return text + ", and accepted by " + table.Clean(by) + " " + a.since(r.GetAccepted()) + " ago"
	}
	switch names := r.GetAhead(); len(names) {
	case 0:
		return text + "; no cluster that is connected has seen what came after the backup"
	case 1:
		return text + "; cluster " + names[0] + " has seen what came after the backup, and keeps what it holds"
	default:
		return text + fmt.Sprintf("; %d clusters have seen what came after the backup, and keep what they hold: %s", len(names), plan.Names(names))
	}
}
