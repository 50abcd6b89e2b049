// Package calls is what the front door and the prefill hosts say to each other,
// over the connection that a prefill host made: which models a host reads prompts
// for ([Host]), what the other end makes of that ([Opinion]), a prompt to be read
// ([Call]), and how that ended ([Result]). CALLS.md is the specification. The package
// encodes and decodes, and knows neither of the two ends.
package calls
