package cli

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func (a *app) renderCommand() *cobra.Command {
	var rev, format string
	cmd := &cobra.Command{
		Use: "render MODULE", Short: "Print the manifests of a revision as the hub rendered them; Secret values are masked",
		Args: exactly(1, "a module"), ValidArgsFunction: a.completeArg("module"),
		RunE: func(cmd *cobra.Command, args []string) error {
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
			if format != "yaml" && format != "json" {
				return usagef("-o %s: render prints yaml or json", format)
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
	return cmd
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
