package apply

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Failure says why an object is not as wanted.
type Failure struct {
	// Reason is a CamelCase word.
	Reason string
	// Message is a sentence that says what to do. Detail is the part of it in the API server's own words, if it is apart.
	Message, Detail string
	// Transient failures are expected to pass by themselves.
	Transient bool
	// Undeclared says that it sets a field which its kind does not have.
	Undeclared bool
	// Denied says that a right, a quota, the admission of the cluster or what other objects have stands against it, which may be
	// about to change: a quota counts as raised, and a role as given, a moment after they are written.
	Denied bool
	// Field and By are set for conflicts over a field, Want and Live too, if the field was found in the object.
	Field, By, Want, Live string
	// Owner is the other module that has the object; zero: it is not that.
	Owner fleet.ModuleRef
	// Since is when a row of failures of this reason began; zero: not known.
	Since time.Time
	// Kind is the sentinel.
	Kind error
}

// Unreached reports that the API server did not do its work, or that the right to write was not certain for a moment, or that
// the inventory could not be written, which is with the API server in a cluster: nothing that is wrong with the object.
func (f *Failure) Unreached() bool {
	return f.Reason == ReasonUnavailable || f.Reason == ReasonNotLeader || f.Reason == ReasonInventory
}

// Taken reports that somebody who is no module of ours has the object, or a field of it.
func (f *Failure) Taken() bool {
	return f.Reason == ReasonConflict && !f.Transient && f.Owner == (fleet.ModuleRef{})
}

// Awaited reports that the object waits for what others are about to bring: its kind or its namespace, which may be another
// module's, or come with an operator that has just been started; a namespace of the name that has to go first; a webhook whose
// workload starts; an object that it is only to read, or that one of its bindings reads.
func (f *Failure) Awaited() bool {
	switch f.Reason {
	case ReasonNoKind, ReasonNoNamespace, ReasonTerminating, ReasonWebhook, ReasonAbsent, ReasonBinding:
		return f.Transient
	}
	return false
}

func (f *Failure) Error() string { return f.Message }

// Unwrap yields the sentinel.
func (f *Failure) Unwrap() error { return f.Kind }

// Reasons of failures.
const (
	ReasonConflict = "Conflict"
	// ReasonAwaitingOwner: another module has the object, and is about to let it go.
	ReasonAwaitingOwner = "AwaitingOwner"
	// ReasonAbsent: an object that is only to be read is not there.
	ReasonAbsent = "ReadOnlyMissing"
	// ReasonBinding: a binding that the object refers to has no value, because what it reads is not there.
	ReasonBinding     = "BindingMissing"
	ReasonImmutable   = "Immutable"
	ReasonInvalid     = "Invalid"
	ReasonForbidden   = "Forbidden"
	ReasonNoKind      = "NoSuchKind"
	ReasonNoNamespace = "NoSuchNamespace"
	ReasonTerminating = "Terminating"
	ReasonUnavailable = "Unavailable"
	ReasonNotLeader   = "NotLeader"
	// ReasonWebhook: a webhook that the API server has to ask does not answer.
	ReasonWebhook   = "WebhookUnavailable"
	ReasonUnseen    = "APIUnavailable"
	ReasonContent   = "ContentMissing"
	ReasonInventory = "InventoryUnavailable"
	ReasonProtected = "Protected"
	ReasonUnmarked  = "MarkRemoved"
	ReasonBug       = "AgentBug"
)

