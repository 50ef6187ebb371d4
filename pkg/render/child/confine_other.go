//go:build !unix

package child

import "os"

func confine() {}

// hungUp cannot be seen here: the process ends after the build that it is in.
func hungUp(*os.File) bool { return false }
