//go:build unix && !linux

package storeservers

import "syscall"

func child(owner *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: owner}
}
