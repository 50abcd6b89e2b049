//go:build !darwin

package services

// Here is the service manager of this system.
const Here = Systemd
