package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
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
		for _, name := range a.names(cmd.Context(), k) {
			out = append(out, kindWord+"/"+name)
		}
		return out, noFiles
	}
	if len(args) == 0 {
		return plurals(kinds()), noFiles
	}
	k, err := kindOf(args[0])
	if err != nil {
		return nil, noFiles
	}
	return a.names(cmd.Context(), k), noFiles
}

// completeArg completes the first argument with names of a kind.
func (a *app) completeArg(kindName string) completer {
	k := kindNamed(kindName)
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, noFiles
		}
		return a.names(cmd.Context(), k), noFiles
	}
}

// completeKind completes a flag with names of a kind.
func (a *app) completeKind(kindName string) completer {
	k := kindNamed(kindName)
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.names(cmd.Context(), k), noFiles
	}
}

func (a *app) completeProjects(root *cobra.Command) {
	must(root.RegisterFlagCompletionFunc("project", a.completeKind("project")))
	must(root.RegisterFlagCompletionFunc("use-context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return a.contextNames(), noFiles
	}))
}

// names asks the hub; a hub that does not answer in time completes nothing.
func (a *app) names(ctx context.Context, k *kind) []string {
	if k.complete == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	c, err := a.hub(ctx)
	if err != nil {
		return nil
	}
	names, err := k.complete(a, ctx, c)
	if err != nil {
		return nil
	}
	return names
}

// completionPage is how many names a shell is offered.
const completionPage = 1000

func completeModules(a *app, ctx context.Context, c *client.Client) ([]string, error) {
	resp, err := c.Modules.ListModules(ctx, &v1.ListModulesRequest{Project: a.project, PageSize: completionPage})
	return namesOf(resp.GetModules(), metaName[*v1.Module]), err
}

func completeClusters(_ *app, ctx context.Context, c *client.Client) ([]string, error) {
	resp, err := c.Clusters.ListClusters(ctx, &v1.ListClustersRequest{PageSize: completionPage})
	return namesOf(resp.GetClusters(), metaName[*v1.Cluster]), err
}

func completeProjects(_ *app, ctx context.Context, c *client.Client) ([]string, error) {
	resp, err := c.Identity.ListProjects(ctx, &v1.ListProjectsRequest{PageSize: completionPage})
	return namesOf(resp.GetProjects(), metaName[*v1.Project]), err
}

func completeCertificates(_ *app, ctx context.Context, c *client.Client) ([]string, error) {
	resp, err := c.Identity.ListCertificates(ctx, &v1.ListCertificatesRequest{PageSize: completionPage})
	return namesOf(resp.GetCertificates(), metaName[*v1.Certificate]), err
}

func completeUsers(_ *app, ctx context.Context, c *client.Client) ([]string, error) {
	resp, err := c.Identity.ListUsers(ctx, &v1.ListUsersRequest{PageSize: completionPage})
	return namesOf(resp.GetUsers(), metaName[*v1.User]), err
}

func completeTokens(_ *app, ctx context.Context, c *client.Client) ([]string, error) {
	resp, err := c.Identity.ListTokens(ctx, &v1.ListTokensRequest{PageSize: completionPage})
	return namesOf(resp.GetTokens(), metaName[*v1.Token]), err
}

func completeHolds(_ *app, ctx context.Context, c *client.Client) ([]string, error) {
	resp, err := c.Modules.ListHolds(ctx, &v1.ListHoldsRequest{PageSize: completionPage})
	return namesOf(resp.GetHolds(), (*v1.Hold).GetId), err
}

func namesOf[M any](items []M, name func(M) string) []string {
	out := make([]string, len(items))
	for i, item := range items {
		out[i] = name(item)
	}
	return out
}
