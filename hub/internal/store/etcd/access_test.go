package etcd_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/pkg/fleet"
)

// authority is a CA with its files.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// issue writes NAME.crt and NAME.key.
func (a *authority) issue(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	must(a.t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	must(a.t, err)
	must(a.t, os.WriteFile(a.file(name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(a.t, os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	cert, err := x509.ParseCertificate(der)
	must(a.t, err)
	return cert, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// secured is an etcd with TLS that asks for client certificates and for a user: root, hub, who may use the keys of Towline, and
// stranger, who may not.
func secured(t *testing.T, ca *authority) (endpoint string) {
	t.Helper()
	ca.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"etcd.example"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	for _, name := range []string{"hub", "machine"} {
		ca.issue(name, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	}
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	cfg.ListenPeerUrls = nil
	cfg.ListenClientUrls = []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.ClientTLSInfo = transport.TLSInfo{CertFile: ca.file("server.crt"), KeyFile: ca.file("server.key"), TrustedCAFile: ca.file("ca.crt"), ClientCertAuth: true}
	cfg.EnableGRPCGateway, cfg.UnsafeNoFsync = false, true
	cfg.TickMs, cfg.ElectionMs = 10, 100
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	must(t, err)
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	endpoint = "https://" + e.Clients[0].Addr().String()
	info := transport.TLSInfo{CertFile: ca.file("hub.crt"), KeyFile: ca.file("hub.key"), TrustedCAFile: ca.file("ca.crt")}
	config, err := info.ClientConfig()
	must(t, err)
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, TLS: config, Logger: zap.NewNop()})
	must(t, err)
	defer func() { must(t, admin.Close()) }()
	protect(t, admin)
	return endpoint
}

// protect makes the users and turns authentication on.
func protect(t *testing.T, admin *clientv3.Client) {
	t.Helper()
	ctx := within(t)
	for _, user := range []string{"root", "hub", "stranger"} {
		_, err := admin.UserAdd(ctx, user, "secret-of-"+user)
		must(t, err)
	}
	for _, role := range []string{"root", "towline"} {
		_, err := admin.RoleAdd(ctx, role)
		must(t, err)
	}
	_, err := admin.RoleGrantPermission(ctx, "towline", "towline/", clientv3.GetPrefixRangeEnd("towline/"), clientv3.PermissionType(clientv3.PermReadWrite))
	must(t, err)
	for user, role := range map[string]string{"root": "root", "hub": "towline"} {
		_, err := admin.UserGrantRole(ctx, user, role)
		must(t, err)
	}
	_, err = admin.AuthEnable(ctx)
	must(t, err)
}

func TestSecuredEtcd(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	endpoint := secured(t, ca)
	other.issue("hub", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	good := etcd.Access{CAFile: ca.file("ca.crt"), CertFile: ca.file("machine.crt"), KeyFile: ca.file("machine.key"), Username: "hub", Password: "secret-of-hub"}
	empty := filepath.Join(t.TempDir(), "empty")
	must(t, os.WriteFile(empty, nil, 0o600))
	for name, tc := range map[string]struct {
		wrong func(*etcd.Access)
		at    string
		is    error
		says  string
	}{
		"all is right": {wrong: func(*etcd.Access) {}},
		"user by certificate": {wrong: func(a *etcd.Access) {
			a.CertFile, a.KeyFile, a.Username, a.Password = ca.file("hub.crt"), ca.file("hub.key"), "", ""
		}},
		"other name":           {wrong: func(a *etcd.Access) { a.ServerName = "etcd.example" }},
		"CA of another":        {wrong: func(a *etcd.Access) { a.CAFile = other.file("ca.crt") }, says: "another CA than that of --etcd-cacert"},
		"no CA":                {wrong: func(a *etcd.Access) { a.CAFile = "" }, says: "another CA than that of --etcd-cacert"},
		"CA file is missing":   {wrong: func(a *etcd.Access) { a.CAFile = ca.file("none") }, is: os.ErrNotExist, says: "none"},
		"CA file is empty":     {wrong: func(a *etcd.Access) { a.CAFile = empty }, is: fleet.ErrInvalid, says: "no certificate in PEM"},
		"certificate of other": {wrong: func(a *etcd.Access) { a.CertFile, a.KeyFile = other.file("hub.crt"), other.file("hub.key") }, says: "etcd refuses the certificate of --etcd-cert"},
		"no certificate":       {wrong: func(a *etcd.Access) { a.CertFile, a.KeyFile = "", "" }, says: "set --etcd-cert and --etcd-key"},
		"key of another":       {wrong: func(a *etcd.Access) { a.KeyFile = other.file("hub.key") }, says: other.file("hub.key")},
		"certificate, no key":  {wrong: func(a *etcd.Access) { a.KeyFile = "" }, is: fleet.ErrInvalid, says: "together"},
		"name":                 {wrong: func(a *etcd.Access) { a.ServerName = "elsewhere" }, says: "etcd-server-name"},
		"password":             {wrong: func(a *etcd.Access) { a.Password = "secret-of-nobody" }, is: fleet.ErrDenied, says: "user hub is refused"},
		"no user":              {wrong: func(a *etcd.Access) { a.Username, a.Password = "", "" }, is: fleet.ErrDenied, says: "the hub"},
		"user, no password":    {wrong: func(a *etcd.Access) { a.Password = "" }, is: fleet.ErrInvalid, says: "no password"},
		"password, no user":    {wrong: func(a *etcd.Access) { a.Username = "" }, is: fleet.ErrInvalid, says: "no user"},
		"no permission":        {wrong: func(a *etcd.Access) { a.Username, a.Password = "stranger", "secret-of-stranger" }, is: fleet.ErrDenied, says: "readwrite towline/"},
		"http":                 {wrong: func(*etcd.Access) {}, at: strings.Replace(endpoint, "https", "http", 1), is: fleet.ErrInvalid, says: "write https://"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var said bytes.Buffer
			access, at := good, endpoint
			if tc.wrong(&access); tc.at != "" {
				at = tc.at
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			began := time.Now()
			b, err := etcd.Open(ctx, etcd.Options{Endpoints: []string{at}, Access: access,
				Log: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug}))})
			t.Logf("%s: %v", time.Since(began), err)
			if tc.says == "" {
				must(t, err)
				_, _, err = b.Get(ctx, 0, "r/x")
				must(t, err)
				must(t, b.Close())
			} else if err == nil || !strings.Contains(err.Error(), tc.says) || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("error %v; want one that says %q and is %v", err, tc.says, tc.is)
			}
			if all := said.String() + errorText(err); strings.Contains(all, "secret-of-") {
				t.Errorf("the password is said: %s", all)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
