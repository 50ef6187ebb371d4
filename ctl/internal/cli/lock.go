package cli

import (
	"time"

	"github.com/spf13/cobra"

	v1 "towline.dev/towline/gen/towline/v1"
)

func (a *app) lockCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "lock NAME…", Short: "Keep a cluster's agent out until it is unlocked; it writes nothing meanwhile",
		Long: "For a cluster whose identity somebody else may have. Its agent's session ends at once, and it gets no other one, no certificate and\n" +
			"no secrets. It keeps the cluster as it is, and corrects no drift. Nothing is taken from the cluster or forgotten of it, and rollouts\n" +
			"pass it by as one that is away. towline cluster unlock ends it; to end an identity for good: towline cluster revoke.",
		Example: "  towline cluster lock prod-eu-07 -m 'a node was broken into'",
		Args:    atLeast(1, "a cluster"), ValidArgsFunction: a.completeKind("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			return eachName(args, func(arg string) error {
				name := bare(arg, "cluster")
				was, _ := a.cluster(cmd.Context(), name) // what cannot be looked at is locked all the same
				resp, err := c.Clusters.LockCluster(cmd.Context(), &v1.LockClusterRequest{Name: name, Reason: reason})
				if err != nil {
					return err
				}
				if resp.GetResult() != "locked" {
					a.printf("cluster/%s %s: it is locked already\n", name, resp.GetResult())
					return nil
				}
				a.printf("cluster/%s locked; let its agent in again with: towline cluster unlock %s\n", name, name)
				a.warnCutOff(was)
				return nil
			})
		},
	}
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why; recorded and shown")
	return cmd
}

func (a *app) unlockCommand() *cobra.Command {
	req := &v1.UnlockClusterRequest{}
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "unlock NAME", Short: "Let a locked cluster's agent in again, with its identity or a new one",
		Long: "Without --reissue all is as it was before: the agent comes back by itself, within a minute. With --reissue the identity that it had\n" +
			"ends, and a token for a new one is printed: that is for a cluster whose key somebody else may have.",
		Example: "  towline cluster unlock prod-eu-07 -m 'false alarm'\n" +
			"  towline cluster unlock prod-eu-07 --reissue -m 'node made anew'",
		Args: exactly(1, "a cluster"), ValidArgsFunction: a.completeArg("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("ttl") && !req.GetReissue() {
				return usagef("--ttl is how long a new token may be used: use it with --reissue")
			}
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			req.Name = bare(args[0], "cluster")
			if req.GetReissue() {
				req.Ttl = ttl.String()
			}
			resp, err := c.Clusters.UnlockCluster(cmd.Context(), req)
			switch {
			case err != nil:
				return err
			case req.GetReissue():
				a.sayToken(resp)
			default:
				a.printf("cluster/%s %s\n", req.GetName(), resp.GetResult())
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&req.Reissue, "reissue", false, "end the identity that it had, and print a token for a new one")
	f.DurationVar(&ttl, "ttl", 15*time.Minute, "with --reissue: how long the token may be used, at most 24h")
	f.StringVarP(&req.Reason, "message", "m", "", "why; recorded")
	return cmd
}

// because is what a person gave as the reason, in parentheses.
func because(why string) string {
	if why == "" {
		return ""
	}
	return " (" + why + ")"
}
