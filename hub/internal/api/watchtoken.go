package api

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/pkg/fleet"
)

// watchToken says how far a watch of a board has come. It is good as long as the board and the changes behind the step are
// kept: it is no place in the store.
type watchToken struct {
	board  [8]byte
	filter [8]byte // of what the request asks for
	step   int64   // the last change that was sent
	// resumes: the request has a token.
	resumes bool
}

var errTokenStale = fleet.Errorf(fleet.ErrStale, "the changes since the resume token are not kept any more; watch without a token")

func (t watchToken) String() string {
	b := append(append([]byte{}, t.board[:]...), t.filter[:]...)
	return base64.RawURLEncoding.EncodeToString(binary.AppendUvarint(b, uint64(t.step)))
}

// readWatchToken reads the token of a request. Without one only the filter is set.
func readWatchToken(req watchRequest) (t watchToken, err error) {
	asks := proto.Clone(req)
	for _, name := range []string{"resume_token", "min_revision"} {
		asks.ProtoReflect().Clear(asks.ProtoReflect().Descriptor().Fields().ByTextName(name))
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(asks)
	if err != nil {
		return t, err
	}
	digest := fleet.DigestOf(b)
	copy(t.filter[:], digest[:])
	if req.GetResumeToken() == "" {
		return t, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(req.GetResumeToken())
	n := 0
	if len(raw) > 16 {
		var step uint64
		step, n = binary.Uvarint(raw[16:])
		t.step = int64(step)
	}
	if err != nil || n <= 0 || n != len(raw)-16 || t.step < 0 {
		return t, fleet.Invalidf("resume_token", "%.40q is no token of a watch", req.GetResumeToken())
	}
	if !bytes.Equal(raw[8:16], t.filter[:]) {
		return t, fleet.Invalid("resume_token", "is of a watch that asked for something else")
	}
	t.resumes = true
	copy(t.board[:], raw)
	return t, nil
}
