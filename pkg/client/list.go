package client

import (
	"cmp"
	"context"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
)

// Change is one step of a list-and-watch. For Synced the item is nil.
type Change[T any] struct {
	Type string
	Item T
}

// WatchModules calls fn with every module that matches, then Synced, then each change, until fn returns an error or
// ctx is done. After a break it goes on behind the last resume token, or, where the hub does not keep the changes since, the
// list is read again; only what differs is passed on, so fn sees every change that lasts, and a deletion that happened
// meanwhile, too. A token in the request does not count: fn begins with nothing.
func (c *Client) WatchModules(ctx context.Context, req *v1.WatchModulesRequest, fn func(Change[*v1.Module]) error) error {
	key := func(m *v1.Module) string { return m.GetMetadata().GetProject() + "/" + m.GetMetadata().GetName() }
	return watch(ctx, c, func(ctx context.Context, token string) (grpc.ServerStreamingClient[v1.WatchModulesResponse], error) {
		from := proto.CloneOf(req)
		from.ResumeToken = token
		return c.Modules.WatchModules(ctx, from)
	}, (*v1.WatchModulesResponse).GetModule, key, fn)
}

// WatchClusters does for clusters what WatchModules does for modules.
func (c *Client) WatchClusters(ctx context.Context, req *v1.WatchClustersRequest, fn func(Change[*v1.Cluster]) error) error {
	key := func(m *v1.Cluster) string { return m.GetMetadata().GetName() }
	return watch(ctx, c, func(ctx context.Context, token string) (grpc.ServerStreamingClient[v1.WatchClustersResponse], error) {
		from := proto.CloneOf(req)
		from.ResumeToken = token
		return c.Clusters.WatchClusters(ctx, from)
	}, (*v1.WatchClustersResponse).GetCluster, key, fn)
}

// WatchObjects does for the objects in the clusters what WatchModules does for modules.
func (c *Client) WatchObjects(ctx context.Context, req *v1.WatchObjectsRequest, fn func(Change[*v1.Object]) error) error {
	key := func(o *v1.Object) string {
		ref := o.GetObject()
		id := o.GetCluster() + "/" + o.GetProject() + "/" + o.GetModule() + "/" + ref.GetApiVersion() + "/" + ref.GetKind()
		return id + "/" + ref.GetNamespace() + "/" + ref.GetName()
	}
	return watch(ctx, c, func(ctx context.Context, token string) (grpc.ServerStreamingClient[v1.WatchObjectsResponse], error) {
		from := proto.CloneOf(req)
		from.ResumeToken = token
		return c.Trackers.WatchObjects(ctx, from)
	}, (*v1.WatchObjectsResponse).GetObject, key, fn)
}

// mirror is what a watcher has been told, so that a list that is sent again tells only what differs.
type mirror[M proto.Message] struct {
	known  map[string]M
	listed map[string]bool // since the stream was opened; nil once it is synced
	synced bool            // Synced has been passed on
	key    func(M) string
	fn     func(Change[M]) error
}

func watch[T any, M proto.Message, P interface {
	*T
	change
}](ctx context.Context, c *Client, open func(ctx context.Context, token string) (grpc.ServerStreamingClient[T], error), item func(*T) M,
	key func(M) string, fn func(Change[M]) error) error {
	m := &mirror[M]{known: map[string]M{}, key: key, fn: fn}
	token := ""
	reopen := func(ctx context.Context) (grpc.ServerStreamingClient[T], error) {
		m.listed = nil
		if token == "" { // everything comes, and what does not is gone
			m.listed = map[string]bool{}
		}
		return open(ctx, token)
	}
	handle := func(resp *T) error {
		token = cmp.Or(P(resp).GetResumeToken(), token)
		return m.take(P(resp).GetType(), item(resp))
	}
	refused := func() bool { // a token that the hub cannot use any more: begin again with the whole list
		had := token != ""
		token = ""
		return had
	}
	return follow(ctx, c, reopen, handle, refused)
}

func (m *mirror[M]) take(kind string, item M) error {
	switch kind {
	case Synced:
		return m.sync()
	case Deleted:
		delete(m.known, m.key(item))
		return m.fn(Change[M]{Deleted, item})
	}
	key := m.key(item)
	if m.listed != nil {
		m.listed[key] = true
	}
	before, known := m.known[key]
	if known && proto.Equal(before, item) {
		return nil
	}
	m.known[key] = item
	if known {
		return m.fn(Change[M]{Modified, item})
	}
	return m.fn(Change[M]{Added, item})
}

// sync ends the list: what was known and did not come again is gone.
func (m *mirror[M]) sync() error {
	for key, item := range m.known {
		if m.listed == nil || m.listed[key] {
			continue
		}
		delete(m.known, key)
		if err := m.fn(Change[M]{Deleted, item}); err != nil {
			return err
		}
	}
	m.listed = nil
	if m.synced {
		return nil
	}
	m.synced = true
	var none M
	return m.fn(Change[M]{Synced, none})
}

// pageSize is how many items one call of a list fetches.
const pageSize = 1000

