package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

func (a *app) secretCommand() *cobra.Command {
	return group("secret", "What the hub needs to get at sources, and what modules bind: passwords, tokens, keys", a.secretSetCommand(), a.secretListCommand(), a.secretDeleteCommand())
}

type secretOptions struct {
	replace bool
	reason  string
	scope   scopeOptions
}

// scopeOptions say which clusters a secret is for.
type scopeOptions struct{ cluster, selector string }

func (o *scopeOptions) flags(f *pflag.FlagSet, what string) {
	f.StringVar(&o.cluster, "cluster", "", what+" for this cluster only")
	f.StringVarP(&o.selector, "selector", "l", "", what+" for the clusters with these labels only, as env=prod,tier=web")
}

// scope is nil for every cluster.
func (o *scopeOptions) scope() (*v1.SecretScope, error) {
	if o.cluster == "" && o.selector == "" {
		return nil, nil
	}
	s, err := fleet.NewSecretScope(o.cluster, o.selector)
	if err != nil {
		return nil, usagef("%s", strings.NewReplacer("scope.cluster", "--cluster "+o.cluster, "scope.label_selector", "-l", "scope:", "--cluster and -l:").Replace(err.Error()))
	}
	return &v1.SecretScope{Cluster: string(s.Cluster), LabelSelector: s.Labels}, nil
}

// scopeSays is a scope as the flags say it; empty: every cluster.
func scopeSays(s *v1.SecretScope) string {
	return fleet.SecretScope{Cluster: fleet.ClusterName(s.GetCluster()), Labels: s.GetLabelSelector()}.String()
}

// scopedName is a secret with its scope as the command line takes it.
func scopedName(name string, s *v1.SecretScope) string {
	return strings.TrimSuffix(name+" "+scopeSays(s), " ")
}

func (a *app) secretSetCommand() *cobra.Command {
	o := &secretOptions{}
	cmd := &cobra.Command{
		Use: "set NAME KEY=VALUE | KEY=- | KEY=@FILE | KEY- …", Short: "Make a secret, or change values of one",
		Long: "Stores values at the hub, encrypted. Nobody reads them back: `get secrets` shows names, keys and who changed them. The sources of the\n" +
			"project's modules name a secret by secretName.\n\n" +
			"  KEY=-       reads the value from stdin without its last line break, or asks for it on a terminal without showing it\n" +
			"  KEY=@FILE   takes all of a file\n" +
			"  KEY=VALUE   is seen in the shell's history and by others on this machine\n" +
			"  KEY-        takes the key away\n\n" +
			"With --cluster or -l the values are for these clusters only, beside others of the same name: a cluster gets those of the most specific one\n" +
			"whole, which is that of its name, then that of its labels, then that of every cluster. A secret that a source names is for every cluster.\n\n" +
			"Keys that are not named keep their values, unless --replace is said. What modules bind is applied at once where it is used, in\n" +
			"all clusters. A source has the new values with its next fetch. No rollout begins by this, and one that waits for the secret goes on.",
		Example: "  towline secret set repo username=ci password=-\n  towline secret set db password=- -l env=prod\n  towline secret set db password=- --cluster eu-1",
		Args:    atLeast(2, "a name and at least one KEY=VALUE"), ValidArgsFunction: a.completeArg("secret"),
		RunE: func(cmd *cobra.Command, args []string) error { return a.setSecret(cmd.Context(), o, args[0], args[1:]) },
	}
	cmd.Flags().BoolVar(&o.replace, "replace", false, "the secret has these keys only")
	cmd.Flags().StringVarP(&o.reason, "message", "m", "", "why; recorded")
	o.scope.flags(cmd.Flags(), "values")
	return cmd
}

func (a *app) secretListCommand() *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use: "list [NAME…]", Aliases: []string{"get"}, Short: "Show secrets, without values: which clusters each is for, its keys and its age",
		ValidArgsFunction: a.completeArg("secret"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.parse(); err != nil {
				return err
			}
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			return getSecrets(a, cmd.Context(), c, o, args)
		},
	}
	o.flags(cmd)
	cmd.Flags().BoolVarP(&o.all, "all-projects", "A", false, "of every project")
	return cmd
}

