// Package client is the Go client of Towline's public API, for third parties and for the towline command. It owns the
// connection, credentials, retries of reads, reading what was just written, and watches that survive breaks; it must
// not know how the hub stores or decides anything, nor how an answer is shown.
package client
