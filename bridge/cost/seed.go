package cost

import "strings"

// Row is a bridged request of another system, as it published it: DeepSeek-V4-Flash, FP8
// on two GB10 with tensor parallelism 2 for prefill, MXFP4 on an M3 Ultra for decoding,
// 10 GbE between them, files carried after the prefill (pd-bridge, September 2026). All
// times are in seconds; the parts follow each other.
type Row struct {
	Tokens   int     `json:"tokens"`
	Native   float64 `json:"native"`   // time to the first token of the decoder alone
	Bridged  float64 `json:"bridged"`  // the same, bridged, as published
	Engine   float64 `json:"engine"`   // the prefill
	Flush    float64 `json:"flush"`    // from its end to all that it left being in files
	Pull     float64 `json:"pull"`     // carrying the files
	Assemble float64 `json:"assemble"` // making and writing blocks
	Decoder  float64 `json:"decoder"`  // from there to the first token
}

// Between is what lies between the engine and the decoder: what pdlink does otherwise.
func (r Row) Between() float64 { return r.Flush + r.Pull + r.Assemble }

// Sum is the row's parts together.
func (r Row) Sum() float64 { return r.Engine + r.Between() + r.Decoder }

// Reference are the requests that the other system published with their parts. The last
// one's parts are differences of its log's times.
func Reference() []Row {
	return []Row{
		{24_924, 42.6, 28.2, 17.1, 0.6, 0.5, 3.8, 6.1},
		{82_505, 205.8, 72.9, 42.2, 15.5, 1.0, 7.5, 6.5},
		{105_401, 245.6, 75.5, 53.7, 1.4, 1.2, 8.6, 10.4},
		{241_416, 732.3, 200.3, 137.6, 17.4, 2.7, 19.0, 23},
	}
}

// HeldOut are other requests of that system, of a later version, that no series here was
// made of: a check of the model. The native times are of other requests of nearby sizes.
// What the decoder took is what is left of the whole.
func HeldOut() []Row {
	return []Row{
		{17_095, 42.6, 17.2, 8.67, 0.61, 0.37, 3.75, 3.80},
		{79_314, 205.8, 56.4, 40.14, 0.92, 1.08, 7.14, 7.12},
		{236_377, 732.3, 187.6, 135.89, 4.79, 2.47, 18.75, 25.70},
	}
}

// ReferenceError is how far the model may be from the bridged times that it was made of,
// as a part of them: the parts were published with a digit or two.
const ReferenceError = 0.005

// HeldOutError is the same for those of HeldOut that are longer than any prompt of
// Reference is short. The shortest, below all of Reference, is up to a fifth too slow in
// the model: that system read it at 1,972 tokens/s, and 25K tokens in another run at 1,458.
const HeldOutError = 0.03

// Source says where a number is from.
type Source string

// Known are the times of a known model's engines, where somebody has published them.
type Known struct {
	Engines
	Source  Source
	Origins Origins
}

// KnownEngines is what is known of the engines of a model by name, as Synthetic has it;
// false: nothing is.
func KnownEngines(model string) (Known, bool) {
	switch strings.ToLower(model) {
	case "deepseek-v4-flash":
		k := Known{Source: "published by pd-bridge, September 2026: 2 × GB10 (FP8, TP 2) prefill, M3 Ultra (MXFP4) decodes"}
		for _, r := range Reference() {
			k.Prefill = append(k.Prefill, Point{r.Tokens, r.Engine})
			k.Native = append(k.Native, Point{r.Tokens, r.Native})
			k.Cached = append(k.Cached, Point{r.Tokens, r.Decoder})
		}
		k.Native[len(k.Native)-1].Tokens = 241_155 // the native run of that row was a little shorter
		k.Prefill = append(k.Prefill, Point{713_666, 615.6})
		k.Origins = Origins{Elsewhere, Elsewhere, Elsewhere}
		return k, true
	case "qwen3-32b":
		return Known{
			Engines: Engines{
				Prefill: Series{{33_207, 42.61}, {62_337, 108.57}},
				Native:  Series{{33_207, 196}, {68_616, 601.27}},
			},
			Origins: Origins{Elsewhere, Elsewhere, Computed},
			Source:  "published by pd-bridge, September 2026: one GB10 (bf16) prefills, M2 Ultra decodes; 196 s is derived there from 169 tokens/s",
		}, true
	}
	return Known{}, false
}
