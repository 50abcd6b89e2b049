package calls

// The kinds of the transfers.
const (
	// KindHost is opened by a prefill host and stays open while it takes calls.
	KindHost = "pdlink/host"

	// KindWait is opened by a prefill host and stays open while it takes no calls yet.
	KindWait = "pdlink/wait"

	// KindCall is opened by the decode host.
	KindCall = "pdlink/engine"

	// KindProbe is opened by a prefill host that wants to know what the decode host
	// makes of it, without being taken for an engine.
	KindProbe = "pdlink/probe"
)

// Version is the version of all of them that this package speaks.
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
	// a result: some hundred for each of 64 workers; and an opinion, which is cut to it.
	maxText = 64 << 10

	// maxWorkers bounds the workers of a result, as the engine socket does.
	maxWorkers = 64

	// maxReason bounds a text for people in bytes.
	maxReason = 1 << 10

	// leastReason is how short the reasons of an opinion may be cut in bytes: what
	// differs stands in front, and those of MaxModels models fit even where JSON takes
	// six bytes for each.
	leastReason = 16

	// maxFindings bounds the findings of a model that travel: people read the first.
	maxFindings = 8
)
