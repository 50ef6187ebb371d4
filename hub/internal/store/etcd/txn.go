package etcd

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"towline.dev/towline/hub/internal/store/backend"
)

// Commit makes etcd's request itself: the client's builder copies every comparison and operation once more, a fifth of
// what a report costs.
func (b *keyspace) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	ctx, cancel := b.call(ctx)
	defer cancel()
	resp, err := b.txns.Txn(ctx, b.request(parts))
	if err != nil {
		return 0, nil, b.failure(clientv3.ContextError(ctx, err))
	}
	if b.embedded != nil {
		b.embedded.grown(resp.GetHeader().GetRevision(), parts)
	}
	if len(parts) == 1 {
		return resp.GetHeader().GetRevision(), []bool{resp.GetSucceeded()}, nil
	}
	happened := make([]bool, len(parts))
	for i, r := range resp.GetResponses() {
		happened[i] = r.GetResponseTxn().GetSucceeded()
	}
	return resp.GetHeader().GetRevision(), happened, nil
}

// request is one flat transaction, or one nested transaction for each part.
func (b *keyspace) request(parts []backend.Part) *pb.TxnRequest {
	if len(parts) == 1 {
		return b.txn(parts[0])
	}
	req := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(parts))}
	for i, p := range parts {
		req.Success[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: b.txn(p)}}
	}
	return req
}

func (b *keyspace) txn(p backend.Part) *pb.TxnRequest {
	req := &pb.TxnRequest{Compare: make([]*pb.Compare, len(p.If)), Success: make([]*pb.RequestOp, len(p.Then))}
	for i, c := range p.If {
		req.Compare[i] = b.compare(c)
	}
	for i, o := range p.Then {
		req.Success[i] = b.op(o)
	}
	return req
}

func (b *keyspace) compare(c backend.Compare) *pb.Compare {
	out := &pb.Compare{Key: b.raw(c.Key), Result: pb.Compare_EQUAL, Target: pb.Compare_MOD}
	revision := c.Revision
	if c.Prefix {
		out.RangeEnd = []byte(clientv3.GetPrefixRangeEnd(string(out.Key)))
	}
	if c.AtMost {
		out.Result, revision = pb.Compare_LESS, revision+1
	}
	if c.Created {
		out.Target, out.TargetUnion = pb.Compare_CREATE, &pb.Compare_CreateRevision{CreateRevision: revision}
		return out
	}
	out.TargetUnion = &pb.Compare_ModRevision{ModRevision: revision}
	return out
}

func (b *keyspace) op(o backend.Op) *pb.RequestOp {
	if o.Delete {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: b.raw(o.Key)}}}
	}
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: b.raw(o.Key), Value: o.Value}}}
}

// raw is the key in etcd.
func (b *keyspace) raw(key string) []byte {
	out := make([]byte, 0, len(b.prefix)+len(key))
	return append(append(out, b.prefix...), key...)
}
