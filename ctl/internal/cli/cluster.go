package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

func (a *app) clusterCommand() *cobra.Command {
	return group("cluster", "Join clusters, label them, take them out", a.joinCommand(), a.labelCommand(),
		a.cordonCommand("cordon", "Send no new revisions to a cluster; drift is still corrected", true),
		a.cordonCommand("uncordon", "Send new revisions to a cluster again", false), a.lockCommand(), a.unlockCommand(),
		a.removeCommand(), a.revokeCommand())
}

// stateUnregistered is that of an agent whose cluster the hub does not have.
const stateUnregistered = "Unregistered"

// registered refuses a cluster that is listed for its agent alone: the hub would make it, without labels.
func registered(c *v1.Cluster) error {
	if c.GetStatus().GetState() != stateUnregistered {
		return nil
	}
	name := c.GetMetadata().GetName()
	return fleet.Errorf(fleet.ErrPrecondition, "cluster %s: its agent comes, but the hub does not have the cluster, and nothing is changed; have it join, with its labels: towline cluster join %s --label KEY=VALUE", name, name)
}

// changeCluster reads a cluster, changes it and puts it under the condition that nobody else did meanwhile.
func (a *app) changeCluster(ctx context.Context, name, reason string, dry bool, change func(*v1.Cluster) error) (*v1.PutClusterResponse, error) {
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	const tries = 3
	for try := 1; ; try++ {
		got, err := c.Clusters.GetCluster(ctx, &v1.GetClusterRequest{Name: name})
		if err != nil {
			return nil, err
		}
		if err := registered(got.GetCluster()); err != nil {
			return nil, err
		}
		want := proto.Clone(got.GetCluster()).(*v1.Cluster)
		want.Status = nil
		if err := change(want); err != nil {
			return nil, err
		}
		resp, err := c.Clusters.PutCluster(ctx, &v1.PutClusterRequest{Cluster: want, Reason: reason, DryRun: dry})
		if errors.Is(err, fleet.ErrConflict) && try < tries {
			continue
		}
		return resp, err
	}
}

