// Package apply owns writing to the cluster and the record of what was written: requests, resource mapping, path sets
// and the inventory. It must not decide what is to be written, and must not know the hub.
package apply
