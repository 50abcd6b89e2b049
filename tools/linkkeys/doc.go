// Package linkkeys is what the command lines of the programs say about peer keys:
// where the keys are, which peer is meant, whether data is sealed, and what a user
// does when the two ends do not come together. So the rules and the words are the
// same in all of them. It opens keys and no links.
package linkkeys
