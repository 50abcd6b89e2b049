// Package bench measures what a bridge is worth to a user, end to end: cold prompts of
// chosen lengths, each with a seed of its own, are sent to a decoder by itself (native),
// through a front door (bridged), to the prefill engine alone with the same token ids
// (engine) and through the front again (warm). What came of each request is a [Row]: time to the first
// token, total time, decode rate, cached tokens, the verdict, whether a marker in
// the middle of the prompt was found, and what the host said of heat and memory. The
// headline is overhead: time to the first token through the front minus the engine's time
// on the same ids.
//
// It speaks the OpenAI API and knows no links. What cannot be measured with the
// endpoints that are given, or with what they tell, is in [Report.Missing], with why.
// Ids come from the decoder's plug-in where it has one, else from the engine's tokenizer.
package bench
