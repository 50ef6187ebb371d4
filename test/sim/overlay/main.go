// Command overlay writes an overlay for go build that plants bugs in this module, one of which the environment can ask for: the
// simulation must find each. It owns the bugs; it must not know how they are found.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "list" {
		for _, b := range bugs {
			fmt.Println(b.name)
		}
		return
	}
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: overlay list, or overlay MODULE DIR")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "overlay:", err)
		os.Exit(1)
	}
}
