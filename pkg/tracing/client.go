package tracing

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// client is how the collector is reached; nil: nobody gets spans. Errors name the flag. What is in files is read when it is used: whoever
// works does so without spans, too.
func (o Options) client() ([]otlptracegrpc.Option, error) {
	if o.Endpoint == "" {
		if o.CACert != "" || o.Cert != "" || o.Key != "" || o.HeadersFile != "" {
			return nil, fmt.Errorf("--otlp-cacert, --otlp-cert, --otlp-key and --otlp-headers-file are for --otlp-endpoint, which is not set")
		}
		return nil, nil
	}
	if o.Sample < 0 || o.Sample > 1 || o.Sample != o.Sample {
		return nil, fmt.Errorf("--otlp-sample %v: write a number from 0 to 1", o.Sample)
	}
	host, plain, err := o.address()
	if err != nil {
		return nil, err
	}
	out := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(host)}
	if plain {
		if o.CACert != "" || o.Cert != "" || o.Key != "" {
			return nil, fmt.Errorf("--otlp-endpoint %s: is without TLS; --otlp-cacert, --otlp-cert and --otlp-key are for https://", o.Endpoint)
		}
		out = append(out, otlptracegrpc.WithInsecure())
	} else {
		if (o.Cert == "") != (o.Key == "") {
			return nil, fmt.Errorf("--otlp-cert and --otlp-key belong together")
		}
		out = append(out, otlptracegrpc.WithTLSCredentials(o.fresh()))
	}
	if o.HeadersFile != "" {
		out = append(out, otlptracegrpc.WithDialOption(grpc.WithPerRPCCredentials(headers(o.HeadersFile))))
	}
	return out, nil
}

// address is HOST:PORT of the collector, and whether it is spoken to without TLS.
func (o Options) address() (host string, plain bool, err error) {
	scheme, rest, found := strings.Cut(o.Endpoint, "://")
	if !found {
		scheme, rest = "https", o.Endpoint
	}
	u, err := url.Parse(scheme + "://" + rest)
	if err == nil && (u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "" || u.Scheme != "http" && u.Scheme != "https") {
		err = fmt.Errorf("only a scheme, a host and a port are known")
	}
	if err == nil {
		var port string
		if host, port, err = net.SplitHostPort(u.Host); err == nil && (host == "" || port == "") {
			err = fmt.Errorf("the host or the port is missing")
		}
	}
	if err != nil {
		return "", false, fmt.Errorf("--otlp-endpoint: write https://HOST:PORT, or http://HOST:PORT without TLS: %w", err)
	}
	return u.Host, u.Scheme == "http", nil
}

// readable reads the files as it is done later, too. An error names the flag, and never what is in a file.
func (o Options) readable() error {
	_, err := o.tls()
	if o.HeadersFile != "" {
		_, unread := readHeaders(o.HeadersFile)
		err = errors.Join(err, unread)
	}
	return err
}

// fresh is TLS with what the files have when a connection is made.
func (o Options) fresh() credentials.TransportCredentials {
	return fresh{credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}), o}
}

type fresh struct {
	credentials.TransportCredentials
	o Options
}

// ClientHandshake reads the files.
func (f fresh) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := f.o.tls()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

// Clone is one that reads the same files.
func (f fresh) Clone() credentials.TransportCredentials { return f.o.fresh() }

func (o Options) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CACert != "" {
		text, err := os.ReadFile(o.CACert)
		if err != nil {
			return nil, fmt.Errorf("--otlp-cacert: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--otlp-cacert %s: has no certificate in PEM", o.CACert)
		}
	}
	if o.Cert == "" {
		return config, nil
	}
	pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
	if err != nil {
		return nil, fmt.Errorf("--otlp-cert %s: %w", o.Cert, err)
	}
	config.Certificates = []tls.Certificate{pair}
	return config, nil
}

// headers is the file of what goes along with each batch.
type headers string

// GetRequestMetadata reads the file.
func (h headers) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return readHeaders(string(h))
}

// RequireTransportSecurity leaves it to the endpoint, which says http:// or https://.
func (h headers) RequireTransportSecurity() bool { return false }

// readHeaders reads NAME: VALUE a line. An error names a line, never what is in it.
func readHeaders(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--otlp-headers-file: %w", err)
	}
	out := map[string]string{}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, found := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		if !found || !httpguts.ValidHeaderFieldName(name) || strings.HasPrefix(name, "grpc-") || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("--otlp-headers-file %s: line %d is no NAME: VALUE", path, n)
		}
		out[name] = value
	}
	return out, nil
}
