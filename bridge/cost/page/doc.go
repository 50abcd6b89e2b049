// Package page shows what links cost to a person: [Write] makes one HTML file of a
// [cost.Report], with plots, without scripts and without anything from a network.
package page
