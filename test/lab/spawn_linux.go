package lab

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// bind makes the process end with this one, or stay after it in a session of its own.
func bind(cmd *exec.Cmd, outlive bool) {
	if outlive {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		return
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

var spawning = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// spawn starts the process from a thread that lives as long as this process: the kernel sends the parent-death signal
// when the thread ends.
func spawn(cmd *exec.Cmd) error {
	result := make(chan error)
	spawning() <- func() { result <- cmd.Start() }
	return <-result
}
