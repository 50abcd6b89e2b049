package bench

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// Sentinels of Run.
var (
	// ErrOptions reports options that do not make sense. Nothing was asked.
	ErrOptions = errors.New("the benchmark's options")
	// ErrTarget reports an endpoint that does not answer, refuses the key or does not
	// serve the model, before anything was measured.
	ErrTarget = errors.New("the endpoint cannot be measured")
	// ErrAnswer reports an answer that is not what the OpenAI API promises, or too large.
	ErrAnswer = errors.New("the answer cannot be read")
	// ErrCut reports a stream that ended before it said that it was over.
	ErrCut = errors.New("the answer broke off")
)

// Arm is a way to have a prompt answered.
type Arm string

// The arms, in the order of tables.
const (
	Native  Arm = "native"  // cold, by the decoder itself
	Bridged Arm = "bridged" // cold, through the front
	Engine  Arm = "engine"  // cold, the bridged prompt's ids by the prefill engine, one token
	Warm    Arm = "warm"    // the bridged prompt again; without a front the native one
)

// Arms returns all arms.
func Arms() []Arm { return []Arm{Native, Bridged, Engine, Warm} }

// API is which of a decoder's endpoints is asked.
type API string

// The endpoints.
const (
	Chat        API = "chat"        // /v1/chat/completions
	Completions API = "completions" // /v1/completions
)

// Options of Run. Of Front, Native and Engine at least one is required; every other zero
// value works.
type Options struct {
	// Base URLs, without /v1. Native may be any endpoint that speaks the OpenAI API.
	Front, Native, Engine *url.URL

	// DecoderKey goes to Front and Native, EngineKey to Engine, as bearer tokens. "": none.
	// No redirect is followed, so they go nowhere else.
	DecoderKey, EngineKey string

	// Model is the decoder's id of the model, EngineModel the engine's. "": Model's one
	// where the engine lists it, else the only one that is listed.
	Model, EngineModel string

	// API of Front and Native; "" is Chat.
	API API

	// Tokens are lengths of prompts, from MinTokens to MaxTokens each, at most MaxLengths of
	// them; none means DefaultTokens. What is made is as near as counting allows, and rows
	// say the length.
	Tokens []int

	// Arms that are measured; none means all that the URLs allow.
	Arms []Arm

	Runs   int // of each length and arm, at most MaxRuns; 0 is DefaultRuns
	WarmUp int // runs of the shortest length that do not count; 0 is 1, less is none

	// Answer is how many tokens an answer may have, 2 or more; 0 is DefaultAnswer.
	Answer int

	// Seed of all prompts: equal seeds are equal prompts, so a seed that was used before is
	// no longer cold.
	Seed uint64

	// Timeout of one request; 0 is DefaultTimeout.
	Timeout time.Duration

	// Version is what the report calls the program.
	Version string

	// OnRow, where set, is told of each request when it has ended, in order, also of those that
	// do not count; what a bridged one comes to against others of its round is in the report
	// only. OnLine is told of a round in one line for people. OnStep is told how many requests
	// of all have ended. None is called concurrently.
	OnRow  func(Row)
	OnLine func(string)
	OnStep func(done, total int)

	// Transport is cloned for all calls; nil means http.DefaultTransport's settings, without a proxy.
	Transport *http.Transport
}

// Defaults and limits of Options.
const (
	DefaultRuns    = 3                // a median needs three
	DefaultAnswer  = 128              // enough tokens to tell a rate to 1 %
	DefaultTimeout = 60 * time.Minute // a Mac reads 700,000 tokens in most of it
	MinTokens      = 64               // marker and question are 50
	MaxTokens      = 4 << 20
	MaxLengths     = 32
	MaxRuns        = 100
	MaxAnswer      = 65536
)

// DefaultTokens are the lengths of prompts where none are chosen: the shortest that a front bridges
// by default, and where it begins to pay.
func DefaultTokens() []int { return []int{8000, 32000} }

// checked fills in what is left out.
func (o Options) checked() (Options, error) {
	if len(o.Tokens) == 0 {
		o.Tokens = DefaultTokens()
	}
	o.Tokens = slices.Compact(slices.Sorted(slices.Values(o.Tokens)))
	o.API = API(or(string(o.API), string(Chat)))
	o.Runs, o.WarmUp = orInt(o.Runs, DefaultRuns), max(orInt(o.WarmUp, 1), 0)
	o.Answer = orInt(o.Answer, DefaultAnswer)
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
		}
	}
	bad(o.Front == nil && o.Native == nil && o.Engine == nil, "no endpoint is given")
	bad(o.API != Chat && o.API != Completions, "API %q: want %s or %s", o.API, Chat, Completions)
	bad(len(o.Tokens) > MaxLengths, "%d lengths: want at most %d", len(o.Tokens), MaxLengths)
	for _, n := range o.Tokens {
		bad(n < MinTokens || n > MaxTokens, "a prompt of %d tokens: want %d to %d", n, MinTokens, MaxTokens)
	}
	bad(o.Runs < 1 || o.Runs > MaxRuns, "%d runs: want 1 to %d", o.Runs, MaxRuns)
	bad(o.WarmUp > MaxRuns, "%d runs that do not count: want at most %d", o.WarmUp, MaxRuns)
	bad(o.Answer < 2 || o.Answer > MaxAnswer, "answers of %d tokens: want 2 to %d", o.Answer, MaxAnswer)
	bad(o.Timeout < 0, "a timeout of %v", o.Timeout)
	for _, a := range o.Arms {
		bad(!slices.Contains(Arms(), a), "arm %q: want one of %v", a, Arms())
		if why := o.cannot(a); slices.Contains(Arms(), a) && why != "" {
			bad(true, "arm %s: %s", a, why)
		}
	}
	return o, errors.Join(errs...)
}

// cannot is why an arm cannot be measured with the endpoints that are given; "": it can.
func (o *Options) cannot(a Arm) string {
	switch {
	case a == Native && o.Native == nil:
		return "the decoder's own URL is not given"
	case a == Bridged && o.Front == nil:
		return "the front's URL is not given"
	case a == Engine && o.Engine == nil:
		return "the engine's URL is not given"
	case a == Warm && o.Front == nil && o.Native == nil:
		return "neither the front's URL nor the decoder's is given"
	}
	return ""
}

// wants reports that an arm is measured.
func (o *Options) wants(a Arm) bool {
	return o.cannot(a) == "" && (len(o.Arms) == 0 || slices.Contains(o.Arms, a))
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func orInt(n, otherwise int) int {
	if n == 0 {
		return otherwise
	}
	return n
}
