package calls

// The kinds of the two transfers.
const (
	// KindHost is opened by a prefill host and stays open while it takes calls.
	KindHost = "pdlink/host"

	// KindCall is opened by the decode host.
	KindCall = "pdlink/engine"
)

// Version is the version of both that this package speaks.
const Version = 1

// Limits on what the other end says, each with its reason.
const (
	// MaxTokens bounds a prompt: four times a context of a million. Its ids are
	// 16 MiB, which is what a call may cost before anything is known of it.
	MaxTokens = 1 << 22

	// MaxModels bounds the models of a host: an engine has one, or a few names
	// for it.
	MaxModels = 256

	// maxName bounds a model's or a host's name in bytes.
	maxName = 1 << 10

	// maxText bounds a host's description in bytes: names of a usual length, and facts;
	// and a result: some hundred for each of 64 workers.
	maxText = 64 << 10

	// maxFacts bounds what a host says of its model, as package facts does.
	maxFacts = 32 << 10

	// maxWorkers bounds the workers of a result, as the engine socket does.
	maxWorkers = 64

	// maxReason bounds a text for people in bytes.
	maxReason = 1 << 10
)
