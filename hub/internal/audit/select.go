package audit

import (
	"fmt"
	"slices"
	"strings"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// hold is the kind of what is known by the id of a hold only: of entries that do not say so, what it held may be of any kind.
const hold = "hold"

// kinds are told by how the name of a method ends, the first that fits. What is done with the rollouts, pins, assignments and trackers of a
// module is about the module.
var kinds = []struct{ end, kind string }{
	{"Module", "module"}, {"Source", "module"}, {"Rollout", "module"}, {"Gate", "module"}, {"Stage", "module"}, {"Clusters", "module"},
	{"Assignments", "module"}, {"Tracker", "module"}, {"Cluster", "cluster"}, {"Enroll", "cluster"}, {"Recover", "cluster"}, {"Attention", "cluster"},
	{"Catalog", "catalog"}, {"Project", "project"}, {"Secret", "secret"}, {"User", "user"}, {"Token", "token"}, {"Certificate", "certificate"},
	{"Artifact", "artifact"}, {"Hold", hold}, {"Unhold", hold},
}

// ofProjects are the kinds whose names are of a project, the default one where none is written.
var ofProjects = []string{"module", "catalog", "secret"}

// kindOf is the kind of what a method is about; empty: the hub.
func kindOf(method string) string {
	for _, k := range kinds {
		if strings.HasSuffix(method, k.end) {
			return k.kind
		}
	}
	return ""
}

const (
	in = "in "
	// named is how many clusters an entry names; its store must not grow with what a request lists.
	named = 100
)

// In is a detail that names the clusters in which something was done: it is in their histories, too, and in that of every cluster where there are more than
// it names.
func In(clusters []string, rest string) string {
	if len(clusters) == 0 {
		return rest
	}
	said := in + strings.Join(clusters[:min(len(clusters), named)], ", ")
	if more := len(clusters) - named; more > 0 {
		said += fmt.Sprintf(" and %d more", more)
	}
	if rest != "" {
		said += "; " + rest
	}
	return said
}

// mayBeIn reports that something was done in a cluster, as In has said it in a detail, or may have been: it is one of more than are named.
func mayBeIn(detail, cluster string) bool {
	list, ok := strings.CutPrefix(detail, in)
	if !ok {
		return false
	}
	list, _, _ = strings.Cut(list, "; ")
	list, _, more := strings.Cut(list, " and ")
	return more || slices.Contains(strings.Split(list, ", "), cluster)
}

// Selection is which entries are asked for; what is empty selects all.
type Selection struct {
	Caller, Kind, Subject, Method string
	Since                         time.Time
	Refused                       bool
}

// Found is an entry with what sorts the newest first.
type Found struct {
	Key   string
	Entry *towlinev1.AuditEntry
}

// Select reads entries, the newest first.
func Select(r store.Reader, s Selection) (out []Found) {
	prefixes := []string{store.AuditRefused, store.AuditDone}
	if s.Refused {
		prefixes = prefixes[:1]
	}
	for _, prefix := range prefixes {
		store.Scan(r, prefix, func(rec *storev1.AuditRecord, e store.Entry) bool {
			if s.matches(rec.GetEntry()) {
				out = append(out, Found{Key: strings.TrimPrefix(e.Key, prefix), Entry: rec.GetEntry()})
			}
			return true
		})
	}
	slices.SortFunc(out, func(a, b Found) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func (s Selection) matches(e *towlinev1.AuditEntry) bool {
	return (s.Caller == "" || s.Caller == e.GetCaller()) && (s.Method == "" || strings.EqualFold(s.Method, e.GetMethod())) &&
		!e.GetTime().AsTime().Before(s.Since) && s.about(e)
}

// about reports that an entry is about what is asked for. An entry of a hub that did not write kinds is judged by its method.
func (s Selection) about(e *towlinev1.AuditEntry) bool {
	kind := e.GetSubjectKind()
	if kind == "" {
		kind = kindOf(e.GetMethod())
		if kind == hold {
			kind = s.Kind
		}
	}
	if (s.Kind == "" || s.Kind == "cluster") && s.Subject != "" && mayBeIn(e.GetDetail(), s.Subject) {
		return true
	}
	if s.Kind != "" && s.Kind != kind {
		return false
	}
	subject := e.GetSubject()
	if s.Subject == "" || s.Subject == subject || strings.HasSuffix(subject, "/"+s.Subject) {
		return true
	}
	return slices.Contains(ofProjects, kind) && !strings.Contains(subject, "/") && s.Subject == fleet.DefaultProject+"/"+subject
}
