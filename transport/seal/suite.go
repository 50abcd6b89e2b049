package seal

import (
	"fmt"
	"slices"
	"strings"

	"pdlink/transport"
)

// Suite is what protects the frames of a connection. The zero value is the
// default.
type Suite uint8

// Suites. Their names are part of the protocol: every key and proof depends on
// them, so two ends with different ones share nothing.
const (
	AES128GCM Suite = iota // the default
	AES256GCM              // a longer key, about a tenth slower
	Clear                  // frames as they are, lanes still prove who they belong to
)

// String returns the name.
func (s Suite) String() string {
	switch s {
	case AES128GCM:
		return "aes-128-gcm"
	case AES256GCM:
		return "aes-256-gcm"
	case Clear:
		return "clear"
	}
	return fmt.Sprintf("suite %d", uint8(s))
}

// featurePrefix begins the names of features that are suites.
const featurePrefix = "seal/"

// Feature is the name by which a Hello says that its end takes the suite.
func (s Suite) Feature() string { return featurePrefix + s.String() }

// Named says whether features have any suite, of this build or of another: only
// an end with keys names one.
func Named(features []string) bool {
	return slices.ContainsFunc(features, func(f string) bool { return strings.HasPrefix(f, featurePrefix) })
}

// Agree returns the suite of a connection from the features that both ends named
// (section 10.2). Clear comes first: an end names it only when its operator said
// so. Without one in common the error Is transport.ErrIncompatible.
func Agree(features []string) (Suite, error) {
	for _, s := range []Suite{Clear, AES128GCM, AES256GCM} {
		if slices.Contains(features, s.Feature()) {
			return s, nil
		}
	}
	return 0, fmt.Errorf("seal: %w: no suite in common among the features %.200q", transport.ErrIncompatible, features)
}

// keySize is the bytes of a key; 0 for a suite that has none.
func (s Suite) keySize() int {
	switch s {
	case AES128GCM:
		return 16
	case AES256GCM:
		return 32
	}
	return 0
}

// Direction says who seals and who opens.
type Direction uint8

// Directions of a lane.
const (
	ToServer Direction = iota // the end that dialled seals
	ToClient                  // the end that accepted seals
)
