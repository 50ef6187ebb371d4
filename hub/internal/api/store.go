package api

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
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
		resp.Restore = showRestore(record.ReadRestored(r))
		return nil
	})
	return resp, err
}

// AcceptRestore is a person's word that the store counts as it is, for all clusters or some. To say it again changes nothing.
func (a *API) AcceptRestore(ctx context.Context, req *towlinev1.AcceptRestoreRequest) (*towlinev1.AcceptRestoreResponse, error) {
	resp := &towlinev1.AcceptRestoreResponse{}
	var err error
	resp.Revision, resp.Restore, err = a.aboutRestore(ctx, func(w store.Writer, x *record.Restored, word *storev1.Acceptance) error {
		if x.Accepted != nil {
			return nil
		}
		if len(req.GetClusters()) == 0 {
			w.Put(store.AcceptedKey, word)
			return nil
		}
		for _, c := range req.GetClusters() {
			name := fleet.ClusterName(c)
			if _, _, ok := store.Get[*storev1.ClusterRecord](w, store.ClusterKey(name)); !ok {
				return fleet.NotFound(name.Object(), "cluster %s not found", name)
			}
			w.Put(store.AcceptedFor(name), word)
		}
		return nil
	})
	return resp, err
}

// ResumeRestore is a person's word that what stands still goes on, whoever is ahead of the backup or was not heard.
func (a *API) ResumeRestore(ctx context.Context, _ *towlinev1.ResumeRestoreRequest) (*towlinev1.ResumeRestoreResponse, error) {
	resp := &towlinev1.ResumeRestoreResponse{}
	var err error
	resp.Revision, resp.Restore, err = a.aboutRestore(ctx, func(w store.Writer, x *record.Restored, word *storev1.Acceptance) error {
		if x.Stands() {
			w.Put(store.ResumedKey, word)
		}
		return nil
	})
	return resp, err
}

// aboutRestore commits a word about the last restore, and returns what there is to know of that then.
func (a *API) aboutRestore(ctx context.Context, say func(store.Writer, *record.Restored, *storev1.Acceptance) error) (rev int64, now *towlinev1.Restore, err error) {
	word := &storev1.Acceptance{Incarnation: a.o.Incarnation, By: who(ctx), At: timestamppb.New(a.now())}
	rev, err = a.o.Store.Update(ctx, func(w store.Writer) error {
		x := record.ReadRestored(store.Untracked(w))
		if x == nil {
			return fleet.Errorf(fleet.ErrPrecondition, "the store was not restored from a backup, so that there is nothing to accept; of a copy that was put back by hand, join each cluster again: towline cluster join NAME --reissue")
		}
		return say(w, x, word)
	})
	if err != nil {
		return 0, nil, err
	}
	err = a.o.Store.View(ctx, rev, func(r store.Reader) error {
		now = showRestore(record.ReadRestored(r))
		return nil
	})
	return rev, now, err
}

// showRestore is what people are told; nil: the store was never restored.
func showRestore(x *record.Restored) *towlinev1.Restore {
	if x == nil {
		return nil
	}
	out := &towlinev1.Restore{Restored: x.Record.GetAt(), Stands: x.Stands(), AcceptedBy: x.Accepted.GetBy(), Accepted: x.Accepted.GetAt(),
		Ahead: x.Ahead, Unheard: x.Unheard, AcceptedClusters: x.Alone}
	if x.Record.GetStands() && x.Settled != nil {
		out.Settled, out.SettledBy = x.Settled.GetAt(), x.Settled.GetBy()
	}
	return out
}
