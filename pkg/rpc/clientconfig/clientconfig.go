// Package clientconfig owns the client configuration file: which hubs a person knows and by which identity they are
// reached. It must not know how connections are made with it.
package clientconfig

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

const (
	// Kind is the kind of the file.
	Kind = "Config"
	// Local names the context of a hub on this machine.
	Local = "local"
	// Env names the file when there is no flag.
	Env = "TOWLINE_CONFIG"
)

// Config is the file. The data fields are PEM, base64-encoded in the file as in a kubeconfig.
type Config struct {
	APIVersion     string    `json:"apiVersion"`
	Kind           string    `json:"kind"`
	CurrentContext string    `json:"currentContext,omitempty"`
	Contexts       []Context `json:"contexts"`
}

// Context is one hub and one identity there.
type Context struct {
	Name string `json:"name"`
	// Server is HOST:PORT of the hub's API.
	Server string `json:"server"`
	// CAData is the hub's CA, PEM.
	CAData []byte `json:"caData,omitempty"`
	// CertificateData and KeyData are a client certificate, PEM.
	CertificateData []byte `json:"certificateData,omitempty"`
	KeyData         []byte `json:"keyData,omitempty"`
	// Token is a bearer token.
	Token string `json:"token,omitempty"`
}

// New is a configuration with one context, which is current.
func New(c Context) *Config {
	return &Config{APIVersion: fleet.APIVersion, Kind: Kind, CurrentContext: c.Name, Contexts: []Context{c}}
}

// Path is where the configuration is: the flag, else TOWLINE_CONFIG, else ~/.config/towline/config.
func Path(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if p := os.Getenv(Env); p != "" {
		return p, nil
	}
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "towline", "config"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fleet.Invalidf("--config", "no home directory (%v); name a file", err)
	}
	return filepath.Join(home, ".config", "towline", "config"), nil
}

// Load reads a file; a missing one is fleet.ErrNotFound.
func Load(path string) (*Config, error) {
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fleet.Errorf(fleet.ErrNotFound, "%s: no client configuration there; the hub writes one, admin.yaml in its data directory: towline config use DIR/admin.yaml, or name it in %s", path, Env)
	case err != nil:
		return nil, fmt.Errorf("client configuration: %w", err)
	}
	c := new(Config)
	if err := yaml.UnmarshalStrict(b, c); err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: %v", path, err)
	}
	if c.APIVersion != fleet.APIVersion || c.Kind != Kind {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: has apiVersion %q and kind %q; a client configuration has %q and %q",
			path, c.APIVersion, c.Kind, fleet.APIVersion, Kind)
	}
	return c, nil
}