// pages turns a paged list into a sequence; an error is the last thing it yields.
func pages[M any](fetch func(token string) (items []M, next string, err error)) iter.Seq2[M, error] {
	return func(yield func(M, error) bool) {
		for token := ""; ; {
			items, next, err := fetch(token)
			if err != nil {
				var none M
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			token = next
		}
	}
}

// AllModules lists modules page by page.
func (c *Client) AllModules(ctx context.Context, req *v1.ListModulesRequest) iter.Seq2[*v1.Module, error] {
	return pages(func(token string) ([]*v1.Module, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Modules.ListModules(ctx, page)
		return resp.GetModules(), resp.GetNextPageToken(), err
	})
}

// AllClusters lists clusters page by page.
func (c *Client) AllClusters(ctx context.Context, req *v1.ListClustersRequest) iter.Seq2[*v1.Cluster, error] {
	return pages(func(token string) ([]*v1.Cluster, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Clusters.ListClusters(ctx, page)
		return resp.GetClusters(), resp.GetNextPageToken(), err
	})
}

// AllRollouts lists rollouts page by page.
func (c *Client) AllRollouts(ctx context.Context, req *v1.ListRolloutsRequest) iter.Seq2[*v1.Rollout, error] {
	return pages(func(token string) ([]*v1.Rollout, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Rollouts.ListRollouts(ctx, page)
		return resp.GetRollouts(), resp.GetNextPageToken(), err
	})
}

// AllTrackers lists trackers page by page.
func (c *Client) AllTrackers(ctx context.Context, req *v1.ListTrackersRequest) iter.Seq2[*v1.Tracker, error] {
	return pages(func(token string) ([]*v1.Tracker, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Trackers.ListTrackers(ctx, page)
		return resp.GetTrackers(), resp.GetNextPageToken(), err
	})
}

// AllObjects lists objects page by page.
func (c *Client) AllObjects(ctx context.Context, req *v1.ListObjectsRequest) iter.Seq2[*v1.Object, error] {
	return pages(func(token string) ([]*v1.Object, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Trackers.ListObjects(ctx, page)
		return resp.GetObjects(), resp.GetNextPageToken(), err
	})
}

// AllRevisions lists revisions page by page.
func (c *Client) AllRevisions(ctx context.Context, req *v1.ListRevisionsRequest) iter.Seq2[*v1.Revision, error] {
	return pages(func(token string) ([]*v1.Revision, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Modules.ListRevisions(ctx, page)
		return resp.GetRevisions(), resp.GetNextPageToken(), err
	})
}

// AllHolds lists holds page by page.
func (c *Client) AllHolds(ctx context.Context, req *v1.ListHoldsRequest) iter.Seq2[*v1.Hold, error] {
	return pages(func(token string) ([]*v1.Hold, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Modules.ListHolds(ctx, page)
		return resp.GetHolds(), resp.GetNextPageToken(), err
	})
}

// AllUsers lists users page by page.
func (c *Client) AllUsers(ctx context.Context, req *v1.ListUsersRequest) iter.Seq2[*v1.User, error] {
	return pages(func(token string) ([]*v1.User, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Identity.ListUsers(ctx, page)
		return resp.GetUsers(), resp.GetNextPageToken(), err
	})
}

// AllTokens lists tokens page by page.
func (c *Client) AllTokens(ctx context.Context, req *v1.ListTokensRequest) iter.Seq2[*v1.Token, error] {
	return pages(func(token string) ([]*v1.Token, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Identity.ListTokens(ctx, page)
		return resp.GetTokens(), resp.GetNextPageToken(), err
	})
}

// AllCertificates lists the client certificates of people page by page.
func (c *Client) AllCertificates(ctx context.Context, req *v1.ListCertificatesRequest) iter.Seq2[*v1.Certificate, error] {
	return pages(func(token string) ([]*v1.Certificate, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Identity.ListCertificates(ctx, page)
		return resp.GetCertificates(), resp.GetNextPageToken(), err
	})
}

// AllAuditEntries reads what was done and what was refused, the newest first, page by page.
func (c *Client) AllAuditEntries(ctx context.Context, req *v1.ListAuditEntriesRequest) iter.Seq2[*v1.AuditEntry, error] {
	return pages(func(token string) ([]*v1.AuditEntry, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Audit.ListAuditEntries(ctx, page)
		return resp.GetEntries(), resp.GetNextPageToken(), err
	})
}

// AllProjects lists projects page by page.
func (c *Client) AllProjects(ctx context.Context, req *v1.ListProjectsRequest) iter.Seq2[*v1.Project, error] {
	return pages(func(token string) ([]*v1.Project, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Identity.ListProjects(ctx, page)
		return resp.GetProjects(), resp.GetNextPageToken(), err
	})
}

// AllSecrets lists secrets, without values, page by page.
func (c *Client) AllSecrets(ctx context.Context, req *v1.ListSecretsRequest) iter.Seq2[*v1.Secret, error] {
	return pages(func(token string) ([]*v1.Secret, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Secrets.ListSecrets(ctx, page)
		return resp.GetSecrets(), resp.GetNextPageToken(), err
	})
}

// AllCatalogs lists catalogs page by page.
func (c *Client) AllCatalogs(ctx context.Context, req *v1.ListCatalogsRequest) iter.Seq2[*v1.Catalog, error] {
	return pages(func(token string) ([]*v1.Catalog, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Catalogs.ListCatalogs(ctx, page)
		return resp.GetCatalogs(), resp.GetNextPageToken(), err
	})
}

// AllAssignments lists assignments page by page.
func (c *Client) AllAssignments(ctx context.Context, req *v1.ListAssignmentsRequest) iter.Seq2[*v1.Assignment, error] {
	return pages(func(token string) ([]*v1.Assignment, string, error) {
		page := proto.CloneOf(req)
		page.PageSize, page.PageToken = pageSize, token
		resp, err := c.Assignments.ListAssignments(ctx, page)
		return resp.GetAssignments(), resp.GetNextPageToken(), err
	})
}
