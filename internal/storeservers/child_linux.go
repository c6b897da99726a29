package storeservers

import "syscall"

// child makes a server end with this process, also when a test panics.
func child(owner *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: owner, Pdeathsig: syscall.SIGKILL}
}
