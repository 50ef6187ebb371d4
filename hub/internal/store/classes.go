package store

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
)

// Owner is a part of the hub that writes records, or a set of them. A part gets its store from the composition root, and
// can write no class that is not its own.
type Owner uint8

// The parts of a hub.
const (
	Hub      Owner = 1 << iota // the composition root: who the hub is
	API                        // what people say
	Leader                     // the controllers, under the leader's fence
	Registry                   // who may connect, and who does
	Session                    // what agents say, under their session's fence
	Audit                      // what was done and refused

	// Everyone may write everything: tests, to make what they are about.
	Everyone = Hub | API | Leader | Registry | Session | Audit
)

func (o Owner) String() string {
	var names []string
	for i, name := range []string{"hub", "api", "leader", "registry", "session", "audit"} {
		if o&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Class is all keys with one prefix, but for those of a class with a longer one: they hold one type of record, and have one owner.
type Class struct {
	// Prefix of the keys, or the only key.
	Prefix string
	// New makes an empty record.
	New func() proto.Message
	// Owner makes, changes and deletes the records.
	Owner Owner
	// Shares is what of the records is mostly the same in many of them, so that the read model keeps it once.
	Shares Sharing
	// Clears are those that only delete the records, when what they speak of is forgotten.
	Clears Owner

	// implied makes the short form of the records; nil: they have none.
	implied []implied
	// states is the field with a byte for each object that the short form has as a number; 0: there is none.
	states protowire.Number
}

// Sharing is the number of the field that records have alike, or one of these.
type Sharing int32

// What records may have alike.
const (
	SharesNothing Sharing = 0
	SharesAll     Sharing = -1
)

// Classes are all that the store holds. The table ties keys to types and to those who write them; test/arch holds it, and
// docs/architecture.md shows it.
var Classes = []Class{
	{Prefix: HubKey, New: func() proto.Message { return new(storev1.Hub) }, Owner: Hub},
	{Prefix: PeerPrefix, New: func() proto.Message { return new(storev1.HubRecord) }, Owner: Hub},
	{Prefix: CAKey, New: func() proto.Message { return new(storev1.Authorities) }, Owner: Registry},
	{Prefix: GenerationKey, New: func() proto.Message { return new(storev1.Counter) }, Owner: Leader},
	{Prefix: RestoreKey, New: func() proto.Message { return new(storev1.Restore) }, Owner: Hub},
	{Prefix: AcceptedKey, New: func() proto.Message { return new(storev1.Acceptance) }, Owner: API},
	{Prefix: AcceptedPrefix, New: func() proto.Message { return new(storev1.Acceptance) }, Owner: API, Clears: Leader},
	{Prefix: ResumedKey, New: func() proto.Message { return new(storev1.Acceptance) }, Owner: API},
	{Prefix: SettledKey, New: func() proto.Message { return new(storev1.Acceptance) }, Owner: Leader},
	{Prefix: GuardPrefix, New: func() proto.Message { return new(storev1.Counter) }, Owner: Registry},
	{Prefix: HeldKey, New: func() proto.Message { return new(storev1.Counter) }, Owner: API},
	{Prefix: ModulePrefix, New: func() proto.Message { return new(storev1.ModuleRecord) }, Owner: API, Clears: Leader},
	{Prefix: ClusterPrefix, New: func() proto.Message { return new(storev1.ClusterRecord) }, Owner: Registry, Clears: Leader},
	{Prefix: ProjectPrefix, New: func() proto.Message { return new(storev1.ProjectRecord) }, Owner: API},
	{Prefix: SecretPrefix, New: func() proto.Message { return new(storev1.SecretRecord) }, Owner: API},
	{Prefix: CatalogPrefix, New: func() proto.Message { return new(storev1.CatalogRecord) }, Owner: API, Clears: Leader},
	{Prefix: CatalogStates, New: func() proto.Message { return new(storev1.CatalogState) }, Owner: Leader},
	{Prefix: TokenPrefix, New: func() proto.Message { return new(storev1.TokenRecord) }, Owner: Registry, Clears: Leader},
	{Prefix: UserPrefix, New: func() proto.Message { return new(storev1.UserRecord) }, Owner: Registry},
	{Prefix: CertPrefix, New: func() proto.Message { return new(storev1.CertificateRecord) }, Owner: Registry},
	{Prefix: RevisionPrefix, New: func() proto.Message { return new(storev1.RevisionRecord) }, Owner: Leader},
	{Prefix: StartPrefix, New: func() proto.Message { return new(storev1.RolloutRecord) }, Owner: API, Clears: Leader},
	{Prefix: BatchPrefix, New: func() proto.Message { return new(storev1.BatchRecord) }, Owner: API, Clears: Leader},
	{Prefix: WantedPrefix, New: func() proto.Message { return new(storev1.WantedRecord) }, Owner: API, Clears: Leader},
	{Prefix: RolloutPrefix, New: func() proto.Message { return new(storev1.RolloutRecord) }, Owner: Leader},
	{Prefix: ChunkPrefix, New: func() proto.Message { return new(storev1.RolloutChunk) }, Owner: Leader},
	{Prefix: StepPrefix, New: func() proto.Message { return new(storev1.StepRecord) }, Owner: Leader},
	{Prefix: VerbPrefix, New: func() proto.Message { return new(storev1.VerbRecord) }, Owner: API, Clears: Leader},
	{Prefix: RequestPrefix, New: func() proto.Message { return new(storev1.RequestRecord) }, Owner: API, Clears: Leader},
	{Prefix: AnswerPrefix, New: func() proto.Message { return new(storev1.AnswerRecord) }, Owner: Leader},
	{Prefix: FollowPrefix, New: func() proto.Message { return new(storev1.FollowRecord) }, Owner: Leader},
	{Prefix: DesiredPrefix, New: func() proto.Message { return new(storev1.DesiredRecord) }, Owner: Leader, Shares: SharesAll,
		implied: impliedDesired},
	{Prefix: ObservedPrefix, New: func() proto.Message { return new(storev1.ObservedRecord) }, Owner: Session, Clears: Leader, Shares: 1,
		implied: impliedObserved, states: reportedStates},
	{Prefix: SessionPrefix, New: func() proto.Message { return new(storev1.SessionRecord) }, Owner: Registry, Clears: Leader},
	{Prefix: FreezePrefix, New: func() proto.Message { return new(storev1.HoldRecord) }, Owner: API, Clears: Leader},
	{Prefix: HoldPrefix, New: func() proto.Message { return new(storev1.HoldRecord) }, Owner: Leader},
	{Prefix: ConfirmPrefix, New: func() proto.Message { return new(storev1.ConfirmRecord) }, Owner: API, Clears: Leader},
	{Prefix: RecyclePrefix, New: func() proto.Message { return new(storev1.RecycleRecord) }, Owner: API, Clears: Leader},
	{Prefix: AckPrefix, New: func() proto.Message { return new(storev1.AckRecord) }, Owner: Session, Clears: Leader},
	{Prefix: ConditionPrefix, New: func() proto.Message { return new(storev1.ConditionsRecord) }, Owner: Session, Clears: Leader},
	{Prefix: CapabilityPrefix, New: func() proto.Message { return new(storev1.CapabilitiesRecord) }, Owner: Session, Clears: Leader, Shares: SharesAll},
	{Prefix: AuditDone, New: func() proto.Message { return new(storev1.AuditRecord) }, Owner: Audit},
	{Prefix: AuditRefused, New: func() proto.Message { return new(storev1.AuditRecord) }, Owner: Audit},
	{Prefix: FloorPrefix, New: func() proto.Message { return new(storev1.FloorRecord) }, Owner: Leader},
}

// classes finds the classes of a key by its first component.
var classes = func() map[string][]*Class {
	found := make(map[string][]*Class)
	for i := range Classes {
		first := firstOf(Classes[i].Prefix)
		found[first] = append(found[first], &Classes[i])
	}
	return found
}()

func firstOf(key string) string {
	first, _, _ := strings.Cut(key, componentDivider)
	return first
}

// ClassOf is the class of a key; nil: no record lives under it.
func ClassOf(key string) *Class {
	var found *Class
	for _, c := range classes[firstOf(key)] {
		if strings.HasPrefix(key, c.Prefix) && (found == nil || len(c.Prefix) > len(found.Prefix)) {
			found = c
		}
	}
	return found
}

// NewRecord makes an empty record of the type that lives under the key, or nil for a key under which no record lives.
func NewRecord(key string) proto.Message {
	if c := ClassOf(key); c != nil {
		return c.New()
	}
	return nil
}

// ErrNotOwner is a defect of the part that gets it, and mended by no retry.
var ErrNotOwner = errors.New("not its owner")

// MayPut is nil if the owner may write the key.
func (o Owner) MayPut(key string) error {
	c := ClassOf(key)
	switch {
	case c == nil:
		return fleet.Errorf(fleet.ErrInvalid, "%s: no record lives under this key", key)
	case o&c.Owner == 0:
		return fmt.Errorf("%s: the %s writes class %s, which belongs to the %s: %w", key, o, c.Prefix, c.Owner, ErrNotOwner)
	}
	return nil
}

// MayDelete is nil if the owner may delete the key.
func (o Owner) MayDelete(key string) error {
	if c := ClassOf(key); c != nil && o&c.Clears != 0 {
		return nil
	}
	return o.MayPut(key)
}
