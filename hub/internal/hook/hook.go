// Package hook takes the webhooks of Git servers and registries: a call that is signed with a module's secret asks for a look at the
// module's source. It takes nothing from what a call says, and tells nobody which modules there are.
package hook

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// Limits of calls.
const (
	MaxBody = 25 << 20 // what GitHub sends at most; it is read through, and not kept
	// refuseStep is of what the time is a multiple after which a call is refused, so that it does not tell why.
	refuseStep = 200 * time.Millisecond
	timeout    = 30 * time.Second
	minTimeout = 5 * time.Second
)

// prefix is of the paths: /hooks/PROJECT/MODULE, and /hooks/PROJECT/catalogs/CATALOG.
const prefix = "/hooks/"

// ofCatalogs stands before the name of a catalog in a path.
const ofCatalogs = "catalogs/"

// Refused is what a call is told that is not signed as it must be, or whose module there is not, or that takes none.
const Refused = "no module takes a call with this path and signature"

// Unheard is what a call is told that the hub that leads has not heard yet. Who can call again does: this hub may stop before it is told.
const (
	Unheard      = "no hub that leads has heard of this yet; it is told as soon as there is one, unless this hub stops before"
	unheardRetry = "10" // seconds
)

// Options of a Handler; Key, Ask and Log are required.
type Options struct {
	// Key is what calls for a module are signed with; empty: it takes none, or there is no such module.
	Key func(context.Context, fleet.ModuleRef) []byte
	// Ask has the source of a module be looked at. An error says that this may not come to anything soon.
	Ask func(fleet.ModuleRef) error
	// CatalogKey and AskCatalog are the same of a catalog; nil: none takes calls.
	CatalogKey func(context.Context, fleet.ModuleRef) []byte
	AskCatalog func(fleet.ModuleRef) error
	Log        *slog.Logger
}

// Handler serves the calls.
type Handler struct {
	o       Options
	calls   places
	limiter limiter
}

// New makes a Handler.
func New(o Options) *Handler { return &Handler{o: o} }

// Server is how a handler is served: whoever is slow is cut off.
func Server(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: minTimeout, ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: timeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, surplus{}, rpc.Surplus(c))
		}}
}

// surplus is the key of whether the connection of a call is one too many of its address.
type surplus struct{}

// ServeHTTP takes one call.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	if tooMany, _ := r.Context().Value(surplus{}).(bool); tooMany || !h.limiter.allow(callerOf(r), began) {
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Connection", "close") // others of the address have room then
		http.Error(w, "too many calls", http.StatusTooManyRequests)
		return
	}
	ref, catalog, ok := refOf(r.URL.Path)
	key, ask, subject := h.o.Key, h.o.Ask, ref.Display()
	if catalog {
		key, ask, subject = h.o.CatalogKey, h.o.AskCatalog, "catalog "+subject
	}
	switch {
	case !ok || key == nil:
		http.Error(w, "the path is neither /hooks/PROJECT/MODULE nor /hooks/PROJECT/catalogs/CATALOG", http.StatusNotFound)
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST is taken", http.StatusMethodNotAllowed)
		return
	}
	genuine, status := h.judge(w, r, key(r.Context(), ref))
	switch {
	case status != 0:
		http.Error(w, http.StatusText(status), status)
	case !genuine:
		h.o.Log.Debug("webhook refused", "module", subject, "from", r.RemoteAddr)
		refuse(w, r, began)
	default:
		h.answer(w, r, subject, ask(ref))
	}
}

// answer answers a call that is signed as it must be.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, subject string, err error) {
	h.o.Log.Info("audit", "caller", "webhook", "method", "Hook", "subject", subject, "from", r.RemoteAddr, "result", status.Code(rpc.ToStatus(err)).String())
	if err != nil {
		w.Header().Set("Retry-After", unheardRetry)
		http.Error(w, Unheard, http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, "asked\n")
}

// judge reads the call, and reports whether it is signed as it must be. Status says that it could not be read. Of a call that is signed by nobody
// no more is read.
func (h *Handler) judge(w http.ResponseWriter, r *http.Request, key []byte) (genuine bool, status int) {
	claim, signed := claimOf(r.Header)
	if !signed {
		return false, 0
	}
	known := len(key) > 0
	if !known {
		key = []byte("of nobody; the same work is done with it")
	}
	c := claim.with(key)
	leave := h.calls.take(w)
	_, err := io.Copy(c.mac, http.MaxBytesReader(w, r.Body, MaxBody))
	cut := leave()
	switch {
	case err == nil:
		return c.holds() && known, 0
	case cut:
		return false, http.StatusServiceUnavailable
	case errors.As(err, new(*http.MaxBytesError)):
		return false, http.StatusRequestEntityTooLarge
	}
	return false, http.StatusRequestTimeout
}

// refuse answers after a time that does not tell how long it took to find out.
func refuse(w http.ResponseWriter, r *http.Request, began time.Time) {
	took := time.Since(began)
	timer := time.NewTimer((took/refuseStep+1)*refuseStep - took)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
	http.Error(w, Refused, http.StatusForbidden)
}

// refOf reads the module, or the catalog, out of a path.
func refOf(path string) (ref fleet.ModuleRef, catalog, ok bool) {
	rest, is := strings.CutPrefix(path, prefix)
	project, name, found := strings.Cut(rest, "/")
	name, catalog = strings.CutPrefix(name, ofCatalogs)
	if !is || !found || fleet.ValidateLabel(project) != nil || fleet.ValidateLabel(name) != nil {
		return fleet.ModuleRef{}, catalog, false
	}
	return fleet.ModuleRef{Project: project, Name: name}, catalog, true
}

// callerOf is by what calls are counted: the address, or of IPv6 the network, of which one machine has many.
func callerOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Is4() || addr.Is4In6() {
		return host
	}
	network, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return host
	}
	return network.String()
}
