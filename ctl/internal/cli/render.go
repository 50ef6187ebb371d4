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

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/resource"
)

func (a *app) renderCommand() *cobra.Command {
	var rev, format string
	var o renderOptions
	cmd := &cobra.Command{
		Use: "render MODULE | -f FILE", Short: "Print the manifests of a revision, or of a module as it would be put; Secret values are masked",
		Long: "Prints the manifests of a revision as the hub rendered them. With -f the hub renders the module of a file as an apply would, and changes nothing;\n" +
			"--cluster puts in the values of a cluster, --all those of every selected cluster, and without them placeholders stay. Of a module with\n" +
			"overrides, or with a chart that asks what clusters can do, each variant is printed once, behind a line that says which clusters have it.\n" +
			"--kube-version and --api-versions say what the chart is to see instead, as package.helm.kubeVersion and apiVersions do.",
		Example: "  towline render shop --revision r42\n  towline render -f shop.yaml --from deploy/ --cluster prod-eu-01\n  towline render -f shop.yaml -l env=prod",
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
			return a.renderRevision(cmd.Context(), c, &v1.GetRevisionRequest{Project: ref.Project, Module: ref.Name, Number: number}, format)
		},
	}
	cmd.Flags().StringVar(&rev, "revision", "", "revision, such as r42 (default the newest)")
	cmd.Flags().StringVarP(&format, "output", "o", "yaml", "yaml or json")
	cmd.Flags().StringVarP(&o.file, "filename", "f", "", "file with one module, or - for stdin")
	cmd.Flags().StringVar(&o.cluster, "cluster", "", "with -f: put in the values of this cluster")
	cmd.Flags().BoolVar(&o.all, "all", false, "with -f: put in the values of every selected cluster")
	cmd.Flags().StringVarP(&o.selector, "selector", "l", "", "with -f: only for clusters with these labels, such as env=prod")
	cmd.Flags().StringVar(&o.kubeVersion, "kube-version", "", "with -f: the version of Kubernetes that the chart is to see, such as 1.33.4")
	cmd.Flags().StringSliceVar(&o.apiVersions, "api-versions", nil, "with -f: APIs that the chart is to see, such as monitoring.coreos.com/v1")
	o.from.flag(cmd)
	must(cmd.MarkFlagFilename("filename", "yaml", "yml", "json"))
	must(cmd.RegisterFlagCompletionFunc("cluster", a.completeKind("cluster")))
	return cmd
}

// renderOptions are those of a module in a file.
type renderOptions struct {
	file, cluster, selector string
	kubeVersion             string
	apiVersions             []string
	all                     bool
	from                    fromFlag
}

func (o *renderOptions) check(cmd *cobra.Command, args []string) error {
	switch {
	case o.file != "" && len(args) > 0:
		return usagef("render: name a module, or a file with -f, and not both")
	case o.file == "" && len(args) == 0:
		return usagef("render: name a module, or a file with -f")
	case o.file == "" && (o.cluster != "" || o.all || o.selector != "" || cmd.Flags().Changed("from")):
		return usagef("render: --cluster, --all, -l and --from are for the module of a file: name it with -f")
	case o.file == "" && o.tells():
		return usagef("render: --kube-version and --api-versions are for the module of a file: name it with -f")
	case o.cluster != "" && (o.all || o.selector != ""):
		return usagef("render: --cluster is one cluster, and --all and -l are for several")
	case o.file != "" && cmd.Flags().Changed("revision"):
		return usagef("render: --revision is of a module that the hub has, not of a file")
	}
	return o.from.check(cmd)
}

// tells reports that something is said of what a chart is to see.
func (o *renderOptions) tells() bool { return o.kubeVersion != "" || len(o.apiVersions) > 0 }

