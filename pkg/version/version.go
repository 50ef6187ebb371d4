// Package version owns the version string that the build sets with -ldflags; it must not know what it is the version of.
package version

// Version is what `git describe` said when the binary was built.
var Version = "dev"