func (a *app) labelCommand() *cobra.Command {
	var yes, overwrite bool
	var reason string
	cmd := &cobra.Command{
		Use: "label NAME KEY=VALUE… KEY-…", Short: "Set or remove labels of a cluster",
		Long: "Says which modules the cluster enters and leaves and what that removes, and asks on a terminal; elsewhere it needs --yes\n" +
			"when modules move.",
		Args: atLeast(2, "a cluster and labels as KEY=VALUE, or KEY- to remove one"), ValidArgsFunction: a.completeArg("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			change, err := labelChange(args[1:])
			if err != nil {
				return err
			}
			name := bare(args[0], "cluster")
			err = a.askOf(yes, "label cluster "+name, func() (string, error) {
				plan, err := a.changeCluster(cmd.Context(), name, reason, true, change)
				return itMoves(plan), err
			})
			if err != nil {
				return err
			}
			resp, err := a.changeCluster(cmd.Context(), name, reason, false, change)
			if err != nil {
				return err
			}
			a.sayCluster(name, "labelled", resp)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "as with kubectl; labels may always be changed")
	must(cmd.Flags().MarkHidden("overwrite"))
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why; recorded")
	return cmd
}

// itMoves is what a change of a cluster moves; empty: nothing.
func itMoves(plan *v1.PutClusterResponse) string {
	moves := movesText(plan)
	if moves == "" {
		return ""
	}
	return "it " + moves
}

// movesText is "enters shop; leaves base, which removes 12 objects, or hands them to modules that list them".
func movesText(resp *v1.PutClusterResponse) string {
	var parts []string
	if len(resp.GetEnters()) > 0 {
		parts = append(parts, "enters "+strings.Join(displayAll(resp.GetEnters()), ", "))
	}
	if len(resp.GetLeaves()) > 0 {
		parts = append(parts, "leaves "+strings.Join(displayAll(resp.GetLeaves()), ", ")+", which "+removesText(resp.GetRemovesObjects())+asksText(resp))
	} else if n := resp.GetRemovesObjects(); n > 0 {
		parts = append(parts, "gets what other overrides make, which "+removesText(n))
	}
	if why, until := absence(resp.GetCluster().GetStatus()); why != "" && len(parts) > 0 {
		parts = append(parts, why+", so that is done when "+until)
	}
	return strings.Join(parts, "; ")
}

// asksText is "; that of base waits for a confirm: towline get holds -A"; empty: nothing does.
func asksText(resp *v1.PutClusterResponse) string {
	switch n := len(resp.GetAsks()); n {
	case 0:
		return ""
	case len(resp.GetLeaves()):
		return "; that waits for a confirm: towline get holds -A"
	default:
		return "; that of " + strings.Join(displayAll(resp.GetAsks()), ", ") + " waits for a confirm: towline get holds -A"
	}
}

// displayAll drops the default project from project/name.
func displayAll(refs []string) []string {
	out := make([]string, len(refs))
	for i, ref := range refs {
		out[i] = strings.TrimPrefix(ref, fleet.DefaultProject+"/")
	}
	return out
}

func (a *app) sayCluster(name, done string, resp *v1.PutClusterResponse) {
	if resp.GetResult() == "unchanged" {
		done = "unchanged"
	}
	if moves := movesText(resp); moves != "" {
		done += "; " + moves
	}
	a.printf("cluster/%s %s\n", name, done)
}

// labelChange reads KEY=VALUE and KEY-.
func labelChange(args []string) (func(*v1.Cluster) error, error) {
	set := map[string]string{}
	var drop []string
	for _, arg := range args {
		key, value, isSet := strings.Cut(arg, "=")
		switch {
		case isSet && key != "":
			set[key] = value
		case strings.HasSuffix(arg, "-") && len(arg) > 1:
			drop = append(drop, strings.TrimSuffix(arg, "-"))
		default:
			return nil, usagef("label %q: write KEY=VALUE, or KEY- to remove it", arg)
		}
	}
	for _, key := range drop {
		if _, both := set[key]; both {
			return nil, usagef("label %s: is set and removed by the same command, and nothing is changed; leave one of the two out", key)
		}
	}
	return func(c *v1.Cluster) error {
		if c.Metadata.Labels == nil {
			c.Metadata.Labels = map[string]string{}
		}
		for k, v := range set {
			c.Metadata.Labels[k] = v
		}
		for _, k := range drop {
			delete(c.Metadata.Labels, k)
		}
		return nil
	}, nil
}

func (a *app) cordonCommand(name, short string, cordoned bool) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: name + " NAME…", Short: short, Args: atLeast(1, "a cluster"), ValidArgsFunction: a.completeKind("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return eachName(args, func(arg string) error {
				cluster := bare(arg, "cluster")
				resp, err := a.changeCluster(cmd.Context(), cluster, reason, false, func(c *v1.Cluster) error {
					if c.Spec == nil {
						c.Spec = &v1.ClusterSpec{}
					}
					c.Spec.Cordoned = &cordoned
					return nil
				})
				if err == nil {
					a.sayCluster(cluster, name+"ed", resp)
				}
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why; recorded")
	return cmd
}

func (a *app) removeCommand() *cobra.Command {
	var yes bool
	req := &v1.RemoveClusterRequest{}
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "Take a cluster out of the fleet",
		Long: "The agent takes its marks off the objects (or deletes them, with --objects=delete), stops and confirms. One that is away does so\n" +
			"when it is back; the lines to run in the cluster instead are printed. With --force it is told nothing, and keeps the objects: one\n" +
			"that was told to delete them, and is connected, stops.",
		Args: exactly(1, "a cluster"), ValidArgsFunction: a.completeArg("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case req.Objects != "keep" && req.Objects != "delete":
				return usagef("--objects=%s: use keep or delete", req.Objects)
			case req.Force && req.Objects == "delete":
				return usagef("--objects=delete --force: an agent that is not waited for is told nothing, so it deletes nothing; leave one of the two out")
			}
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			req.Name = bare(args[0], "cluster")
			return a.removeCluster(cmd.Context(), c, req.Name, req, yes)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&yes, "yes", "y", false, "do not ask")
	f.StringVar(&req.Objects, "objects", "keep", "keep or delete what the modules have there")
	f.BoolVar(&req.Force, "force", false, "forget the cluster without waiting for its agent, which is told nothing; what the modules have there stays")
	f.StringVarP(&req.Reason, "message", "m", "", "why; recorded")
	must(cmd.RegisterFlagCompletionFunc("objects", cobra.FixedCompletions([]string{"keep", "delete"}, noFiles)))
	return cmd
}

