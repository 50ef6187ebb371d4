package cli

import (
	"context"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/resource"
)

// kind is one of the words that stand behind a verb, with what each verb does with it. What a kind has not is nil, and the
// verb refuses it with a list of the kinds that have it.
type kind struct {
	name    string // singular, as in module/shop
	plural  string
	short   string
	project bool // its names are of a project
	message proto.Message

	// filters are the flags of get that select of it. For another kind such a flag is refused: a list that is not selected
	// looks as if all of it were.
	filters []string
	// namesAreModules: the names after get are those of modules, so that -l may stand beside them.
	namesAreModules bool
	// get shows those with the names, or all that the flags select.
	get func(a *app, ctx context.Context, c *client.Client, o *getOptions, names []string) error
	// watch does the same and goes on with every change.
	watch func(a *app, ctx context.Context, c *client.Client, o *getOptions, names []string) error
	// live: get can ask the agents how it is in the clusters now.
	live bool
	// complete lists names for a shell: one page of them.
	complete func(a *app, ctx context.Context, c *client.Client) ([]string, error)
	// describe writes one in full.
	describe func(a *app, ctx context.Context, c *client.Client, s *sheet, name string) error
	// explain says why one stands as it does.
	explain func(a *app, ctx context.Context, c *client.Client, name string) (chain, error)
	// explainIn says so of what is in one cluster.
	explainIn func(a *app, ctx context.Context, c *client.Client, out *output, name, cluster string) error
	// tree is the root of a drawing, with what is below it.
	tree func(a *app, ctx context.Context, name string) (trunk, error)
	// events selects the objects of one, to ask for the Events about them.
	events func(a *app, name string) (*v1.ObjectFilter, error)
	// recorded: the audit tells what was done to it.
	recorded bool
	// hold reads what a hold of it is of.
	hold func(a *app, name, inCluster string) (held, error)
	// resync has the hub look at its source now, and returns the rollouts that are to be waited for.
	resync func(a *app, ctx context.Context, name string, o *resyncOptions) ([]followed, error)
	// takes: a resync can take what is of others.
	takes bool
	// put stores one that a file names; applied orders those of one apply.
	put     func(r *applyRun, ctx context.Context, res resource.Resource) error
	applied int
	// revisions: what goes is chosen by --revision as well.
	revisions bool
	// scopes: of one name there may be several, of which --cluster or -l chooses.
	scopes bool
	// ordered: of several that are deleted those go first that depend on others of them.
	ordered func(a *app, ctx context.Context, c *client.Client, names []string) ([]string, error)
	// lingers says that what a command deletes of it may be there still when the next thing is deleted. there is no error where one is.
	lingers func(o *deleteOptions) bool
	// cascades: with --cascade its modules are deleted, too, with what they have.
	cascades bool
	there    func(a *app, ctx context.Context, name string) error
	// holdsModules: modules have to be gone before it is deleted.
	holdsModules bool
	// delete takes one away and says so.
	delete func(a *app, ctx context.Context, c *client.Client, o *deleteOptions, name string) error
}