// Explain turns an error about an object into a Failure.
func Explain(id fleet.ObjectID, err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	s := kube.StatusOf(err)
	if s == nil {
		return &Failure{Reason: ReasonUnavailable, Message: fmt.Sprintf("%s: %v", id, Cause(err)), Transient: true, Kind: fleet.ErrUnavailable}
	}
	text, answer := strings.TrimSpace(s.Message), kube.Judge(err)
	switch {
	case answer == kube.Stranger:
		return &Failure{Reason: ReasonUnavailable, Transient: true, Kind: fleet.ErrUnavailable, Message: fmt.Sprintf("%s: %s", id, kube.ByStranger(s))}
	case IsImmutable(err):
		return &Failure{Reason: ReasonImmutable, Kind: fleet.ErrPrecondition, Detail: causes(s),
			Message: fmt.Sprintf("%s: a field cannot be changed in place; %s: %s", id, plan.RecreateAdvice(id), causes(s))}
	case misnamed(s):
		return &Failure{Reason: ReasonInvalid, Kind: fleet.ErrInvalid, Denied: true, Message: fmt.Sprintf(
			"%s: a mutating webhook of the cluster, which the API server does not name, takes its name or namespace off, or changes it; %s: %s", id, findWebhook, text)}
	case answer == kube.Invalid, answer == kube.BadRequest:
		return &Failure{Reason: ReasonInvalid, Kind: fleet.ErrInvalid, Denied: deniedForNow(text), Message: fmt.Sprintf("%s: %s", id, causes(s))}
	case apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return &Failure{Reason: ReasonTerminating, Transient: true, Kind: fleet.ErrPrecondition,
			Message: fmt.Sprintf("%s: namespace %s is being deleted", id, id.Namespace)}
	case strings.Contains(text, kindTerminating) && !kube.ByWebhook(text):
		return &Failure{Reason: ReasonTerminating, Transient: true, Kind: fleet.ErrPrecondition,
			Message: fmt.Sprintf("%s: the definition of its kind is being deleted, and goes when all objects of the kind are gone", id)}
	case answer == kube.Forbidden, answer == kube.Unauthorized:
		return &Failure{Reason: ReasonForbidden, Kind: fleet.ErrDenied, Denied: true, Message: fmt.Sprintf("%s: %s", id, text)}
	case isNoNamespace(id, s):
		return &Failure{Reason: ReasonNoNamespace, Transient: true, Kind: fleet.ErrNotFound,
			Message: fmt.Sprintf("%s: namespace %s does not exist; add it to the module, or to one that comes before", id, id.Namespace)}
	case answer == kube.Unserved:
		return &Failure{Reason: ReasonNoKind, Transient: true, Kind: fleet.ErrNotFound, Message: fmt.Sprintf(
			"%s: the API server does not serve its kind, or this version of it, any more, or yet; is its CRD part of another module?%s", id, inItsWords(text))}
	case answer == kube.Gone:
		return &Failure{Reason: ReasonNoKind, Transient: true, Kind: fleet.ErrNotFound, Message: fmt.Sprintf("%s: %s", id, text)}
	case answer == kube.Conflict:
		return &Failure{Reason: ReasonConflict, Transient: true, Kind: fleet.ErrConflict, Message: fmt.Sprintf("%s: %s", id, text)}
	case s.Code >= http.StatusInternalServerError && misfitPatch.MatchString(text):
		return &Failure{Reason: ReasonWebhook, Transient: true, Kind: fleet.ErrUnavailable, Message: fmt.Sprintf(
			"%s: a mutating webhook of the cluster, which the API server does not name, answers with a patch that does not fit the object; %s: %s", id, findWebhook, text)}
	case kube.WebhookFails(s.Code, text):
		return &Failure{Reason: ReasonWebhook, Transient: true, Kind: fleet.ErrUnavailable, Message: fmt.Sprintf("%s: %s", id, text)}
	case misfits(text):
		return &Failure{Reason: ReasonInvalid, Kind: fleet.ErrInvalid, Message: fmt.Sprintf("%s: the object in the cluster does not fit its definition any more; patch the field there, or delete the object: %s", id, misfit(text))}
	case s.Code >= 500 && isMalformed(text):
		return &Failure{Reason: ReasonInvalid, Kind: fleet.ErrInvalid, Undeclared: strings.Contains(text, undeclared), Message: fmt.Sprintf("%s: %s", id, text)}
	default:
		return &Failure{Reason: ReasonUnavailable, Transient: true, Kind: fleet.ErrUnavailable, Message: fmt.Sprintf("%s: %s", id, text)}
	}
}

// inItsWords is what a server of others says of what it does not have, without saying of what: it is told as well. What API servers say of each path
// that they do not know tells nothing.
func inItsWords(text string) string {
	if text == "" || strings.HasPrefix(text, "the server could not find the requested resource") {
		return ""
	}
	return " It says: " + text
}

