// Package metrics is what Prometheus reads of a process: figures of a watch.Watch, in a
// registry of their own. README.md beside this file lists every name, its unit and its
// labels; a test holds the two, and the dashboard, to each other.
//
// Labels have few values: links and outcomes are closed lists, and peers are named only
// where a key proves the name.
package metrics
