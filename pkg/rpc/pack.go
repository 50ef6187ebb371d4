package rpc

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"towline.dev/towline/pkg/fleet"
)

// Pack makes a google.rpc.Status of an error, with all that a client is told of it, for an answer that is kept.
func Pack(err error) ([]byte, error) {
	return proto.Marshal(status.Convert(ToStatus(err)).Proto())
}

// Unpack is the error of which Pack made the bytes. What is no status, or one of no error, is ErrCorrupt.
func Unpack(packed []byte) error {
	st := status.New(codes.OK, "").Proto()
	if err := proto.Unmarshal(packed, st); err != nil {
		return fleet.Errorf(fleet.ErrCorrupt, "an answer that was kept is no status: %v", err)
	}
	if err := status.ErrorProto(st); err != nil {
		return FromStatus(err)
	}
	return fleet.Errorf(fleet.ErrCorrupt, "an answer that was kept is of no error")
}
