// Package rpc owns how Towline speaks gRPC: server and client options, TLS, the caller's identity in a context, the
// table of who may call what, the interceptors, and the translation of errors. It must not know how identities are
// stored or what the services do.
package rpc
