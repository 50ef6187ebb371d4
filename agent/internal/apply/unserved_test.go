package apply

import (
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/pkg/fleet"
)

// TestKindThatIsServedNoMore: a CRD goes between the look for its kind and the request. That reads as what it is, and says what to do.
func TestKindThatIsServedNoMore(t *testing.T) {
	id := fleet.ObjectID{Group: "example.com", Kind: "Widget", Namespace: "shop", Name: "x"}
	f := Explain(id, apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", schema.GroupResource{}, "", "404 page not found", 0, true))
	if f.Reason != ReasonNoKind || !f.Transient || strings.Contains(f.Message, "requested resource") || !strings.Contains(f.Message, "Widget.example.com shop/x: the API server does not serve its kind") {
		t.Errorf("%+v", f)
	}
	gone := Explain(id, apierrors.NewNotFound(schema.GroupResource{Group: "example.com", Resource: "widgets"}, "x"))
	if gone.Reason != ReasonNoKind || !strings.Contains(gone.Message, `widgets.example.com "x" not found`) {
		t.Errorf("an object that is not found: %+v", gone)
	}
}
