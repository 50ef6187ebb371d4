package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/ctl/internal/resource"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func (a *app) renderCommand() *cobra.Command {
	var rev, format string
	var o renderOptions
	cmd := &cobra.Command{
		Use: "render MODULE | -f FILE", Short: "Print the manifests of a revision, or of a module as it would be put; Secret values are masked",
		Long: "Prints the manifests of a revision as the hub rendered them. With -f the hub renders the module of a file as an apply would, and changes nothing;\n" +
			"--cluster puts in the values of a cluster, and without it placeholders stay.",
		Example: "  towline render shop --revision r42\n  towline render -f shop.yaml --from deploy/ --cluster prod-eu-01",
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: a.completeArg("module"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd, args); err != nil {
				return err
			}
			if format != "yaml" && format != "json" {
				return usagef("-o %s: render prints yaml or json", format)
			}
			if o.file != "" {
				return a.renderFile(cmd.Context(), &o, format)
			}
			arg := bare(args[0], "module", "revision")
			name, number := splitRevision(arg)
			if rev != "" { // then a name such as web-r2 is a module's
				name = arg
				n, err := strconv.ParseInt(strings.TrimPrefix(rev, "r"), 10, 64)
				if err != nil || n < 1 {
					return usagef("--revision %s: write r42 or 42", rev)
				}
				number = n
			}
			ref, err := a.moduleRef(name)
			if err != nil {
				return err
			}
			c, err := a.hub(cmd.Context())
			if err != nil {
				return err
			}
			resp, err := c.Modules.GetRevisionObjects(cmd.Context(), &v1.GetRevisionObjectsRequest{Project: ref.Project, Module: ref.Name, Number: number})
			if err != nil {
				return err
			}
			return a.printManifests(resp.GetObjects(), format)
		},
	}
	cmd.Flags().StringVar(&rev, "revision", "", "revision, such as r42 (default the newest)")
	cmd.Flags().StringVarP(&format, "output", "o", "yaml", "yaml or json")
	cmd.Flags().StringVarP(&o.file, "filename", "f", "", "file with one module, or - for stdin")
	cmd.Flags().StringVar(&o.cluster, "cluster", "", "with -f: put in the values of this cluster")
	o.from.flag(cmd)
	must(cmd.MarkFlagFilename("filename", "yaml", "yml", "json"))
	must(cmd.RegisterFlagCompletionFunc("cluster", a.completeKind("cluster")))
	return cmd
}

// renderOptions are those of a module in a file.
type renderOptions struct {
	file, cluster string
	from          fromFlag
}

func (o *renderOptions) check(cmd *cobra.Command, args []string) error {
	switch {
	case o.file != "" && len(args) > 0:
		return usagef("render: name a module, or a file with -f, and not both")
	case o.file == "" && len(args) == 0:
		return usagef("render: name a module, or a file with -f")
	case o.file == "" && (o.cluster != "" || cmd.Flags().Changed("from")):
		return usagef("render: --cluster and --from are for the module of a file: name it with -f")
	case o.file != "" && cmd.Flags().Changed("revision"):
		return usagef("render: --revision is of a module that the hub has, not of a file")
	}
	return o.from.check(cmd)
}

// renderFile has the hub render the module of a file.
func (a *app) renderFile(ctx context.Context, o *renderOptions, format string) error {
	found, err := resource.Load([]string{o.file}, resource.Options{Stdin: a.In, Kinds: inFiles()})
	if err != nil {
		return err
	}
	if err := a.settleProjects(found); err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(r resource.Resource) bool { _, isModule := r.Message.(*v1.Module); return !isModule })
	if len(found) != 1 {
		return usagef("%s: has %s; render takes one", o.file, count(len(found), "module"))
	}
	if err := a.upload(ctx, &o.from, found); err != nil {
		return err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	st, err := c.Modules.RenderModule(ctx, &v1.RenderModuleRequest{Module: found[0].Message.(*v1.Module), Cluster: o.cluster})
	if err != nil {
		return err
	}
	var objects [][]byte
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return a.printManifests(objects, format)
		}
		if err != nil {
			return inFile(found[0], err)
		}
		objects = append(objects, m.GetObject())
	}
}

func (a *app) printManifests(objects [][]byte, format string) error {
	if format == "json" {
		items := make([]json.RawMessage, len(objects))
		for i, o := range objects {
			items[i] = o
		}
		data, err := json.MarshalIndent(map[string]any{"items": items}, "", "  ")
		if err != nil {
			return fleet.Errorf(fleet.ErrCorrupt, "the hub sent a manifest that is no JSON: %v", err)
		}
		a.printf("%s\n", data)
		return nil
	}
	for i, o := range objects {
		data, err := yaml.JSONToYAML(o)
		if err != nil {
			return fleet.Errorf(fleet.ErrCorrupt, "the hub sent a manifest that is no JSON: %v", err)
		}
		if i > 0 {
			a.printf("---\n")
		}
		a.printf("%s", data)
	}
	return nil
}
