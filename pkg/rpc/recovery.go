package rpc

import (
	"crypto/sha256"
	"slices"
	"time"
)

// RecoveryWindow is how long after its end an agent's certificate still gets it the next one.
const RecoveryWindow = 30 * 24 * time.Hour

// RecoveryDigest is what an agent signs with the key of a certificate that has ended, to get the next one: SHA-256 of the message that
// RecoverRequest describes. The request is bound to the key that it asks for, so that who repeats it gains nothing.
func RecoveryDigest(certificate, csr []byte, clusterUID string) []byte {
	c, r, u := sha256.Sum256(certificate), sha256.Sum256(csr), sha256.Sum256([]byte(clusterUID))
	sum := sha256.Sum256(slices.Concat([]byte("towline.recover/1\x00"), c[:], r[:], u[:]))
	return sum[:]
}
