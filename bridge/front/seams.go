package front

import (
	"context"
	"net/http"

	"pdlink/transport"
)

// Planner is the decoder's plug-in: it knows the decoder's template, tokenizer,
// block format and store. It may be used concurrently.
type Planner interface {
	// Plan says what a request would need. It sees the request's path, headers
	// (for the decoder's API key) and body, which it must not keep or change.
	// The error Is ErrUnplannable when the request is none that can be planned.
	Plan(ctx context.Context, r Ask) (Plan, error)

	// Adopt tells the decoder that blocks [from, to) of all that a plan has are in its
	// store; it has those before from already. It returns how many, from the first
	// of the chain on, it will use: with from 0 all of them are looked at, otherwise
	// those before from are taken for granted. The headers are those of the request
	// that the plan was made for.
	Adopt(ctx context.Context, h http.Header, p Plan, from, to int) (Adoption, error)
}

// Starter is a Planner that can tell a decoder that is starting from one that is slow.
type Starter interface {
	// Starting says what the decoder does before it can plan anything, for people; ""
	// where it could, or does not say. The headers are those of the request that waits.
	Starting(ctx context.Context, h http.Header) string
}

// Ask is a request to be planned.
type Ask struct {
	Path   string
	Header http.Header
	Body   []byte
}

// Plan is what the decoder would do with a request, and what it lacks for it.
type Plan struct {
	Model   string  // the decoder's id of the model
	Tokens  int     // tokens of the whole prompt
	Block   int     // tokens of a block
	Present int     // blocks, from the first, that the decoder holds already
	Blocks  int     // blocks that are worth having: at least one token stays uncovered
	Tail    int     // tokens behind them that come as one more block, unfinished; 0: none do
	IDs     []int32 // tokens of those blocks and of the tail; not needed where all blocks are there
	Kind    string  // what Meta is, for the receiver
	Meta    []byte  // the transfer's plan, as it travels
	Key     string  // names the last block wanted and all before it: equal plans have equal keys
}

// All is how many blocks travel at most: the tail is the last of them.
func (p Plan) All() int {
	if p.Tail > 0 {
		return p.Blocks + 1
	}
	return p.Blocks
}

// Covered is how many tokens the decoder would find with n of all blocks of the plan.
func (p Plan) Covered(n int) int {
	if n > p.Blocks {
		return p.Blocks*p.Block + p.Tail
	}
	return n * p.Block
}

// Adoption is what the decoder made of blocks in its store.
type Adoption struct {
	Blocks int    // usable, from the first of the chain on
	Reason string // why it is not all of them, for people
}

// Engine has prompts read. It may be used concurrently.
type Engine interface {
	// Name tells engines apart, for people and in records.
	Name() string

	// Serves reports whether it reads prompts for a model, by the decoder's id. It is
	// called without the lock that Front.Add takes, so it may call that. It is asked for
	// each request, and waited for: it must return soon.
	Serves(model string) bool

	// Prefill has the job's tokens read and returns when its blocks are in the
	// decoder's store, as far as they came: fewer than the job has are no error.
	// The end of the context ends the work down to the engine. An error says that
	// this engine cannot be used now; the result then still says what came.
	Prefill(ctx context.Context, j Job) (Result, error)
}

// Job is a prompt to be read.
type Job struct {
	Transfer transport.ID
	Plan     Plan
}

// Result is what a prefill gave.
type Result struct {
	Blocks int    // of the chain, visible in the decoder's store
	Bytes  uint64 // payload that travelled
	State  string // the receiver's verdict: complete, partial …
	Reason string // why it is not complete, for people
	Sealed bool   // all of it travelled encrypted
	Hosts  []Sent // what each prefill host sent of it
}

// Sent is what one prefill host sent.
type Sent struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"` // payload that arrived
}