// NoAnswer reports that a request has no answer of an API server: it is not there, or the way to it is not.
func NoAnswer(err error) bool {
	var at *url.Error
	return errors.As(err, &at) && kube.StatusOf(err) == nil
}

// Cause is why a request failed, without the address that was asked: that is long, and a message that is cut would end
// before it says why.
func Cause(err error) error {
	var at *url.Error
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// kindTerminating is said of an object whose CustomResourceDefinition is being deleted.
const kindTerminating = "create not allowed while custom resource definition is terminating"

// undeclared is said of a field that a kind does not have.
const undeclared = "field not declared in schema"

// isMalformed reports that the server could not make anything of an object, which it says as if it were at fault itself.
func isMalformed(text string) bool {
	for _, words := range []string{undeclared, "failed to create typed patch object", "unable to convert unstructured object"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// misfits reports that the server cannot make anything of the object that is there: its kind's definition gave a field another type.
func misfits(text string) bool {
	return strings.Contains(text, "failed to create typed live object") || strings.Contains(text, "failed to create manager for existing fields")
}

// misfit is what does not fit, without the object.
func misfit(text string) string {
	if _, what, ok := strings.Cut(text, "): ."); ok {
		return "." + what
	}
	return text
}

// Answered reports that the API server itself says what is wrong.
func Answered(err error) bool { return kube.StatusOf(err) != nil }

// notAllowed is how the API server says that who asks has not the right to: it has not looked at what was sent, nor at what is there.
var notAllowed = regexp.MustCompile(`^\S+( "[^"]*")? is forbidden: User "`)

// NotAllowed reports that the agent has not the right to what it asked for. That tells nothing of an object.
func NotAllowed(err error) bool {
	s := kube.StatusOf(err)
	return s != nil && s.Reason == metav1.StatusReasonForbidden && notAllowed.MatchString(s.Message)
}

// Unanswered reports that a request may have been carried out though it failed: nothing that decides came back.
func Unanswered(err error) bool {
	answer := kube.Judge(err)
	return answer == kube.Unknown || answer == kube.Failed && !kube.ByWebhook(kube.StatusOf(err).Message)
}

// MayLand reports that a request which failed may be carried out still, for it was sent.
func MayLand(err error) bool {
	var stopped *Failure // before it was sent
	return !errors.As(err, &stopped) && kube.Is(err, kube.Unknown)
}

// Canceled reports that err says only that we stopped.
func Canceled(ctx context.Context, err error) bool {
	return err != nil && ctx.Err() != nil
}

var immutableTexts = []string{"field is immutable", "is immutable", "may not change once set", "Forbidden: updates to ",
	"can not be updated", "cannot be changed", "cannot change roleRef", "may not be changed", "immutable after creation",
	"updates may not change fields"}

// IsImmutable reports that what is desired differs from the live object in fields that cannot be changed in place, and that
// nothing else is wrong with it. Only what the API server itself finds in fields says so: who denies a change by admission,
// in whichever words, means to keep the object, and not that another one takes its place.
func IsImmutable(err error) bool {
	s := kube.StatusOf(err)
	if s == nil || s.Code != http.StatusUnprocessableEntity || s.Reason != metav1.StatusReasonInvalid || s.Details == nil ||
		len(s.Details.Causes) == 0 || kube.ByWebhook(s.Message) {
		return false
	}
	return !slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool { return !saysImmutable(c) })
}

// misfitPatch is said of what a mutating webhook wants to have changed, and cannot be.
var misfitPatch = regexp.MustCompile(`^Internal error occurred: (error in \w+ for path: |\w+ operation does not apply: |\w+ operation value must be |testing (path|value) )`)

// findWebhook is what to do about a webhook that nobody names.
const findWebhook = "see kubectl get mutatingwebhookconfigurations"

// misnamed reports that the API server got the object of a write under no name, or another one than it was sent by: the agent always sends both,
// and alike, so that who changes objects on their way in has changed that.
func misnamed(s *metav1.Status) bool {
	if kube.ByWebhook(s.Message) {
		return false
	}
	if s.Details != nil && slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool { // of the object itself, and not of what it has in its spec
		return c.Field == "metadata.name" && c.Type == metav1.CauseTypeFieldValueRequired
	}) {
		return true
	}
	return strings.Contains(s.Message, "the namespace of the provided object does not match the namespace sent on the request")
}

// deniedForNow reports that not the object is wrong: a webhook or an admission policy speaks, in whatever words and with whichever
// code, or another object has its port or address.
func deniedForNow(text string) bool {
	return kube.ByWebhook(text) || kube.ByPolicy(text) || strings.Contains(text, allocated)
}

// allocated is said of a port or an address that another Service has.
const allocated = " is already allocated"

// UndefinedVersion is the group and version of which the API server says that a custom kind is not defined in it any more.
func UndefinedVersion(err error) (gv string, found bool) {
	s := kube.StatusOf(err)
	if s == nil {
		return "", false
	}
	_, rest, found := strings.Cut(s.Message, "request to convert CR to an invalid group/version: ")
	gv, _, _ = strings.Cut(rest, " ")
	return gv, found && gv != ""
}

// saysImmutable reports that a cause is an error of a field, and of one that cannot be changed. What an admission policy
// gives as a cause is of no field.
func saysImmutable(c metav1.StatusCause) bool {
	if c.Type != metav1.CauseTypeFieldValueInvalid && c.Type != metav1.CauseTypeForbidden {
		return false
	}
	return slices.ContainsFunc(immutableTexts, func(text string) bool { return strings.Contains(c.Message, text) })
}

func isNoNamespace(id fleet.ObjectID, s *metav1.Status) bool {
	return s.Code == http.StatusNotFound && id.Namespace != "" && s.Details != nil && s.Details.Kind == "namespaces"
}

// causes lists what the server found wrong, field by field.
func causes(s *metav1.Status) string {
	if s.Details == nil || len(s.Details.Causes) == 0 {
		return s.Message
	}
	parts := make([]string, 0, len(s.Details.Causes))
	for _, c := range s.Details.Causes {
		if c.Field == "" || c.Field == "<nil>" {
			parts = append(parts, c.Message)
			continue
		}
		parts = append(parts, c.Field+": "+withoutDump(c.Message))
	}
	return strings.Join(parts, "; ")
}

// withoutDump drops the value from messages that print a whole object before they say what is wrong, and what they print
// after it.
func withoutDump(message string) string {
	message, _, _ = strings.Cut(message, "\n")
	if !strings.HasPrefix(message, "Invalid value: ") || len(message) < 100 {
		return message
	}
	return message[strings.LastIndex(message, ": ")+2:]
}

// FieldConflict is one field that another manager holds with another value.
type FieldConflict struct {
	Field       string // as .spec.replicas
	Manager     string
	Subresource string
}

// FieldConflicts lists the fields over which an apply failed. It is empty for every other error, also for a stale
// resource version.
func FieldConflicts(err error) []FieldConflict {
	s := kube.StatusOf(err)
	if s == nil || s.Code != http.StatusConflict || s.Details == nil {
		return nil
	}
	var out []FieldConflict
	for _, c := range s.Details.Causes {
		if c.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		out = append(out, FieldConflict{Field: c.Field, Manager: quoted(c.Message, "conflict with "),
			Subresource: quoted(c.Message, "with subresource ")})
	}
	return out
}

// quoted is the text in double quotes that follows prefix.
func quoted(text, prefix string) string {
	_, rest, found := strings.Cut(text, prefix+`"`)
	if !found {
		return ""
	}
	out, _, _ := strings.Cut(rest, `"`)
	return out
}

// consoles are programs through which a person scales: Mozilla is any browser, as with the consoles of OpenShift and Rancher.
var consoles = []string{"kubectl*", "oc", "k9s", "Mozilla"}

// IsAutoscaler reports that a write through the scale subresource by this manager is a machine's, not a person's.
func IsAutoscaler(manager, subresource string) bool {
	return subresource == "scale" && !among(consoles, manager)
}
