package api

import (
	"context"
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// maxBackupPiece is how much one message of a backup carries.
const maxBackupPiece = 256 << 10

// BackupStore sends a snapshot piece by piece.
func (a *API) BackupStore(_ *towlinev1.BackupStoreRequest, st grpc.ServerStreamingServer[towlinev1.BackupStoreResponse]) (err error) {
	if a.o.Snapshot == nil {
		return fleet.Errorf(fleet.ErrPrecondition, "this hub makes no backups")
	}
	r, err := a.o.Snapshot(st.Context())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	for {
		piece := make([]byte, maxBackupPiece) // gRPC may keep it after Send
		n, err := io.ReadFull(r, piece)
		if n > 0 {
			if err := st.Send(&towlinev1.BackupStoreResponse{Data: piece[:n]}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return fleet.Errorf(fleet.ErrUnavailable, "backup of the store: %v", err)
		}
	}
}

// GetRestore tells whether the store was made from a backup.
func (a *API) GetRestore(ctx context.Context, _ *towlinev1.GetRestoreRequest) (*towlinev1.GetRestoreResponse, error) {
	resp := &towlinev1.GetRestoreResponse{}
	err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		if rec, _, ok := store.Get[*storev1.Restore](r, store.RestoreKey); ok {
			resp.Restore = a.showRestore(r, rec)
		}
		return nil
	})
	return resp, err
}

// AcceptRestore is a person's word that the store counts as it is, once for all clusters. To say it again changes nothing.
func (a *API) AcceptRestore(ctx context.Context, _ *towlinev1.AcceptRestoreRequest) (*towlinev1.AcceptRestoreResponse, error) {
	resp := &towlinev1.AcceptRestoreResponse{}
	var err error
	resp.Revision, err = a.o.Store.Update(ctx, func(w store.Writer) error {
		rec, _, ok := store.Get[*storev1.Restore](w, store.RestoreKey)
		if !ok {
			return fleet.Errorf(fleet.ErrPrecondition, "the store was not restored from a backup, so that there is nothing to accept; of a copy that was put back by hand, join each cluster again: towline cluster join NAME --reissue")
		}
		if resp.Restore = a.showRestore(w, rec); resp.Restore.GetAcceptedBy() == "" {
			w.Put(store.AcceptedKey, &storev1.Acceptance{Incarnation: a.o.Incarnation, By: who(ctx), At: timestamppb.New(a.now())})
			resp.Restore = a.showRestore(w, rec)
		}
		return nil
	})
	return resp, err
}

func (a *API) showRestore(r store.Reader, rec *storev1.Restore) *towlinev1.Restore {
	out := &towlinev1.Restore{Restored: rec.GetAt()}
	if word, _, ok := store.Get[*storev1.Acceptance](r, store.AcceptedKey); ok && word.GetIncarnation() == a.o.Incarnation {
		out.AcceptedBy, out.Accepted = word.GetBy(), word.GetAt()
	}
	store.Scan(r, store.ClusterPrefix, func(c *storev1.ClusterRecord, _ store.Entry) bool {
		if c.GetRegressed() != "" {
			out.Ahead = append(out.Ahead, c.GetCluster().GetMetadata().GetName())
		}
		return true
	})
	slices.Sort(out.Ahead)
	return out
}
