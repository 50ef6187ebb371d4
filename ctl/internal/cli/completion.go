package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "towline.dev/towline/gen/towline/v1"
)

// completionTime is how long a shell waits for names.
const completionTime = time.Second

type completer = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

const noFiles = cobra.ShellCompDirectiveNoFileComp

// completeTargets completes KIND NAME… and KIND/NAME.
func (a *app) completeTargets(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if kindWord, _, slash := strings.Cut(word, "/"); slash {
		k, err := kindOf(kindWord)
		if err != nil {
			return nil, noFiles
		}
		var out []string
		for _, name := range a.names(cmd.Context(), k.name) {
			out = append(out, kindWord+"/"+name)
		}
		return out, noFiles
	}
	if len(args) == 0 {
		var out []string
		for _, k := range kindTable {
			out = append(out, k.plural)
		}
		return out, noFiles
	}
	k, err := kindOf(args[0])
	if err != nil {
		return nil, noFiles
	}
	return a.names(cmd.Context(), k.name), noFiles
}

// completeArg completes the first argument with names of a kind.
func (a *app) completeArg(kindName string) completer {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, noFiles
		}
		return a.names(cmd.Context(), kindName), noFiles
	}
}

// completeKind completes a flag with names of a kind.
func (a *app) completeKind(kindName string) completer {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.names(cmd.Context(), kindName), noFiles
	}
}

func (a *app) completeProjects(root *cobra.Command) {
	must(root.RegisterFlagCompletionFunc("project", a.completeKind("project")))
	must(root.RegisterFlagCompletionFunc("use-context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return a.contextNames(), noFiles
	}))
}

// names asks the hub; a hub that does not answer in time completes nothing.
func (a *app) names(ctx context.Context, kindName string) []string {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	c, err := a.hub(ctx)
	if err != nil {
		return nil
	}
	var out []string
	switch kindName {
	case "module", "revision", "rollout", "tracker":
		resp, err := c.Modules.ListModules(ctx, &v1.ListModulesRequest{Project: a.project, PageSize: 1000})
		out = appendNames(out, resp.GetModules(), metaName[*v1.Module], err)
	case "cluster":
		resp, err := c.Clusters.ListClusters(ctx, &v1.ListClustersRequest{PageSize: 1000})
		out = appendNames(out, resp.GetClusters(), metaName[*v1.Cluster], err)
	case "project":
		resp, err := c.Identity.ListProjects(ctx, &v1.ListProjectsRequest{PageSize: 1000})
		out = appendNames(out, resp.GetProjects(), metaName[*v1.Project], err)
	case "user":
		resp, err := c.Identity.ListUsers(ctx, &v1.ListUsersRequest{PageSize: 1000})
		out = appendNames(out, resp.GetUsers(), metaName[*v1.User], err)
	case "token":
		resp, err := c.Identity.ListTokens(ctx, &v1.ListTokensRequest{PageSize: 1000})
		out = appendNames(out, resp.GetTokens(), metaName[*v1.Token], err)
	case "hold":
		resp, err := c.Modules.ListHolds(ctx, &v1.ListHoldsRequest{PageSize: 1000})
		out = appendNames(out, resp.GetHolds(), (*v1.Hold).GetId, err)
	}
	return out
}

func appendNames[M any](out []string, items []M, name func(M) string, err error) []string {
	if err != nil {
		return out
	}
	for _, item := range items {
		out = append(out, name(item))
	}
	return out
}
