// Package facts says what a model effectively is, and compares that of two
// engines that have loaded it: the decoder's and a prefill engine's. Blocks of
// another model, of other weights or of another rotation are adopted like right
// ones, and answers are wrong without an error; so a difference is a reason to
// read nothing with that engine.
//
// FACTS.md is the specification of the document ([Facts]). Both engines make it
// of the loaded model, not of its configuration file: engines read files
// differently, and that is one of the differences that are looked for.
package facts
