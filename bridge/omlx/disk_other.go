//go:build !linux && !darwin

package omlx

import "os"

// allocate only sets the size; the space is found when the bytes are written.
func allocate(f *os.File, size int64) error { return f.Truncate(size) }

// writeBack does nothing: there is no portable way to only start write-back.
func writeBack(*os.File, int64, int64) error { return nil }

// dataSync makes the file durable.
func dataSync(f *os.File) error { return f.Sync() }

// renameNew publishes without ever replacing.
func renameNew(temp, final string) error { return linkNew(temp, final) }
