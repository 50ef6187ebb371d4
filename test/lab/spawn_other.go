//go:build !linux

package lab

import (
	"os/exec"
	"syscall"
)

// bind puts the process in a group of its own; only Linux can also end it with this one.
func bind(cmd *exec.Cmd, outlive bool) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: outlive, Setpgid: !outlive}
}

func spawn(cmd *exec.Cmd) error { return cmd.Start() }
