package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Audit reads the audit log of an API server, which is written before the server answers.
type Audit struct{ path string }

// Mark is a place in the log.
type Mark int64

// Request is one answered request.
type Request struct {
	Verb      string
	URI       string
	UserAgent string
	User      string
	Group     string
	Resource  string
	Sub       string
	Namespace string
	Name      string
	Code      int
	Received  time.Time
	Answered  time.Time
}

// Object is GROUP/RESOURCE NAMESPACE/NAME.
func (r Request) Object() string {
	resource := r.Resource
	if r.Group != "" {
		resource = r.Group + "/" + resource
	}
	return resource + " " + r.Namespace + "/" + r.Name
}

func (r Request) String() string {
	return fmt.Sprintf("%s %s %s -> %d (%s)", r.Answered.Format("15:04:05.000"), strings.ToUpper(r.Verb), r.URI, r.Code, r.UserAgent)
}

// IsWrite reports a request that may have changed something.
func (r Request) IsWrite() bool {
	return !r.IsDryRun() && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, r.Verb)
}

// IsDryRun reports a request that stores nothing.
func (r Request) IsDryRun() bool { return strings.Contains(r.URI, "dryRun=All") }

// ByAgent reports a request of Towline's agent.
func (r Request) ByAgent() bool { return strings.HasPrefix(r.UserAgent, "towline-agent") }

// ByLab reports a request of a test.
func (r Request) ByLab() bool { return strings.HasPrefix(r.UserAgent, UserAgent) }

// Applies reports the agent's writes of objects of modules, which it patches and deletes. Its Lease, its state and its
// Events it creates and updates.
func (r Request) Applies() bool {
	own := r.Resource == "events" || r.Resource == "secrets" && r.Namespace == "towline-system"
	return r.ByAgent() && !own && !r.IsDryRun() && (r.Verb == "patch" || r.Verb == "delete" || r.Verb == "deletecollection")
}

// Now marks the end of the log.
func (a *Audit) Now() (Mark, error) {
	info, err := os.Stat(a.path)
	if err != nil {
		return 0, err
	}
	return Mark(info.Size()), nil
}

// OpenAudit reads the audit log at a path.
func OpenAudit(path string) *Audit { return &Audit{path: path} }

type auditEvent struct {
	AuditID    string
	Stage      string
	RequestURI string
	Verb       string
	UserAgent  string
	User       struct{ Username string }
	ObjectRef  struct {
		Resource, Namespace, Name, APIGroup, Subresource string
	}
	ResponseStatus           struct{ Code int }
	RequestReceivedTimestamp time.Time
	StageTimestamp           time.Time
}

// Since reads the answered requests after a mark that keep reports.
func (a *Audit) Since(from Mark, keep func(Request) bool) ([]Request, error) {
	out, _, err := a.Follow(from, keep)
	return out, err
}

// Follow is Since with the mark from where to go on.
func (a *Audit) Follow(from Mark, keep func(Request) bool) (out []Request, next Mark, err error) {
	next, err = a.events(from, func(e auditEvent) {
		if r := e.request(); e.Stage == completed && keep(r) {
			out = append(out, r)
		}
	})
	return out, next, err
}

// The stages of a request. One that is answered for as long as it is open, such as a watch, has both.
const (
	started   = "ResponseStarted"
	completed = "ResponseComplete"
)

func (e auditEvent) request() Request {
	return Request{Verb: e.Verb, URI: e.RequestURI, UserAgent: e.UserAgent, User: e.User.Username, Group: e.ObjectRef.APIGroup,
		Resource: e.ObjectRef.Resource, Sub: e.ObjectRef.Subresource, Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
		Code: e.ResponseStatus.Code, Received: e.RequestReceivedTimestamp, Answered: e.StageTimestamp}
}

// events reads what was logged after a mark, and returns the mark from where to go on. A line that was half written when the
// mark was taken is of a request before it, and is passed over.
func (a *Audit) events(from Mark, each func(auditEvent)) (next Mark, err error) {
	begin := max(from-1, 0)
	f, err := os.Open(a.path)
	if err != nil {
		return from, err
	}
	defer f.Close()
	if _, err := f.Seek(int64(begin), io.SeekStart); err != nil {
		return from, err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return from, err
	}
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	next = max(from, begin+Mark(len(data)))
	if begin < from {
		data = data[bytes.IndexByte(data, '\n')+1:]
	}
	for line := range bytes.Lines(data) {
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return from, fmt.Errorf("%s: %w in %.200s", a.path, err, line)
		}
		each(e)
	}
	return next, nil
}