// tell has a module say what its chart is to see.
func (o *renderOptions) tell(m *v1.Module) error {
	if !o.tells() {
		return nil
	}
	spec := m.GetSpec()
	if spec.GetPackage() == nil && spec.GetSource().GetHelm() != nil {
		spec.Package = &v1.Package{Helm: &v1.HelmPackage{}}
	}
	h := spec.GetPackage().GetHelm()
	if h == nil {
		return usagef("render: --kube-version and --api-versions are for charts, and the module's package is none")
	}
	if o.kubeVersion != "" {
		h.KubeVersion = o.kubeVersion
	}
	if len(o.apiVersions) > 0 {
		h.ApiVersions = o.apiVersions
	}
	return nil
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
	if err := o.tell(found[0].Message.(*v1.Module)); err != nil {
		return err
	}
	if err := a.upload(ctx, &o.from, found); err != nil {
		return err
	}
	c, err := a.hub(ctx)
	if err != nil {
		return err
	}
	st, err := c.Modules.RenderModule(ctx, &v1.RenderModuleRequest{Module: found[0].Message.(*v1.Module), Cluster: o.cluster, All: o.all, LabelSelector: o.selector})
	if err != nil {
		return err
	}
	var all []manifests
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return inFile(found[0], err)
		}
		if g := m.GetGroup(); g != nil {
			all = append(all, manifests{of: g, title: groupTitle(g)})
			continue
		}
		if len(all) == 0 {
			all = append(all, manifests{})
		}
		all[len(all)-1].objects = append(all[len(all)-1].objects, m.GetObject())
	}
	if err := a.printManifests(all, found[0].Message.(*v1.Module).GetSpec(), format); err != nil {
		return err
	}
	if len(all) == 0 && (o.selector != "" || o.all) {
		a.warnf("module %s: nothing to print: its placement selects no cluster%s", found[0].Meta().GetName(), withLabels(o.selector))
	}
	if i := slices.IndexFunc(all, func(m manifests) bool { return m.of.GetProblem() != "" }); i >= 0 {
		return fleet.Errorf(fleet.ErrInvalid, "%s: %s", strings.Join(all[i].of.GetClusters(), ", "), all[i].of.GetProblem())
	}
	return nil
}

func withLabels(selector string) string {
	if selector == "" {
		return ""
	}
	return " with the labels " + selector
}

// renderRevision prints a revision, variant by variant.
func (a *app) renderRevision(ctx context.Context, c *client.Client, req *v1.GetRevisionRequest, format string) error {
	got, err := c.Modules.GetRevision(ctx, req)
	if err != nil {
		return err
	}
	rev := got.GetRevision()
	variants := rev.GetVariants()
	if len(rev.GetSpec().GetOverrides()) == 0 && len(variants) < 2 { // there is nothing to tell apart
		variants = []*v1.Variant{nil}
	}
	var all []manifests
	for _, v := range variants {
		m := manifests{}
		if v != nil {
			m.of = &v1.RenderGroup{Overrides: v.GetOverrides(), Problem: v.GetProblem(), Capabilities: v.GetCapabilities()}
			m.title = variantName(v.GetOverrides(), v.GetCapabilities()) + ", in " + count(v.GetClusters(), "cluster") + problemText(v.GetProblem())
		}
		if v.GetProblem() == "" {
			resp, err := c.Modules.GetRevisionObjects(ctx, &v1.GetRevisionObjectsRequest{Project: req.GetProject(), Module: req.GetModule(), Number: rev.GetNumber(), Overrides: v.GetOverrides(), Bundle: v.GetBundle()})
			if err != nil {
				return err
			}
			m.objects = resp.GetObjects()
		}
		all = append(all, m)
	}
	return a.printManifests(all, rev.GetSpec(), format)
}

// manifests are what some clusters have, with a line that says which.
type manifests struct {
	of      *v1.RenderGroup // nil: all have the same
	title   string
	objects [][]byte
}

