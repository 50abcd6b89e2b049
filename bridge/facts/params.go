package facts

// Version is the version of the document that this package reads and writes.
const Version = 1

// Limits on a document, each with its reason.
const (
	// MaxSize bounds a document in bytes: one of DeepSeek-V4 has some 12,000, and
	// two of them have to fit into an announcement.
	MaxSize = 32 << 10

	// maxTensors bounds the fingerprints: a layer has some fifteen, and six layers
	// are looked at.
	maxTensors = 256

	// maxLayers bounds the layers of a model, and those whose rotation is told.
	maxLayers = 1024

	// maxNumber bounds widths and counts.
	maxNumber = 1 << 24

	// maxText bounds a text in bytes: names and reasons.
	maxText = 300

	// maxSamples bounds the pairs and the positions of a rotation.
	maxSamples = 64
)

// samplePairs is how many pairs of a rotation are told at most, less one: a wrong base
// shows in every pair but the first, wrong yarn factors in a run of them, and nine
// pairs at four positions are 2 KB.
const samplePairs = 8

// shownIDs is how many ids of the probe text are told: people see from a few of them
// whether two tokenizers have anything in common.
const shownIDs = 8

// shownFindings is how many findings a text names: one says what is wrong, a second
// tells a wrong model from a wrong setting.
const shownFindings = 3

// Tolerances of a comparison, each with its reason.
const (
	// turnShare and turnLeast are how much the angle of a pair may differ, below one
	// radian: an engine that keeps its tables in bf16 has sines with 8 bits, one in
	// f16 has steps of 6e-8 near zero.
	turnShare = 0.01
	turnLeast = 1e-6

	// tableStep is how much a cosine or sine may differ: 2^-9 for a table in bf16,
	// and 0.003 for an angle of 32,767 radians computed in f32.
	tableStep = 0.01

	// epsShare is how much an epsilon may differ: it is a decimal number that went
	// through f32.
	epsShare = 1e-3
)
