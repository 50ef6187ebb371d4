package cli

import (
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/ctl/internal/importer"
	"towline.dev/towline/ctl/internal/table"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
)

// importOptions say what is read, and what the files of the other tool do not say.
type importOptions struct {
	files     []string
	recursive bool
	clusters  []string
	selector  string
	pack      string
}

func (a *app) importCommand() *cobra.Command {
	o := &importOptions{}
	cmd := &cobra.Command{
		Use: "import " + strings.Join(importer.Kinds(), "|") + " -f FILE|DIR|-", Short: "Print the modules that do what Argo CD, Flux or Fleet are told to do",
		Long: "Reads manifests of another tool and prints the modules that do the same. The hub is not asked, and nothing is changed. Each field that a module\n" +
			"does not have is named in a comment above it, with what to do about it; a field that the tool does not have is an error.\n\n" +
			"What a manifest refers to is looked up in the same files: sources and ConfigMaps of Flux, ClusterGroups and fleet.yaml of Fleet, Secrets of\n" +
			"repositories and clusters of Argo CD, of which the names are read, and no value.",
		Example: "  towline import argocd-application -f app.yaml | towline apply -f - --dry-run=server\n" +
			"  kubectl get kustomizations,gitrepositories -A -o yaml | towline import flux-kustomization -f - -l env=prod\n" +
			"  towline import fleet-gitrepo -f gitrepo.yaml -f repo/deploy/fleet.yaml",
		Args:      exactly(1, "one of "+enumerate(importer.Kinds(), "or")),
		ValidArgs: importer.Kinds(),
		RunE:      func(_ *cobra.Command, args []string) error { return a.importFiles(o, args[0]) },
	}
	f := cmd.Flags()
	f.StringSliceVarP(&o.files, "filename", "f", nil, "file, directory or - for stdin; may be repeated")
	f.BoolVarP(&o.recursive, "recursive", "R", false, "directories with all below them")
	f.StringArrayVar(&o.clusters, "cluster", nil, "`THEIRS=NAME`: what the other tool calls a cluster, and its name here; NAME alone is for all. May be repeated")
	f.StringVarP(&o.selector, "selector", "l", "", "labels of the clusters that are to have the modules, whatever the files say")
	f.StringVar(&o.pack, "package", "", "plain, kustomize or helm: how files are read where the other tool finds out by looking at them")
	must(cmd.MarkFlagFilename("filename", "yaml", "yml", "json"))
	must(cmd.RegisterFlagCompletionFunc("package", cobra.FixedCompletions([]string{"plain", "kustomize", "helm"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// options reads the flags.
func (o *importOptions) options() (importer.Options, error) {
	out := importer.Options{Clusters: map[string]string{}, Package: o.pack}
	switch o.pack {
	case "", "plain", "kustomize", "helm":
	default:
		return out, usagef("--package %s: write plain, kustomize or helm", o.pack)
	}
	for _, word := range o.clusters {
		theirs, ours := "", word
		if i := strings.LastIndexByte(word, '='); i >= 0 {
			theirs, ours = word[:i], word[i+1:]
		}
		if err := fleet.ValidateLabel(ours); err != nil {
			return out, usagef("--cluster %s: %w", word, err)
		}
		out.Clusters[theirs] = ours
	}
	if o.selector == "" {
		return out, nil
	}
	s, err := metav1.ParseToLabelSelector(o.selector)
	if err != nil {
		return out, usagef("-l %s: %w", o.selector, err)
	}
	out.Selector = importer.SelectorOf(s)
	return out, nil
}

func (a *app) importFiles(o *importOptions, kind string) error {
	if len(o.files) == 0 {
		return usagef("import: name what to read with -f FILE, -f DIR or -f -")
	}
	options, err := o.options()
	if err != nil {
		return err
	}
	if a.project != fleet.DefaultProject {
		options.Project = a.project
	}
	docs, err := resource.Documents(o.files, resource.Options{Stdin: a.In, Recursive: o.recursive})
	if err != nil {
		return err
	}
	modules, unread, err := importer.Convert(kind, docs, options)
	if err != nil {
		return err
	}
	dropped := 0
	for i, m := range modules {
		if i > 0 {
			a.printf("---\n")
		}
		n, err := m.Write(a.Out)
		if err != nil {
			return err
		}
		dropped += n
	}
	for _, where := range unread {
		a.notef("%s is not imported\n", table.Clean(where))
	}
	if dropped > 0 {
		a.warnf("%s not carried over: see the comments above the modules", countNot(dropped))
	}
	return nil
}

func countNot(n int) string {
	if n == 1 {
		return "1 field is"
	}
	return number(n) + " fields are"
}