// removeCluster asks before objects are deleted; keeping them takes nothing away.
func (a *app) removeCluster(ctx context.Context, c *client.Client, name string, req *v1.RemoveClusterRequest, yes bool) error {
	found, err := a.cluster(ctx, name)
	silent := req.GetForce() || errors.Is(err, fleet.ErrCorrupt)
	switch {
	case req.GetObjects() == "delete":
		err = a.askOf(yes, "remove cluster "+name, func() (string, error) {
			found, err = a.cluster(ctx, name)
			req.Uid = cmp.Or(req.GetUid(), found.GetMetadata().GetUid()) // what was looked at first is what is removed
			return fmt.Sprintf("deletes the objects of %s there", count(found.GetStatus().GetModules(), "module")), err
		})
	case errors.Is(err, fleet.ErrCorrupt):
		err = nil // it can be forgotten
	}
	if err != nil {
		return err
	}
	resp, err := c.Clusters.RemoveCluster(ctx, req)
	if err != nil {
		return err
	}
	if !silent && slices.ContainsFunc(found.GetStatus().GetHolds(), func(h *v1.Hold) bool { return h.GetKind() == kindFreeze }) {
		a.warnf("cluster %s: what is held there stands still, and the cluster is forgotten when that ends; see: towline explain cluster %s", name, name)
	}
	if resp.GetAgentConnected() {
		a.printf("cluster/%s removing\n", name)
		return nil
	}
	a.printf("cluster/%s %s\n", name, removalText(name, found.GetStatus(), silent, req.GetObjects() == "delete"))
	if why, _ := absence(found.GetStatus()); silent && why == agentAway && found.GetStatus().GetState() == string(fleet.ClusterRemoving) {
		a.warnf("cluster %s: its agent is away; if it was told to delete what the modules have there, it goes on with that until you have removed it", name)
	}
	return nil
}

// removalText says what becomes of a cluster whose agent was not told to leave, by how it was before. silent says that the agent never is.
func removalText(name string, s *v1.ClusterStatus, silent, deletes bool) string {
	switch state := fleet.ClusterState(s.GetState()); {
	case state == fleet.ClusterPending:
		return "removed; no agent had joined"
	case silent, state == fleet.ClusterRevoked:
		return "removed; its agent is told nothing any more and keeps everything there, so run this in the cluster, with the namespace that the agent has:" + removeAgent
	}
	now, then := absence(s)
	if now == "" { // it went a moment ago
		now, then = agentAway, "it is back"
	}
	if deletes {
		return fmt.Sprintf("removing; %s, and what the modules have there is deleted when %s", now, then)
	}
	return fmt.Sprintf("removing; %s, and everything there is let go of when %s; to wait no longer, run this in the cluster, with the namespace that the agent has:%s\n  and then here: towline cluster remove %s --force",
		now, then, removeAgent, name)
}

// removeAgent is what a person runs in a cluster whose agent cannot be told to go. It names all that deploy/agent has, and the agent's state, but
// not the namespace: a hub may live there.
const removeAgent = "\n  kubectl -n towline-system delete deployment,daemonset,serviceaccount,role,rolebinding,lease towline-agent --ignore-not-found\n" +
	"  kubectl -n towline-system delete secret towline-join --ignore-not-found\n" +
	"  kubectl -n towline-system delete secret -l towline.dev/state\n" +
	"  kubectl delete clusterrolebinding,clusterrole towline-agent towline-agent-modules --ignore-not-found"

// warnCutOff says of a cluster whose agent was away before it was shut out that it does not know that yet.
func (a *app) warnCutOff(was *v1.Cluster) {
	if fleet.ClusterState(was.GetStatus().GetState()) == fleet.ClusterDisconnected {
		a.warnf("cluster %s: its agent is away; if it runs, it goes on with what it was told before, and corrects drift, until it reaches the hub and is refused", was.GetMetadata().GetName())
	}
}

func (a *app) revokeCommand() *cobra.Command {
	var yes bool
	var reason string
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "Cut a cluster's identity; its agent writes nothing any more",
		Long: "Cuts a cluster's identity; its agent writes nothing any more. On a terminal it asks first, also where the output goes elsewhere.",
		Args: exactly(1, "a cluster"), ValidArgsFunction: a.completeArg("cluster"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := bare(args[0], "cluster")
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			was, err := a.cluster(cmd.Context(), name)
			if errors.Is(err, fleet.ErrNotFound) { // anything else that cannot be looked at is revoked all the same
				return err
			}
			if err := a.askWhoIsThere(yes, "revoke cluster "+name, "its agent writes nothing any more, corrections of drift included"); err != nil {
				return err
			}
			if _, err := c.Clusters.RevokeCluster(cmd.Context(), &v1.RevokeClusterRequest{Name: name, Uid: was.GetMetadata().GetUid(), Reason: reason}); err != nil {
				return err
			}
			a.printf("cluster/%s revoked; let it in again with: towline cluster join %s --reissue\n", name, name)
			if was.GetStatus().GetState() == string(fleet.ClusterRemoving) {
				a.warnf("cluster %s: its removal has ended with that, and what is not let go of yet stays; to forget the cluster: towline cluster remove %s", name, name)
			}
			a.warnCutOff(was)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why; recorded")
	return cmd
}