// Save writes the file, readable by its owner only; a reader sees the old or the new one, never a part.
func (c *Config) Save(path string) error {
	b, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("client configuration %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".config-*") // 0600
	if err != nil {
		return fmt.Errorf("client configuration: %w", err)
	}
	_, werr := f.Write(b)
	err = errors.Join(werr, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("client configuration %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// Use puts the contexts of the file from into the configuration at path, which is made if it is missing, and makes the
// current one of from current there. A name renames the one context that from has. A context of the same name for another
// hub, or of somebody else there, stays: the error says how both can be kept.
func Use(path, from, name string) (Context, error) {
	theirs, err := Load(from)
	if err != nil {
		return Context{}, err
	}
	ctx, err := theirs.Context("")
	if err != nil {
		return Context{}, fmt.Errorf("%s: %w", from, err)
	}
	if same(path, from) {
		return Context{}, fleet.Errorf(fleet.ErrInvalid, "%s: is the client configuration in use already, by --config or %s; nothing to merge", from, Env)
	}
	if name != "" && len(theirs.Contexts) != 1 {
		return Context{}, fleet.Invalidf("--name", "%s has %d contexts, and one name is for one", from, len(theirs.Contexts))
	}
	mine, err := Load(path)
	if errors.Is(err, fleet.ErrNotFound) {
		mine, err = New(ctx), nil
		mine.Contexts = nil
	}
	if err != nil {
		return Context{}, err
	}
	for _, c := range theirs.Contexts {
		if name != "" {
			c.Name, ctx.Name = name, name
		}
		if err := mine.keeps(path, c, name != "", "merge with another name: --name NAME"); err != nil {
			return Context{}, err
		}
		mine.Set(c)
	}
	mine.CurrentContext = ctx.Name
	return ctx, mine.Save(path)
}

// Keeps fails where the file at path has a context of the name for another hub, or with a certificate, which Merge would put this one with a token in
// place of.
func Keeps(path string, c Context) error {
	mine, err := Load(path)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	c.Token = "to come"
	return mine.keeps(path, c, false, "save to another file")
}

// keeps fails where a context of the name is for another hub than the next one, or of somebody else there, and says what to do.
func (c *Config) keeps(path string, next Context, named bool, instead string) error {
	old, err := c.Context(next.Name)
	switch {
	case err != nil:
		return nil
	case !sameHub(old.CAData, next.CAData):
		return fleet.Errorf(fleet.ErrExists, "%s: its context %s is that of another hub (%s); %s", path, next.Name, old.Server, instead)
	case otherUser(old, next, named):
		return fleet.Errorf(fleet.ErrExists, "%s: its context %s has %s, and would have %s in its place; %s", path, next.Name, old.shows(), next.shows(), instead)
	}
	return nil
}

// otherUser reports that two contexts of one name may be of different people. A certificate says whose it is. A token does not: it is made anew for
// the user whose name the context has, unless somebody named that.
func otherUser(old, next Context, named bool) bool {
	if was := old.shows(); was == "" || was != next.shows() {
		return was != ""
	}
	return named && old.Token != next.Token
}

// shows is by what a context says who one is; empty: by nothing.
func (c Context) shows() string {
	block, _ := pem.Decode(c.CertificateData)
	switch {
	case c.Token != "":
		return "a token"
	case len(c.CertificateData) == 0:
		return ""
	case block != nil:
		if leaf, err := x509.ParseCertificate(block.Bytes); err == nil {
			return fmt.Sprintf("the certificate of %q", leaf.Subject.CommonName)
		}
	}
	return "a certificate"
}

// sameHub reports that two files of CAs are of one hub: they are the same, or share one, as those of before and after a rotation do.
func sameHub(a, b []byte) bool {
	theirs := blocks(b)
	return bytes.Equal(a, b) || slices.ContainsFunc(blocks(a), func(x []byte) bool {
		return slices.ContainsFunc(theirs, func(y []byte) bool { return bytes.Equal(x, y) })
	})
}

func blocks(data []byte) (out [][]byte) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		out = append(out, block.Bytes)
	}
	return out
}

func same(a, b string) bool {
	x, xerr := os.Stat(a)
	y, yerr := os.Stat(b)
	return xerr == nil && yerr == nil && os.SameFile(x, y)
}

// Merge puts the context into the file, which is made if it is missing. The context becomes current if none is.
func Merge(path string, ctx Context) error {
	c, err := Load(path)
	if errors.Is(err, fleet.ErrNotFound) {
		return New(ctx).Save(path)
	}
	if err != nil {
		return err
	}
	c.Set(ctx)
	return c.Save(path)
}

// Put is Merge into a file that is whoever calls it's own: one that cannot be read is made anew, with the context alone.
func Put(path string, ctx Context) error {
	err := Merge(path, ctx)
	if errors.Is(err, fleet.ErrInvalid) {
		return New(ctx).Save(path)
	}
	return err
}

// Set adds the context or replaces the one of its name.
func (c *Config) Set(ctx Context) {
	if i := slices.IndexFunc(c.Contexts, func(x Context) bool { return x.Name == ctx.Name }); i >= 0 {
		c.Contexts[i] = ctx
	} else {
		c.Contexts = append(c.Contexts, ctx)
	}
	if c.CurrentContext == "" {
		c.CurrentContext = ctx.Name
	}
}

// Context is the named context; without a name the current one, or the only one.
func (c *Config) Context(name string) (Context, error) {
	if name == "" {
		name = c.CurrentContext
	}
	if name == "" && len(c.Contexts) == 1 {
		return c.Contexts[0], nil
	}
	if name == "" {
		return Context{}, fleet.Errorf(fleet.ErrNotFound, "client configuration: no current context")
	}
	var names []string
	for _, x := range c.Contexts {
		if x.Name == name {
			return x, nil
		}
		names = append(names, x.Name)
	}
	return Context{}, fleet.Errorf(fleet.ErrNotFound, "client configuration: no context %q; it has %v", name, names)
}

// CAs is the pool of the context's CA.
func (c Context) CAs() (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if len(c.CAData) > 0 && !pool.AppendCertsFromPEM(c.CAData) {
		return nil, fleet.Errorf(fleet.ErrInvalid, "context %s: caData holds no certificate", c.Name)
	}
	return pool, nil
}

// Certificate is the context's client certificate; nil: it has none.
func (c Context) Certificate() (*tls.Certificate, error) {
	if len(c.CertificateData) == 0 {
		return nil, nil
	}
	cert, err := tls.X509KeyPair(c.CertificateData, c.KeyData)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "context %s: certificateData and keyData: %v", c.Name, err)
	}
	return &cert, nil
}

// CertificatePEM is DER certificates in PEM, leaf first.
func CertificatePEM(der ...[]byte) []byte {
	var out []byte
	for _, b := range der {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: b})...)
	}
	return out
}

// KeyPEM is a PKCS #8 private key in PEM.
func KeyPEM(pkcs8 []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}
