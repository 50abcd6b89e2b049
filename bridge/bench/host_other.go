//go:build !linux && !darwin

package bench

import "context"

func readHost() (name string, memory uint64) { return "", 0 }

func readSample(context.Context) reading { return reading{} }
