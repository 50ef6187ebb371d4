package registry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

const userTokenPrefix = "towline_u_"

// UserRequest asks for a user.
type UserRequest struct {
	Name string
	Role string
	// TTL of zero is for ever.
	TTL    time.Duration
	Reason string
}

// NewUser is a user and the bearer token, which is shown once.
type NewUser struct {
	User     *v1.User
	Token    string
	Revision int64
}

// CreateUser makes a user with a bearer token, of which only a hash is kept.
func (r *Registry) CreateUser(ctx context.Context, caller rpc.Caller, q UserRequest) (NewUser, error) {
	if err := fleet.ValidateLabel(q.Name); err != nil {
		return NewUser{}, fleet.Invalid("name", err.Error())
	}
	role, err := rpc.ParseRole(q.Role)
	if err != nil {
		return NewUser{}, err
	}
	if q.TTL < 0 {
		return NewUser{}, fleet.Invalidf("ttl", "%s is in the past", q.TTL)
	}
	switch q.Name {
	case AdminName:
		return NewUser{}, fleet.Errorf(fleet.ErrExists, "user %s is the identity that the hub makes at its first start; choose another name", q.Name)
	case hubName:
		return NewUser{}, fleet.Errorf(fleet.ErrExists, "user %s is who does what the hub does by itself, as the audit has it; choose another name", q.Name)
	}
	now := r.now()
	u := &v1.User{ApiVersion: fleet.APIVersion, Kind: "User", Role: string(role), Metadata: &v1.Metadata{Name: q.Name, Uid: newUID(),
		Generation: 1, CreationTimestamp: timestamppb.New(now), ChangedBy: caller.String(), ChangeReason: q.Reason}}
	if q.TTL > 0 {
		u.Expires = timestamppb.New(now.Add(q.TTL))
	}
	token := newUserToken()
	hash := sha256.Sum256([]byte(token))
	rev, err := r.commit(ctx, func(w store.Writer) error {
		if _, ok := w.Get(userKey(q.Name)); ok {
			return fleet.With(fleet.Errorf(fleet.ErrExists, "user %s exists; for a new token delete it first: towline delete user %s", q.Name, q.Name),
				fleet.Hint{About: userObject(q.Name)})
		}
		w.Grows()
		w.Put(userKey(q.Name), &storev1.UserRecord{User: u, TokenHash: hash[:]})
		return nil
	})
	if err != nil {
		return NewUser{}, err
	}
	out := proto.CloneOf(u)
	out.Metadata.ResourceVersion = rev
	return NewUser{User: out, Token: token, Revision: rev}, nil
}

// Users are sorted by name.
func (r *Registry) Users(ctx context.Context) ([]*v1.User, error) {
	var out []*v1.User
	err := r.store.View(ctx, 0, func(rd store.Reader) error {
		store.Scan(rd, store.UserPrefix, func(u *storev1.UserRecord, e store.Entry) bool {
			c := proto.CloneOf(u.GetUser())
			c.Metadata.ResourceVersion = e.ModRevision
			out = append(out, c)
			return true
		})
		return nil
	})
	return out, err
}

func userObject(name string) fleet.Object { return fleet.Object{Kind: "User", Name: name} }

// DeleteUser ends a user and the token at once. With a UID it is the user of that, and no other one of the name.
func (r *Registry) DeleteUser(ctx context.Context, name, uid string) (int64, error) {
	return r.commit(ctx, func(w store.Writer) error {
		rec, _, ok := store.Get[*storev1.UserRecord](w, userKey(name))
		if !ok {
			return fleet.NotFound(userObject(name), "user %.63q: there is none; see: towline get users", name)
		}
		if err := fleet.SameUID(userObject(name), rec.GetUser().GetMetadata().GetUid(), uid); err != nil {
			return err
		}
		w.Delete(userKey(name))
		return nil
	})
}

// Bearer says whose token it is. It reads the read model only, and takes as long for any token that is nobody's.
func (r *Registry) Bearer(token string) (rpc.Caller, error) {
	unknown := fleet.Errorf(fleet.ErrUnknownUser, "the bearer token is not known; it was deleted, or is of another hub; for a new one run: towline user create NAME")
	if !strings.HasPrefix(token, userTokenPrefix) {
		return rpc.Caller{}, unknown
	}
	hash := sha256.Sum256([]byte(token))
	var found *v1.User
	err := r.store.View(context.Background(), 0, func(rd store.Reader) error {
		store.Scan(rd, store.UserPrefix, func(u *storev1.UserRecord, _ store.Entry) bool {
			if subtle.ConstantTimeCompare(u.GetTokenHash(), hash[:]) == 1 {
				found = u.GetUser()
			}
			return true
		})
		return nil
	})
	switch {
	case err != nil:
		return rpc.Caller{}, err
	case found == nil:
		return rpc.Caller{}, unknown
	}
	name, now := found.GetMetadata().GetName(), r.now()
	if end := found.GetExpires(); end != nil && now.After(end.AsTime()) {
		return rpc.Caller{}, fleet.Errorf(fleet.ErrUnknownUser, "the bearer token of user %s expired %s ago", name, ago(now.Sub(end.AsTime())))
	}
	return rpc.Caller{Kind: rpc.KindUser, Name: name, Role: rpc.Role(found.GetRole())}, nil
}

func newUserToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand
	return userTokenPrefix + base64.RawURLEncoding.EncodeToString(b[:])
}

func userKey(name string) string { return store.UserPrefix + name }