func groupTitle(g *v1.RenderGroup) string {
	const most = 10
	names := g.GetClusters()
	in := "no cluster"
	if n := len(names); n > most {
		in = strings.Join(names[:most], ", ") + " and " + number(int32(n-most)) + " more"
	} else if n > 0 {
		in = strings.Join(names, ", ")
	}
	return variantName(g.GetOverrides(), g.GetCapabilities()) + ", in " + in + problemText(g.GetProblem())
}

func problemText(problem string) string {
	if problem == "" {
		return ""
	}
	return ": " + strings.ReplaceAll(problem, "\n", " ")
}

// variantName names the overrides that make a variant, and what the clusters can do that it is for.
func variantName(overrides []int32, can []*v1.Capabilities) string {
	name := fleet.Variant{Overrides: overrides}.String()
	if len(can) == 0 {
		return name
	}
	if len(overrides) == 0 {
		return "for " + capabilitiesText(can)
	}
	return name + ", for " + capabilitiesText(can)
}

// capabilitiesText says what clusters can do, in short.
func capabilitiesText(can []*v1.Capabilities) string {
	const most = 4
	var says []string
	for _, c := range can[:min(len(can), most)] {
		if c.GetKubernetesVersion() == "" {
			says = append(says, "clusters that have not told what they serve")
			continue
		}
		says = append(says, "Kubernetes "+c.GetKubernetesVersion()+" with "+count(c.GetApis(), "API"))
	}
	if n := len(can) - most; n > 0 {
		says = append(says, number(int32(n))+" more")
	}
	return enumerate(says, "and")
}

func (a *app) printManifests(all []manifests, spec *v1.ModuleSpec, format string) error {
	if format == "json" {
		return a.printManifestsJSON(all)
	}
	first := true
	for _, m := range all {
		if m.of != nil {
			a.printf("# %s\n", table.Clean(m.title))
		}
		if waves := wavesOf(spec, m.objects); len(waves) > 0 {
			a.printf("# %s\n", wavesText(waves))
		}
		for i, o := range m.objects {
			data, err := yaml.JSONToYAML(manifest.AsYAML(o))
			if err != nil {
				return fleet.Errorf(fleet.ErrCorrupt, "the hub sent a manifest that is no JSON: %v", err)
			}
			if !first && (i > 0 || m.of != nil) {
				a.printf("---\n")
			}
			first = false
			a.printf("%s", data)
		}
	}
	return nil
}

// printManifestsJSON prints items, and of several variants what each item is of.
func (a *app) printManifestsJSON(all []manifests) error {
	type can struct {
		KubernetesVersion string `json:"kubernetesVersion,omitempty"`
		APIs              int32  `json:"apis"`
	}
	type group struct {
		Overrides    []int32           `json:"overrides"`
		Capabilities []can             `json:"capabilities,omitempty"`
		Clusters     []string          `json:"clusters,omitempty"`
		Problem      string            `json:"problem,omitempty"`
		Items        []json.RawMessage `json:"items"`
	}
	groups := []group{}
	for _, m := range all {
		g := group{Overrides: append([]int32{}, m.of.GetOverrides()...), Clusters: m.of.GetClusters(), Problem: m.of.GetProblem(), Items: []json.RawMessage{}}
		for _, c := range m.of.GetCapabilities() {
			g.Capabilities = append(g.Capabilities, can{c.GetKubernetesVersion(), c.GetApis()})
		}
		for _, o := range m.objects {
			g.Items = append(g.Items, o)
		}
		groups = append(groups, g)
	}
	var out any = map[string]any{"variants": groups}
	switch {
	case len(all) == 0:
		out = map[string]any{"items": []json.RawMessage{}}
	case all[0].of == nil:
		out = map[string]any{"items": groups[0].Items}
	}
	data, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return fleet.Errorf(fleet.ErrCorrupt, "the hub sent a manifest that is no JSON: %v", err)
	}
	a.printf("%s\n", data)
	return nil
}