// kinds is the registry: all that the commands know of a kind stands here. It is a function because the verbs, which the
// kinds name, look kinds up.
func kinds() []*kind {
	return []*kind{
		{
			name: "module", plural: "modules", short: "mod", project: true, message: &v1.Module{},
			filters: []string{"selector"},
			get:     moduleListing.get, watch: (*app).watchModules, complete: completeModules,
			describe: (*app).describeModule, explain: (*app).explainModule, tree: (*app).moduleTrunk, events: (*app).objectsOfModule, hold: (*app).holdOfModule,
			resync: (*app).resync, recorded: true,
			put: (*applyRun).putModule, applied: 3, ordered: (*app).dependentsFirst, delete: (*app).deleteModule,
			lingers: func(o *deleteOptions) bool { return !o.wait }, there: there((*app).module),
		},
		{
			name: "cluster", plural: "clusters", short: "cl", message: &v1.Cluster{},
			filters: []string{"selector"},
			get:     clusterListing.get, watch: (*app).watchClusters, complete: completeClusters,
			describe: (*app).describeCluster, explain: (*app).explainCluster, tree: (*app).clusterTrunk, hold: (*app).holdOfCluster,
			put: (*applyRun).putCluster, applied: 2, delete: (*app).deleteCluster, holdsModules: true, recorded: true, there: there((*app).cluster),
		},
		{
			name: "revision", plural: "revisions", short: "rev", project: true, message: &v1.Revision{},
			filters: []string{"selector", "module"},
			get:     (*app).getRevisions, complete: completeModules, describe: (*app).describeRevision,
		},
		{
			name: "rollout", plural: "rollouts", short: "ro", project: true, message: &v1.Rollout{},
			filters: []string{"selector", "module", "active"},
			get:     (*app).getRollouts, complete: completeModules, describe: (*app).describeRollout, explain: (*app).explainRollout,
		},
		{
			name: "tracker", plural: "trackers", short: "tr", project: true, message: &v1.Tracker{},
			filters: []string{"selector", "module", "cluster", "health"}, namesAreModules: true,
			get: (*app).getTrackers, complete: completeModules, describe: (*app).describeTracker, delete: (*app).deleteTracker, revisions: true,
		},
		{
			name: "object", plural: "objects", short: "obj", project: true, message: &v1.Object{},
			filters: []string{"selector", "module", "cluster", "health", "kind", "namespace", "name", "reason", "drift", "revision", "filter"},
			get:     (*app).getObjects, watch: (*app).watchObjects, live: true, explainIn: (*app).explainObject,
		},
		{
			name: "project", plural: "projects", message: &v1.Project{},
			filters: []string{"selector"},
			get:     projectListing.get, complete: completeProjects,
			put: (*applyRun).putProject, applied: 1, delete: (*app).deleteProject, holdsModules: true, recorded: true,
		},
		{
			name: "catalog", plural: "catalogs", short: "cat", project: true, message: &v1.Catalog{},
			filters: []string{"selector"},
			get:     catalogListing.get, complete: completeCatalogs, describe: (*app).describeCatalog, explain: (*app).explainCatalog,
			resync: (*app).resyncCatalog, takes: true, recorded: true,
			put: (*applyRun).putCatalog, applied: 4, delete: (*app).deleteCatalog, cascades: true,
			lingers: func(o *deleteOptions) bool { return o.cascade }, there: there((*app).catalog),
		},
		{
			name: "secret", plural: "secrets", project: true, message: &v1.Secret{},
			get: getSecrets, complete: completeSecrets, describe: (*app).describeSecret, delete: (*app).deleteSecret, scopes: true, recorded: true,
		},
		{
			name: "token", plural: "tokens", message: &v1.Token{},
			get: tokenListing.get, complete: completeTokens, delete: (*app).deleteToken, recorded: true,
		},
		{
			name: "user", plural: "users", message: &v1.User{},
			get: userListing.get, complete: completeUsers, delete: (*app).deleteUser, recorded: true,
		},
		{
			name: "certificate", plural: "certificates", short: "cert", message: &v1.Certificate{},
			get: certificateListing.get, complete: completeCertificates, recorded: true,
		},
		{
			name: "audit", plural: "audit", message: &v1.AuditEntry{},
			filters: []string{"by", "since", "refused"},
			get:     (*app).getAudit, watch: (*app).watchAudit,
		},
		{
			name: "hold", plural: "holds", project: true, message: &v1.Hold{},
			filters: []string{"module", "cluster"},
			get:     holdListing.get, complete: completeHolds, describe: (*app).describeHold,
		},
	}
}

// there asks for one, and tells only whether it is there.
func there[T any](get func(*app, context.Context, string) (T, error)) func(*app, context.Context, string) error {
	return func(a *app, ctx context.Context, name string) error {
		_, err := get(a, ctx, name)
		return err
	}
}

// kindOf finds a kind by its name, its plural or its short name.
func kindOf(word string) (*kind, error) {
	all := kinds()
	for _, k := range all {
		if w := strings.ToLower(word); w == k.name || w == k.plural || w == k.short && k.short != "" {
			return k, nil
		}
	}
	if near := resource.Nearest(word, plurals(all)); near != "" {
		return nil, usagef("there is no kind %q; did you mean %s?", word, near)
	}
	return nil, usagef("there is no kind %q; use one of %s", word, strings.Join(plurals(all), ", "))
}

// kindNamed is a kind that the program itself names.
func kindNamed(name string) *kind {
	k, err := kindOf(name)
	must(err)
	return k
}

// kindsWith are the kinds that have something.
func kindsWith(has func(*kind) bool) []*kind {
	var out []*kind
	for _, k := range kinds() {
		if has(k) {
			out = append(out, k)
		}
	}
	return out
}

func plurals(all []*kind) []string {
	out := make([]string, len(all))
	for i, k := range all {
		out[i] = k.plural
	}
	return out
}

// singulars are such as "a module".
func singulars(all []*kind) []string {
	out := make([]string, len(all))
	for i, k := range all {
		out[i] = "a " + k.name
		if strings.ContainsRune("aeio", rune(k.name[0])) {
			out[i] = "an " + k.name
		}
	}
	return out
}

// enumerate is "modules, clusters and objects".
func enumerate(words []string, last string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	n := len(words) - 1
	return strings.Join(words[:n], ", ") + " " + last + " " + words[n]
}

// inFiles are the kinds that may stand in a file.
func inFiles() []proto.Message {
	var out []proto.Message
	for _, k := range kindsWith(func(k *kind) bool { return k.put != nil }) {
		out = append(out, k.message)
	}
	return out
}

// fieldRoots are the messages whose fields `explain` documents.
func fieldRoots() map[string]proto.Message {
	out := map[string]proto.Message{"assignment": &v1.Assignment{}} // of the API alone
	for _, k := range kinds() {
		out[k.name] = k.message
	}
	return out
}
