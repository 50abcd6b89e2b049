package main

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"pdlink/bridge/replay"
	"pdlink/kernels"
	"pdlink/kernels/safetensors"
	"pdlink/kernels/verify"
)

// bundledStates are what the decoders of the bundled cases cached.
//
//go:embed testdata/cases/*/state.safetensors
var bundledStates embed.FS

const (
	stateFile  = "state.safetensors"
	configFile = "case.json"
)

// layerList is the value of --layers: numbers with commas between; given again, more.
type layerList []int

// Set implements pflag.Value.
func (l *layerList) Set(text string) error {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 0 {
			return fmt.Errorf("%q is no number of a layer: give some, as 0,2,3, or leave it out", word)
		}
		*l = append(*l, n)
	}
	return nil
}

// String implements pflag.Value.
func (l *layerList) String() string {
	words := make([]string, 0, len(*l))
	for _, n := range *l {
		words = append(words, strconv.Itoa(n))
	}
	return strings.Join(words, ",")
}

// Type implements pflag.Value.
func (l *layerList) Type() string { return "layers" }

// unpackState puts what is recorded of a bundled case beside its other files.
func unpackState(arg string, c *replay.Case) error {
	name, ok := strings.CutPrefix(arg, bundledPrefix)
	if !ok {
		return nil
	}
	data, err := bundledStates.ReadFile(bundledRoot + "/" + name + "/" + stateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(c.Dir, stateFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("unpack case %s: %w", name, err)
	}
	return nil
}

// openRecording opens the files of a DeepSeek-V4 case. done closes them.
func openRecording(c *replay.Case) (rec verify.Recording, done func() error, err error) {
	var open []interface{ Close() error }
	done = func() error {
		errs := make([]error, 0, len(open))
		for _, f := range open {
			errs = append(errs, f.Close())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: %w", replay.ErrCase, errors.Join(err, done()))
		}
	}()
	spec, err := c.Spec(replay.Overrides{})
	if err != nil {
		return rec, done, err
	}
	rec = verify.Recording{BlockTokens: spec.BlockTokens, Tokens: c.Captured}
	if rec.Geometry, err = geometryOf(c); err != nil {
		return rec, done, err
	}
	if rec.Numerics, err = kernels.ParseNumerics(c.Numerics); err != nil {
		return rec, done, err
	}
	if rec.Weights, err = kernels.OpenWeights(filepath.Join(c.Dir, "weights.safetensors"), rec.Geometry); err != nil {
		return rec, done, err
	}
	open = append(open, rec.Weights)
	if rec.Capture, err = safetensors.Open(filepath.Join(c.Dir, "capture.safetensors")); err != nil {
		return rec, done, err
	}
	open = append(open, rec.Capture)
	state := filepath.Join(c.Dir, stateFile)
	if _, err := os.Stat(state); errors.Is(err, fs.ErrNotExist) {
		return rec, done, nil
	}
	if rec.State, err = safetensors.Open(state); err != nil {
		return rec, done, err
	}
	open = append(open, rec.State)
	return rec, done, nil
}

// geometryOf reads the model's configuration again, which replay.Load has checked.
func geometryOf(c *replay.Case) (kernels.Geometry, error) {
	text, err := os.ReadFile(filepath.Join(c.Dir, configFile))
	if err != nil {
		return kernels.Geometry{}, err
	}
	var f struct {
		Config json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(text, &f); err != nil {
		return kernels.Geometry{}, fmt.Errorf("%s: %w", configFile, err)
	}
	return kernels.ParseGeometry(f.Config)
}
