package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"towline.dev/towline/pkg/fleet"
)

// Access is who a hub is for an etcd of one's own, and by what it knows that. The zero value is nobody, without TLS.
type Access struct {
	// CAFile is in PEM what etcd's certificate is checked against; empty: what the system trusts, at endpoints with https.
	CAFile string
	// CertFile and KeyFile, in PEM, are the hub's own; they are read again for each connection, so that they can be renewed.
	CertFile, KeyFile string
	// ServerName is the name in etcd's certificate; empty: that of the endpoint.
	ServerName string
	// Username and Password are a user of etcd.
	Username, Password string
}

// check finds what cannot be meant.
func (a Access) check(endpoints []string) error {
	switch {
	case (a.CertFile == "") != (a.KeyFile == ""):
		return fleet.Errorf(fleet.ErrInvalid, "etcd: a certificate and its key are given together")
	case a.Username == "" && a.Password != "":
		return fleet.Errorf(fleet.ErrInvalid, "etcd: a password is given, and no user")
	case a.Username != "" && a.Password == "":
		return fleet.Errorf(fleet.ErrInvalid, "etcd: user %s has no password", a.Username)
	}
	for _, e := range endpoints {
		if a.secured() && strings.HasPrefix(e, "http://") {
			return fleet.Errorf(fleet.ErrInvalid, "etcd: endpoint %s is without TLS, and files for TLS are given: write https://", e)
		}
	}
	return nil
}

func (a Access) secured() bool { return a.CAFile != "" || a.CertFile != "" || a.ServerName != "" }

// tls is nil without anything about TLS.
func (a Access) tls() (*tls.Config, error) {
	if !a.secured() {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.ServerName}
	if a.CAFile != "" {
		pem, err := os.ReadFile(a.CAFile)
		if err != nil {
			return nil, fmt.Errorf("etcd's CA: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fleet.Errorf(fleet.ErrInvalid, "etcd's CA: %s: no certificate in PEM", a.CAFile)
		}
	}
	if a.CertFile == "" {
		return c, nil
	}
	read := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(a.CertFile, a.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certificate for etcd: %s with key %s: %w", a.CertFile, a.KeyFile, err)
		}
		return &pair, nil
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	_, err := read()
	return c, err
}

// mayWrite asks etcd whether the keys may be written, by a transaction that writes nothing: it judges both of its branches.
func (b *keyspace) mayWrite(ctx context.Context) error {
	ctx, cancel := b.call(ctx)
	defer cancel()
	key := b.prefix + "none"
	_, err := b.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), ">", math.MaxInt64-1)).Then(clientv3.OpPut(key, "")).Commit()
	if err == nil {
		return nil
	}
	return b.failure(err)
}

// denied says who is refused, and what to do.
func (a Access) denied(err error, prefix string) error {
	who := "the hub"
	if a.Username != "" {
		who = "user " + a.Username
	}
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fleet.Errorf(fleet.ErrDenied, "etcd: %s may not read and write the keys under %s: grant it a role with: etcdctl role grant-permission ROLE --prefix=true readwrite %s", who, prefix, prefix)
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fleet.Errorf(fleet.ErrDenied, "etcd: %s is refused: no such user, or the password is wrong", who)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fleet.Errorf(fleet.ErrDenied, "etcd asks who calls, and no user is given: set --etcd-user and its password")
	}
	return nil
}

// refusal is why the first endpoint with TLS cannot be spoken to; nil: it can, as far as TLS goes. The client of etcd does not
// say: it tries again until its time is over.
func (a Access) refusal(endpoints []string) error {
	config, err := a.tls()
	if err != nil {
		return err
	}
	for _, e := range endpoints {
		host, found := strings.CutPrefix(e, "https://")
		if !found && (!a.secured() || strings.Contains(e, ":/") || strings.HasPrefix(e, "unix:")) {
			continue
		}
		if err := shakeHands(config, strings.TrimSuffix(host, "/")); err != nil {
			return advise(err)
		}
	}
	return nil
}

const (
	handshakePatience = 3 * time.Second
	alertPatience     = 500 * time.Millisecond
)

// shakeHands makes a connection and waits a moment for the other side's word: a client certificate is refused after the handshake.
func shakeHands(config *tls.Config, address string) error {
	d := &net.Dialer{Timeout: handshakePatience}
	conn, err := tls.DialWithDialer(d, "tcp", address, config)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetReadDeadline(time.Now().Add(alertPatience)); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// advise adds what to do about a connection that fails for its certificates. Errors of crypto/tls have their causes as text only.
func advise(err error) error {
	for _, a := range []struct{ mark, advice string }{
		{"signed by unknown authority", "etcd's certificate is of another CA than that of --etcd-cacert"},
		{"certificate required", "etcd asks for a client certificate: set --etcd-cert and --etcd-key"},
		{"bad certificate", "etcd refuses the certificate of --etcd-cert"},
		{"unknown certificate authority", "etcd refuses the certificate of --etcd-cert: it is of another CA"},
		{"certificate is valid for", "etcd's certificate is for another name: set --etcd-server-name to one that it has"},
		{"first record does not look like", "etcd serves without TLS there: write http://"},
	} {
		if strings.Contains(err.Error(), a.mark) {
			return fmt.Errorf("%s: %w", a.advice, err)
		}
	}
	return err
}
