package hub

import (
	"fmt"
	"os"
	"strings"

	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/pkg/fleet"
)

// EtcdAccess is who a hub is for an etcd of one's own, and how it knows that. All files are in PEM but that of the password.
type EtcdAccess struct {
	// CAFile is what etcd's certificate is checked against; default: what the system trusts, at endpoints with https.
	CAFile string
	// CertFile and KeyFile are the hub's own; they are read again for each connection.
	CertFile, KeyFile string
	// ServerName is the name in etcd's certificate; default: that of the endpoint.
	ServerName string
	// User of etcd.
	User string
	// PasswordFile has the user's password. It is read once, at the start.
	PasswordFile string
	// Password, if there is no PasswordFile.
	Password string
}

// The environment that etcd's user and password are taken from, where no flag gives them.
const (
	EtcdUserEnv     = "TOWLINE_ETCD_USER"
	EtcdPasswordEnv = "TOWLINE_ETCD_PASSWORD"
)

// fromEnvironment fills in what no flag gave.
func (a EtcdAccess) fromEnvironment(get func(string) string) EtcdAccess {
	if a.User == "" {
		a.User = get(EtcdUserEnv)
	}
	if a.PasswordFile == "" {
		a.Password = get(EtcdPasswordEnv)
	}
	return a
}

// given reports that there is anything that only an etcd of one's own has.
func (a EtcdAccess) given() bool { return a != EtcdAccess{} }

func (a EtcdAccess) access() (etcd.Access, error) {
	out := etcd.Access{CAFile: a.CAFile, CertFile: a.CertFile, KeyFile: a.KeyFile, ServerName: a.ServerName, Username: a.User, Password: a.Password}
	if a.PasswordFile == "" {
		return out, nil
	}
	b, err := os.ReadFile(a.PasswordFile)
	if err != nil {
		return out, fmt.Errorf("the password for etcd: %w", err)
	}
	if out.Password = strings.TrimRight(string(b), "\r\n"); out.Password == "" {
		return out, fleet.Errorf(fleet.ErrInvalid, "the password for etcd: %s is empty", a.PasswordFile)
	}
	return out, nil
}
