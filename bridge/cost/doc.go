// Package cost turns what was measured of links into what they cost a user: milliseconds
// for a token, seconds for prompts of usual lengths, and the length of a prompt from which
// having another machine read it is faster than reading it where it is answered.
//
// It computes only: nothing here measures, reads a file or knows a link. [Series] is how
// long an engine takes, [Engines.Bridged] is the time to the first token of a bridged
// prompt, [Engines.BreakEven] where that becomes less than the decoder's own, and [Make]
// the whole [Report], whose JSON has a schema, [Schema].
package cost
