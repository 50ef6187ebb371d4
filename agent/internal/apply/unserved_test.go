package apply

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"towline.dev/towline/pkg/fleet"
)

// TestKindThatIsServedNoMore: a CRD goes between the look for its kind and the request. That reads as what it is, and says what to do.
func TestKindThatIsServedNoMore(t *testing.T) {
	id := fleet.ObjectID{Group: "example.com", Kind: "Widget", Namespace: "shop", Name: "x"}
	f := Explain(id, apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", schema.GroupResource{}, "", "404 page not found", 0, true))
	if f.Reason != ReasonNoKind || !f.Transient || strings.Contains(f.Message, "requested resource") || !strings.Contains(f.Message, "Widget.example.com shop/x: the API server does not serve its kind") {
		t.Errorf("%+v", f)
	}
	of := Explain(id, &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: `tenant "a" is not known`}})
	if of.Reason != ReasonNoKind || !strings.Contains(of.Message, `It says: tenant "a" is not known`) {
		t.Errorf("what a server of others says: %+v", of)
	}
	gone := Explain(id, apierrors.NewNotFound(schema.GroupResource{Group: "example.com", Resource: "widgets"}, "x"))
	if gone.Reason != ReasonNoKind || !strings.Contains(gone.Message, `widgets.example.com "x" not found`) {
		t.Errorf("an object that is not found: %+v", gone)
	}
}

// TestPatchThatDoesNotFitIsAWebhooks: the API server does not name the webhook whose patch it cannot carry out, and says it as if it had failed
// itself. It did its work, and whoever reads it is told where to look.
func TestPatchThatDoesNotFitIsAWebhooks(t *testing.T) {
	for _, said := range []string{
		"error in remove for path: '/data/nope': Unable to remove nonexistent key: nope: missing value",
		"replace operation does not apply: doc is missing key: /data/nope: missing value",
		"testing value /data/k failed: test failed",
	} {
		f := Explain(fleet.ObjectID{Kind: "ConfigMap", Namespace: "n", Name: "a"}, apierrors.NewInternalError(errors.New(said)))
		if f.Reason != ReasonWebhook || f.Unreached() || !strings.Contains(f.Message, "a mutating webhook of the cluster") || !strings.Contains(f.Message, said) {
			t.Errorf("%s: %+v", said, f)
		}
	}
}

// TestNameThatIsMissingInside: what an object has in its spec, such as a claim template without a name, is the module's to name.
func TestNameThatIsMissingInside(t *testing.T) {
	id := fleet.ObjectID{Group: "apps", Kind: "StatefulSet", Namespace: "n", Name: "a"}
	for path, webhook := range map[string]bool{"metadata.name": true, "spec.volumeClaimTemplates[0].metadata.name": false} {
		err := apierrors.NewInvalid(schema.GroupKind{Group: "apps", Kind: "StatefulSet"}, "a", field.ErrorList{field.Required(field.NewPath(path), "name or generateName is required")})
		if f := Explain(id, err); f.Reason != ReasonInvalid || strings.Contains(f.Message, "webhook") != webhook || f.Denied != webhook {
			t.Errorf("%s: %+v", path, f)
		}
	}
}
