package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc/clientconfig"
	"towline.dev/towline/pkg/version"
)

func (a *app) userCommand() *cobra.Command {
	return group("user", "People and programs that may ask the hub", a.userCreateCommand(), a.userListCommand(), a.userDeleteCommand())
}

func (a *app) userCreateCommand() *cobra.Command {
	var role, reason, save string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "create NAME --role admin|viewer", Short: "Make a user and print its bearer token, once",
		Args: exactly(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if role == "" {
				return usagef("user create %s: say --role admin or --role viewer", args[0])
			}
			req := &v1.CreateUserRequest{Name: args[0], Role: role, Reason: reason}
			if ttl < 0 {
				return usagef("user create %s: --ttl %s is below 0; leave it out for a token without end", args[0], ttl)
			}
			if ttl > 0 {
				req.Ttl = ttl.String()
			}
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			var theirs clientconfig.Context
			if save != "" { // before there is a user whose token is shown once
				if theirs, err = a.contextLikeMine(args[0]); err != nil {
					return err
				}
				if err := clientconfig.Keeps(save, theirs); err != nil {
					return err
				}
			}
			resp, err := c.Identity.CreateUser(cmd.Context(), req)
			if err != nil {
				return err
			}
			if save != "" {
				theirs.Token = resp.GetToken()
				return a.saveUser(save, theirs)
			}
			a.printf("%s\n", resp.GetToken())
			a.footf("The token of %s (%s) is shown once.\n", args[0], resp.GetUser().GetRole())
			return nil
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "admin or viewer")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long the token lives; 0: for ever")
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why; recorded")
	cmd.Flags().StringVar(&save, "save", "", "write a client configuration with the token to `FILE` instead of printing it")
	must(cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"admin", "viewer"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// contextLikeMine is a configuration for the same hub, without a token.
func (a *app) contextLikeMine(name string) (clientconfig.Context, error) {
	mine, err := a.currentContext()
	return clientconfig.Context{Name: name, Server: mine.Server, CAData: mine.CAData}, err
}

// saveUser writes a configuration with the token of a user who has just been made. Nobody has that token if it cannot be written.
func (a *app) saveUser(path string, theirs clientconfig.Context) error {
	name := theirs.Name
	if err := clientconfig.Merge(path, theirs); err != nil {
		return fmt.Errorf("user %s is there, but the token, which is given once, could not be written: %w; make the user anew: towline delete user %s", name, err, name)
	}
	a.printf("user/%s created; its context %s is in %s\n", name, name, path)
	return nil
}

func (a *app) userListCommand() *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use: "list", Short: "List users", Aliases: []string{"ls"}, Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.parse(); err != nil {
				return err
			}
			return a.get(cmd.Context(), o, target{kind: kindNamed("user")})
		},
	}
	o.flags(cmd)
	return cmd
}

func (a *app) userDeleteCommand() *cobra.Command {
	o := &deleteOptions{}
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a user; its token ends at once", Args: exactly(1, "a name"), ValidArgsFunction: a.completeArg("user"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.deleteOne(cmd.Context(), o, kindNamed("user"), args[0])
		},
	}
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVarP(&o.reason, "message", "m", "", "why; recorded")
	return cmd
}

func (a *app) certificateCommand() *cobra.Command {
	return group("certificate", "Client certificates of people", a.certificateListCommand(), a.certificateRevokeCommand())
}

func (a *app) certificateListCommand() *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use: "list", Short: "List client certificates of people", Aliases: []string{"ls"}, Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.parse(); err != nil {
				return err
			}
			return a.get(cmd.Context(), o, target{kind: kindNamed("certificate")})
		},
	}
	o.flags(cmd)
	return cmd
}

