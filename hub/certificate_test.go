package hub_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

// TestStolenCertificateOfAnAdmin: an admin's configuration was copied. Its certificate is revoked by another admin: the copy's
// watch ends within 5 s, and it can do nothing any more, also after the hub has started anew with a configuration that works.
func TestStolenCertificateOfAnAdmin(t *testing.T) {
	w := newWorld(t, false)
	stolen := filepath.Join(t.TempDir(), "stolen.yaml")
	data, err := os.ReadFile(filepath.Join(w.dir, hub.AdminFile))
	must(t, err)
	must(t, os.WriteFile(stolen, data, 0o600))
	thief, err := client.Dial(w.ctx, client.Options{Config: stolen})
	must(t, err)
	watch, err := thief.Clusters.WatchClusters(w.ctx, &towlinev1.WatchClustersRequest{})
	must(t, err)
	_, err = watch.Recv()
	must(t, err)

	me := w.outsider("maria", "admin")
	maria, err := client.Dial(w.ctx, client.Options{Server: me.address, CA: me.ca, Token: me.token})
	must(t, err)
	serial := ""
	for serial == "" {
		must(t, w.ctx.Err())
		list, err := maria.Identity.ListCertificates(w.ctx, &towlinev1.ListCertificatesRequest{})
		must(t, err)
		for _, c := range list.GetCertificates() {
			serial = c.GetMetadata().GetName()
		}
	}
	_, err = maria.Identity.RevokeCertificate(w.ctx, &towlinev1.RevokeCertificateRequest{Serial: serial, Reason: "laptop stolen"})
	must(t, err)
	revoked := time.Now()
	for err == nil {
		_, err = watch.Recv()
	}
	if took := time.Since(revoked); !errors.Is(err, fleet.ErrDenied) || took > 5*time.Second {
		t.Errorf("the watch ended after %s: %v", took, err)
	}
	if _, err := thief.Clusters.ListClusters(w.ctx, &towlinev1.ListClustersRequest{}); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("a call on the open connection: %v", err)
	}
	w.restart()
	again, err := client.Dial(w.ctx, client.Options{Config: stolen})
	must(t, err)
	err = fleet.ErrUnavailable
	for errors.Is(err, fleet.ErrUnavailable) && w.ctx.Err() == nil { // the hub may have closed the connection before its reason is read
		_, err = again.Clusters.ListClusters(w.ctx, &towlinev1.ListClustersRequest{})
	}
	if !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("a new connection after a restart: %v", err)
	}
	if _, err := w.Clusters.ListClusters(w.ctx, &towlinev1.ListClustersRequest{}); err != nil {
		t.Errorf("the configuration that the hub made anew: %v", err)
	}
}