func (a *app) secretDeleteCommand() *cobra.Command {
	o := &deleteOptions{}
	cmd := &cobra.Command{
		Use: "delete NAME…", Short: "Delete secrets: those for every cluster, or those for some",
		Args: atLeast(1, "a name"), ValidArgsFunction: a.completeArg("secret"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			return eachName(args, func(name string) error { return a.deleteSecret(cmd.Context(), c, o, bare(name, "secret")) })
		},
	}
	cmd.Flags().BoolVarP(&o.yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVarP(&o.reason, "message", "m", "", "why; recorded")
	o.scope.flags(cmd.Flags(), "the one")
	return cmd
}

func (a *app) setSecret(ctx context.Context, o *secretOptions, name string, words []string) error {
	ref, err := a.secretRef(bare(name, "secret"))
	if err != nil {
		return err
	}
	scope, err := o.scope.scope()
	if err != nil {
		return err
	}
	req := &v1.SetSecretRequest{Project: ref.Project, Name: ref.Name, Replace: o.replace, Reason: o.reason, Scope: scope}
	if err := a.readValues(ctx, req, words); err != nil {
		return err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	resp, err := c.Secrets.SetSecret(ctx, req)
	if err != nil {
		return err
	}
	a.printf("secret/%s %s\n", scopedName(ref.Display(), scope), resp.GetResult())
	users := resp.GetSecret().GetUsedBy()
	switch {
	case len(users) == 0 || resp.GetResult() == "unchanged":
	case scope != nil: // no source has one
		a.footf("%s it in the clusters that it is for: %s\n", agree(int32(len(users)), "module binds", "modules bind"), strings.Join(users, ", "))
	default:
		a.footf("%s it, where it is bound at once and without a rollout, a source with its next fetch: %s\n", agree(int32(len(users)), "module uses", "modules use"), strings.Join(users, ", "))
	}
	return nil
}

// secretRef reads NAME in the project of -p, or PROJECT/NAME.
func (a *app) secretRef(s string) (fleet.ModuleRef, error) {
	project, name, found := strings.Cut(s, "/")
	if !found {
		project, name = a.project, s
	}
	for _, word := range []string{project, name} {
		if err := fleet.ValidateLabel(word); err != nil {
			return fleet.ModuleRef{}, usagef("secret %s: %w", s, err)
		}
	}
	return fleet.ModuleRef{Project: project, Name: name}, a.inThatProject("secret "+s, project)
}

// readValues reads what is to be set and to be taken away. No error has a value in it.
func (a *app) readValues(ctx context.Context, req *v1.SetSecretRequest, words []string) error {
	req.Values = map[string][]byte{}
	fromStdin := ""
	for i, word := range words {
		key, value, is := strings.Cut(word, "=")
		if gone, removes := strings.CutSuffix(word, "-"); !is && removes && gone != "" {
			req.Remove = append(req.Remove, gone)
			continue
		}
		if !is || key == "" {
			return usagef("secret set: word %d after the name is none of KEY=VALUE, KEY=-, KEY=@FILE and KEY-", i+1)
		}
		if _, twice := req.Values[key]; twice {
			return usagef("secret set: %s is given twice", key)
		}
		var err error
		switch path, file := strings.CutPrefix(value, "@"); {
		case file:
			if req.Values[key], err = os.ReadFile(path); err == nil {
				err = notEmpty(key, req.Values[key])
			}
		case value != "-":
			req.Values[key] = []byte(value)
		case fromStdin != "":
			return usagef("secret set: %s and %s are both to be read from stdin, which has one value: use KEY=@FILE", fromStdin, key)
		default:
			fromStdin = key
			req.Values[key], err = a.readValue(ctx, key)
		}
		if err != nil {
			return fmt.Errorf("secret set: %s: %w", key, err)
		}
	}
	return nil
}

// maxValue is how much of a value is read: the hub takes less.
const maxValue = 1 << 20

// readValue reads one value from stdin, or from a person who does not see it.
func (a *app) readValue(ctx context.Context, key string) (value []byte, err error) {
	if a.InTerminal && a.ReadHidden != nil {
		a.notef("%s (not shown): ", key)
		value, err = a.ReadHidden(ctx)
		a.notef("\n")
	} else if value, err = io.ReadAll(io.LimitReader(a.In, maxValue)); err == nil {
		value = bytes.TrimSuffix(bytes.TrimSuffix(value, []byte("\n")), []byte("\r"))
	}
	if err == nil {
		err = notEmpty(key, value)
	}
	return value, err
}

// notEmpty refuses a value that was read and has nothing: what was to write it may have failed, and the value of before cannot be read back.
func notEmpty(key string, value []byte) error {
	if len(value) > 0 {
		return nil
	}
	return errors.New("nothing was read; for an empty value write " + key + "=")
}

var secretListing = listing[*v1.Secret]{
	view: func(_ *app, _ context.Context, _ *client.Client, o *getOptions) view[*v1.Secret] {
		return secretView(o.all)
	},
	list: func(a *app, ctx context.Context, c *client.Client, o *getOptions) ([]*v1.Secret, error) {
		return collect(c.AllSecrets(ctx, &v1.ListSecretsRequest{Project: a.projectFilter(o)}))
	},
	where: (*app).inProject,
}

// getSecrets shows secrets: of a name all, whichever clusters they are for.
func getSecrets(a *app, ctx context.Context, c *client.Client, o *getOptions, names []string) error {
	if len(names) == 0 {
		return secretListing.get(a, ctx, c, o, nil)
	}
	var all []*v1.Secret
	var errs []error
	for _, name := range names {
		found, err := a.secretsOf(ctx, name)
		all, errs = append(all, found...), append(errs, err)
	}
	return errors.Join(printOrSay(a, o, secretView(o.all), all, moreThanOne(names, all), ""), errors.Join(errs...))
}

// moreThanOne are the names that were asked for, one for each that was found: several are a list.
func moreThanOne(names []string, found []*v1.Secret) []string {
	if len(found) > len(names) {
		return make([]string, len(found))
	}
	return names
}

// secretsOf are the secrets of a name, at least one.
func (a *app) secretsOf(ctx context.Context, name string) ([]*v1.Secret, error) {
	ref, err := a.secretRef(name)
	if err != nil {
		return nil, err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	found, err := collect(c.AllSecrets(ctx, &v1.ListSecretsRequest{Project: ref.Project, Name: ref.Name}))
	if err == nil && len(found) == 0 {
		_, err = a.secret(ctx, name, nil) // which says that there is none
	}
	return found, err
}

// secret reads one secret.
func (a *app) secret(ctx context.Context, name string, scope *v1.SecretScope) (*v1.Secret, error) {
	ref, err := a.secretRef(name)
	if err != nil {
		return nil, err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return nil, err
	}
	resp, err := c.Secrets.GetSecret(ctx, &v1.GetSecretRequest{Project: ref.Project, Name: ref.Name, Scope: scope})
	return resp.GetSecret(), err
}

func secretView(allProjects bool) view[*v1.Secret] {
	return view[*v1.Secret]{
		kind: "secret", name: func(s *v1.Secret) string { return moduleName(s.GetMetadata().GetProject(), s.GetMetadata().GetName()) },
		table: func(a *app, items []*v1.Secret) *table.Table {
			t := &table.Table{Columns: columns(left("NAME", "SCOPE", "KEYS", "STATE", "AGE", "CHANGED", "CHANGED BY"), wide("USED BY", "ENCRYPTED WITH", "WHY"))}
			for _, s := range items {
				m := s.GetMetadata()
				t.Add(text(m.GetName()), text(orDash(scopeSays(s.GetScope()))), text(orDash(strings.Join(s.GetKeys(), ", "))), state(s.GetState()), text(a.since(m.GetCreationTimestamp())),
					text(a.since(s.GetChanged())), text(orDash(m.GetChangedBy())),
					text(orDash(strings.Join(s.GetUsedBy(), ", "))), text(orDash(s.GetKeyId())), text(orDash(secretSays(s))))
			}
			return withProject(allProjects, t, func(i int) string { return items[i].GetMetadata().GetProject() })
		},
	}
}

func completeSecrets(a *app, ctx context.Context, c *client.Client) ([]string, error) {
	resp, err := c.Secrets.ListSecrets(ctx, &v1.ListSecretsRequest{Project: a.project, PageSize: completionPage})
	return namesOf(resp.GetSecrets(), metaName[*v1.Secret]), err
}

func (a *app) describeSecret(ctx context.Context, _ *client.Client, s *sheet, name string) error {
	found, err := a.secretsOf(ctx, name)
	if err != nil {
		return err
	}
	for i, x := range found {
		if i > 0 {
			s.b.WriteByte('\n')
		}
		a.describeOneSecret(s, x)
	}
	return nil
}

func (a *app) describeOneSecret(s *sheet, x *v1.Secret) {
	s.meta(a, x.GetMetadata())
	s.line("Clusters", "%s", cmp.Or(scopeSays(x.GetScope()), "every one that no other secret of the name is for"))
	s.line("Values set", "%s", a.stamp(x.GetChanged()))
	s.line("Keys", "%s", strings.Join(x.GetKeys(), ", "))
	s.line("State", "%s", strings.TrimSuffix(x.GetState()+": "+secretSays(x), ": "))
	s.line("Encrypted", "with key %s", orDash(x.GetKeyId()))
	s.line("Used by", "%s", strings.Join(x.GetUsedBy(), ", "))
}

func (a *app) deleteSecret(ctx context.Context, c *client.Client, o *deleteOptions, name string) error {
	ref, err := a.secretRef(name)
	if err != nil {
		return err
	}
	scope, err := o.scope.scope()
	if err != nil {
		return err
	}
	shown := scopedName(ref.Display(), scope)
	req := &v1.DeleteSecretRequest{Project: ref.Project, Name: ref.Name, Reason: o.reason, Scope: scope}
	err = a.askOf(o.yes, "delete secret "+shown, func() (string, error) {
		x, err := a.secret(ctx, ref.String(), scope)
		if err != nil {
			return "", err
		}
		req.Uid, req.Used = x.GetMetadata().GetUid(), len(x.GetUsedBy()) > 0
		if req.GetUsed() {
			return agree(int32(len(x.GetUsedBy())), "module uses it", "modules use it") + ", whose source cannot be fetched, or whose binding has no value, where no other secret of the name is: " + strings.Join(x.GetUsedBy(), ", "), nil
		}
		return "no module uses it", nil
	})
	if err != nil {
		return err
	}
	_, err = c.Secrets.DeleteSecret(ctx, req)
	return a.deleted("secret/"+shown, err)
}

// secretSays is why the values of a secret cannot be read; empty: they can.
func secretSays(s *v1.Secret) string {
	again := "towline secret set " + scopedName(moduleName(s.GetMetadata().GetProject(), s.GetMetadata().GetName()), s.GetScope()) + " --replace KEY=-"
	detail := s.GetFacts().GetDetail()
	switch s.GetReason() {
	case "":
		return ""
	case fleet.SecretNoKey:
		return "the hub has no key for secrets: " + detail
	case fleet.SecretOtherKey:
		return "it is encrypted with key " + detail + ", which the hub does not have; start the hub with that key, or set all of it anew: " + again
	case fleet.SecretAltered:
		return "what is stored was altered, or belongs to another secret; put a backup back, or set all of it anew: " + again
	case fleet.SecretDamaged:
		return "the hub's record of it is damaged; delete it, or set all of it anew: " + again
	}
	return s.GetReason()
}