func (a *app) certificateRevokeCommand() *cobra.Command {
	var yes bool
	var reason string
	cmd := &cobra.Command{
		Use: "revoke SERIAL", Short: "End a person's client certificate at once, open watches included",
		Args: exactly(1, "a serial number"), ValidArgsFunction: a.completeArg("certificate"),
		RunE: func(cmd *cobra.Command, args []string) error {
			serial := bare(args[0], "certificate")
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			if err := a.askWhoIsThere(yes, "revoke certificate "+serial, "who has it is locked out, be it you; on the hub, towline-hub admin-cert makes another one"); err != nil {
				return err
			}
			resp, err := c.Identity.RevokeCertificate(cmd.Context(), &v1.RevokeCertificateRequest{Serial: serial, Reason: reason})
			if err != nil {
				return err
			}
			of := "nobody has used it yet"
			if user := resp.GetCertificate().GetUser(); user != "" {
				of = "of " + user
			}
			a.printf("certificate/%s revoked (%s); for another one run on the hub: towline-hub admin-cert\n", resp.GetCertificate().GetMetadata().GetName(), of)
			return nil
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVarP(&reason, "message", "m", "", "why; recorded")
	return cmd
}

func (a *app) configCommand() *cobra.Command {
	return group("config", "The client configuration: hubs and who one is there", a.configViewCommand(), a.configUseCommand(), a.configUseContextCommand())
}

func (a *app) loadConfig() (*clientconfig.Config, string, error) {
	path, err := clientconfig.Path(a.config)
	if err != nil {
		return nil, "", err
	}
	c, err := clientconfig.Load(path)
	return c, path, err
}

func (a *app) currentContext() (clientconfig.Context, error) {
	c, _, err := a.loadConfig()
	if err != nil {
		return clientconfig.Context{}, err
	}
	return c.Context(a.context)
}

func (a *app) configViewCommand() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use: "view", Short: "Print the client configuration without its secrets", Args: exactly(0, "no arguments"),
		RunE: func(*cobra.Command, []string) error {
			c, path, err := a.loadConfig()
			if err != nil {
				return err
			}
			if raw {
				data, err := yaml.Marshal(c)
				if err != nil {
					return err
				}
				a.printf("%s", data)
				return nil
			}
			a.printf("%s", configText(c))
			a.footf("From %s\n", path)
			return nil
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "with its secrets")
	return cmd
}

// configText is the configuration with a mark in place of every secret and certificate.
func configText(c *clientconfig.Config) string {
	mark := func(set bool, word string) string {
		if set {
			return word
		}
		return ""
	}
	type shown struct {
		Name            string `json:"name"`
		Server          string `json:"server"`
		CAData          string `json:"caData,omitempty"`
		CertificateData string `json:"certificateData,omitempty"`
		KeyData         string `json:"keyData,omitempty"`
		Token           string `json:"token,omitempty"`
	}
	out := struct {
		APIVersion     string  `json:"apiVersion"`
		Kind           string  `json:"kind"`
		CurrentContext string  `json:"currentContext"`
		Contexts       []shown `json:"contexts"`
	}{APIVersion: c.APIVersion, Kind: c.Kind, CurrentContext: c.CurrentContext}
	for _, x := range c.Contexts {
		out.Contexts = append(out.Contexts, shown{Name: x.Name, Server: x.Server, CAData: mark(len(x.CAData) > 0, "OMITTED"),
			CertificateData: mark(len(x.CertificateData) > 0, "OMITTED"), KeyData: mark(len(x.KeyData) > 0, "REDACTED"), Token: mark(x.Token != "", "REDACTED")})
	}
	data, err := yaml.Marshal(out)
	must(err)
	return string(data)
}

func (a *app) configUseCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use: "use FILE", Short: "Merge a client configuration, such as a hub's admin.yaml, into yours and make it current",
		Long: "Puts the contexts of FILE into the client configuration (--config, $TOWLINE_CONFIG or ~/.config/towline/config), and makes\n" +
			"its current one current. A context of the same name for another hub, or of somebody else, is not replaced: --name gives the new one another.",
		Args: exactly(1, "a file"),
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := clientconfig.Path(a.config)
			if err != nil {
				return err
			}
			ctx, err := clientconfig.Use(path, args[0], name)
			if err != nil {
				return err
			}
			a.printf("context %s (%s) is current in %s\n", ctx.Name, ctx.Server, path)
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "call the context so")
	return cmd
}

