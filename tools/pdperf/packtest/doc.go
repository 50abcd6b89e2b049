// Package packtest holds the tests of what coding payloads is worth: real connections
// over cables with a rate, between two network namespaces of this host, that carry the
// blocks of a recorded case.
package packtest