func (a *app) configUseContextCommand() *cobra.Command {
	return &cobra.Command{
		Use: "use-context NAME", Short: "Make a context the current one", Args: exactly(1, "the name of a context"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return a.contextNames(), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			c, path, err := a.loadConfig()
			if err != nil {
				return err
			}
			if _, err := c.Context(args[0]); err != nil {
				return err
			}
			c.CurrentContext = args[0]
			if err := c.Save(path); err != nil {
				return err
			}
			a.printf("context %s is current\n", args[0])
			return nil
		},
	}
}

func (a *app) contextNames() []string {
	c, _, err := a.loadConfig()
	if err != nil {
		return nil
	}
	var out []string
	for _, x := range c.Contexts {
		out = append(out, x.Name)
	}
	return out
}

func (a *app) versionCommand() *cobra.Command {
	var clientOnly bool
	var format string
	cmd := &cobra.Command{
		Use: "version", Short: "Print the versions of this command and of the hub", Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "" && format != "json" && format != "yaml" {
				return usagef("-o %s: version prints json or yaml", format)
			}
			info, err := a.serverInfo(cmd.Context(), clientOnly)
			if perr := a.printVersions(info, format); perr != nil {
				return perr
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "of this command only")
	cmd.Flags().StringVarP(&format, "output", "o", "", "json or yaml")
	return cmd
}

func (a *app) serverInfo(ctx context.Context, skip bool) (*v1.GetServerInfoResponse, error) {
	if skip {
		return nil, nil
	}
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	return c.Identity.GetServerInfo(ctx, &v1.GetServerInfoRequest{})
}

// versions is the output of version for programs.
type versions struct {
	Client string      `json:"client"`
	Hub    *hubInfo    `json:"hub,omitempty"`
	Hubs   []livingHub `json:"hubs,omitempty"`
	API    string      `json:"apiVersion"`
	User   *userInfo   `json:"user,omitempty"`
	At     *time.Time  `json:"hubTime,omitempty"`
}

type hubInfo struct {
	Version     string `json:"version"`
	ID          string `json:"id"`
	Incarnation string `json:"incarnation"`
}

// livingHub is one of the hubs of the store.
type livingHub struct {
	Address string `json:"address"`
	Version string `json:"version"`
	Leads   bool   `json:"leads"`
}

type userInfo struct {
	Name string `json:"name"`
	Role string `json:"role"`
}

func (a *app) printVersions(info *v1.GetServerInfoResponse, format string) error {
	if format == "" {
		a.printf("Client  %s\n", version.Version)
		if info != nil {
			a.printf("Hub     %s (id %s) at %s, as %s (%s)\n", info.GetVersion(), info.GetHubId(), a.client.Server(), info.GetUser(), info.GetRole())
			if note := info.GetStore().GetAttention(); note != nil {
				a.printf("Store   %s\n", warningSays("", note))
			}
			if note := info.GetAttention(); note != nil {
				a.printf("Hubs    %s\n", warningSays("", note))
			}
		}
		return nil
	}
	out := versions{Client: version.Version, API: fleet.APIVersion}
	if info != nil {
		out.Hub = &hubInfo{info.GetVersion(), info.GetHubId(), info.GetIncarnation()}
		for _, h := range info.GetHubs() {
			out.Hubs = append(out.Hubs, livingHub{h.GetAddress(), h.GetVersion(), h.GetLeads()})
		}
		out.User = &userInfo{info.GetUser(), info.GetRole()}
		if t := info.GetTime(); t != nil {
			at := t.AsTime()
			out.At = &at
		}
	}
	return a.printPlain(out, format)
}
