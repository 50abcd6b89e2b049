package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge/facts"
	"pdlink/bridge/prefill"
	"pdlink/bridge/prefill/calls"
	"pdlink/kernels"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
)

func newDoctorPrefill(std streams, p patients) *cobra.Command {
	f, from := p.prefill, p.prefills
	c := &cobra.Command{
		Use:   "prefill --to URL",
		Short: "look at a prefill host",
		Long: `prefill looks at what "pdlink prefill" needs, with that command's flags: the memory, the
engine and its connector, the way to the decode host and that it is the right one, and
whether what the engine has loaded is the decoder's model.

While no pdlink prefill runs here it takes that one's place at the socket for up to 3
seconds: the engine's workers look for one twice a second, and say what they have loaded.
One that is started meanwhile finds the socket in use. Beside a pdlink prefill that runs
it looks at all but that: the decode host says whether that one takes prompts or what it
waits for, and what was not compared is named, with where it was.

` + statusText,
		Example: `  pdlink doctor prefill --to tcp://10.0.0.5:7411 --model Qwen3-32B-8bit=Qwen/Qwen3-32B`,
		Args:    wants(0),
	}
	settle := borrow(c, from, p.config)
	c.RunE = func(*cobra.Command, []string) error {
		if err := settle(); err != nil {
			return err
		}
		if err := f.check(flagsOf(from)); err != nil {
			return err
		}
		d := &prefillDoctor{f: f, given: flagsOf(from)}
		defer d.close()
		return examine(c.Context(), std, f.asJSON, d, d.checks())
	}
	return c
}

// prefillDoctor looks at a prefill host. Its checks run one after the other.
type prefillDoctor struct {
	f     *prefillFlags
	given given

	keys    linkkeys.Choice
	keysOK  bool
	conn    transport.Conn         // to the decode host; nil: there is none
	service prefill.ServiceOptions // what says what would be announced; its Engine is closed
	served  []string               // the engine's ids
	models  []string               // the decoder's ids of what would be announced
	text    *facts.Text            // what the engine makes of the probe text; nil: it does not say
	busy    bool                   // a pdlink prefill runs and has the socket
	came    bool                   // workers came: the connector runs in the engine
	version string                 // of the engine; "": it does not say
	unsaid  error                  // why not
	waits   string                 // what that one waits for, as the decode host heard; "": nothing, or it is not known
	loaded  *facts.Facts           // what workers say; nil: nothing
	made    *facts.Projection      // of the weights; nil: there are none
	seen    *calls.Opinion         // the decode host's; nil: none
	off     time.Duration          // how far its clock is ahead
	way     time.Duration          // how long asking for it took
}

func (d *prefillDoctor) close() {
	if d.conn != nil {
		d.conn.Close() //nolint:errcheck // nothing is under way
	}
	d.keys.Close() //nolint:errcheck // it cannot fail
}

func (d *prefillDoctor) options() prefill.Options {
	o := prefill.Options{Socket: d.f.socket, Slots: d.f.slots, MemFloor: int64(d.f.memFloor) << 20}
	for _, id := range d.f.uids {
		o.UIDs = append(o.UIDs, uint32(id))
	}
	return o
}

func (*prefillDoctor) checks() []check[prefillDoctor] {
	return []check[prefillDoctor]{
		{"limits", 0, func(*prefillDoctor, context.Context) []finding { return fileLimits() }},
		{"memory", 0, (*prefillDoctor).lookMemory},
		{"keys", 0, (*prefillDoctor).lookKeys},
		{"link", 0, (*prefillDoctor).lookLinks},
		{"peer", 0, (*prefillDoctor).lookPeers},
		{"engine", 0, (*prefillDoctor).lookEngine},
		{"connector", 0, (*prefillDoctor).lookConnector},
		{"version", 0, (*prefillDoctor).lookVersion},
		{"ring", 0, (*prefillDoctor).lookRing},
		{"weights", weightsTime, (*prefillDoctor).lookWeights},
		{"match", 0, (*prefillDoctor).lookMatch},
		{"clock", 0, (*prefillDoctor).lookClock},
		{"watch", 0, func(d *prefillDoctor, ctx context.Context) []finding { return d.f.watching.look(ctx) }},
	}
}

const (
	// weightsTime is how long it may take to read the weights: 0.8 GB from a disk that
	// is busy loading a model.
	weightsTime = time.Minute

	// workerTime is how long the engine's workers are waited for, which look for a
	// sidecar every 0.4 s.
	workerTime = 3 * time.Second
)

// lookMemory looks whether memory is free, and may be locked.
func (d *prefillDoctor) lookMemory(context.Context) (found []finding) {
	o := d.options()
	ring, err := o.RingBytes()
	if err != nil {
		return []finding{bad(fmt.Sprintf("--slots %d: %v", d.f.slots, err), fmt.Sprintf("give --slots a smaller number, or leave it out, for %d", defaultSlots))}
	}
	found = lockLimits(ring)
	free, err := o.Available()
	if err != nil {
		return found
	}
	floor := max(o.Floor(), 0)
	text := fmt.Sprintf("%s are available, prompts are cut short below %s", bytesText(uint64(free)), bytesText(uint64(floor)))
	switch {
	case free < floor:
		found = append(found, bad(text, "give the engine less (--gpu-memory-utilization of vLLM), or lower --mem-floor"))
	case free < floor+2*ring:
		found = append(found, doubt(text, "give the engine a little less (--gpu-memory-utilization of vLLM)"))
	default:
		found = append(found, good("%s", text))
	}
	return found
}

// lookKeys looks at this host's key and its peers.
func (d *prefillDoctor) lookKeys(ctx context.Context) []finding {
	found, choice := keysFindings(ctx, &d.f.keys, d.given, d.f.ways...)
	d.keys = choice
	d.keysOK = !slices.ContainsFunc(found, func(f finding) bool { return f.Level == levelFail })
	if choice.Store != nil && len(choice.Store.Peers()) == 0 {
		found = append(found, bad("no peer is paired, so the decode host is not believed", "run here the line that `pdlink keys show` prints on the decode host (`pdlink keys init` where it has no key yet)"))
	}
	return found
}

// lookEngine looks whether the engine answers, what it serves and how long prompts may be.
func (d *prefillDoctor) lookEngine(ctx context.Context) (found []finding) {
	d.service = prefill.ServiceOptions{Name: d.f.name, Models: d.f.mapped, Group: d.f.member}
	if d.f.engineURL == nil {
		d.models = d.service.Host(nil, nil, nil).Models
		return []finding{good("another host of group %s asks it", d.f.group)}
	}
	engine := prefill.NewVLLM(d.f.engineURL, os.Getenv(engineKeyEnv))
	defer engine.Close() // it cannot fail
	d.service.Engine = engine
	served, err := engine.Models(ctx)
	if err != nil {
		cure := "start it, or name its address with --engine"
		if errors.Is(err, prefill.ErrUnauthorized) {
			cure = "set $" + engineKeyEnv + " to the engine's API key"
		}
		return []finding{bad(fmt.Sprintf("%s does not answer: %v", d.f.engineURL, err), cure)}
	}
	d.served, d.models = served, d.service.Host(served, nil, nil).Models
	found = append(found, good("%s serves %s", d.f.engineURL, servedList(served)))
	for decoder, engine := range d.f.mapped {
		if !slices.Contains(served, engine) {
			found = append(found, bad(fmt.Sprintf("--model %s=%s: the engine serves %s", decoder, engine, servedList(served)),
				"name one of these, or start the engine with --served-model-name"))
		}
	}
	if len(d.models) == 0 {
		return append(found, bad("nothing that it serves is named", "give --model DECODER=ENGINE"))
	}
	d.version, d.unsaid = engine.Version(ctx)
	d.text = prefill.ProbeText(ctx, engine, served)
	for _, id := range served {
		if n, err := engine.MaxModelLen(ctx, id); err == nil {
			found = append(found, good("%s takes prompts of up to %d tokens", id, n))
		} else {
			found = append(found, doubt(fmt.Sprintf("how long prompts of %s may be is not known: %v", id, err), "see --max-model-len of vLLM: longer ones are left to the decoder"))
		}
	}
	return found
}

// await waits until the engine's workers are there and have said what they have loaded.
func (d *prefillDoctor) await(ctx context.Context, server *prefill.Server) {
	ctx, cancel := context.WithTimeout(ctx, workerTime)
	defer cancel()
	look := time.NewTicker(workerTime / 60)
	defer look.Stop()
	for {
		_, settled := server.Loaded()
		if n, expected := server.Present(); n > 0 && n >= expected && settled {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// lookRing looks whether the blocks that are open at a time fit into shared memory.
func (d *prefillDoctor) lookRing(context.Context) []finding {
	f := d.loaded
	if f == nil || f.Layers == 0 {
		return nil
	}
	ring, err := d.options().RingBytes()
	if err != nil {
		return nil
	}
	block := blockBytes(f)
	text := fmt.Sprintf("%s, a block has about %s", bytesText(uint64(ring)), bytesText(uint64(block)))
	if slots := int64(max(d.f.slots, 1)); d.f.slots > 0 && ring < 2*block {
		least := (2*block*slots + ring - 1) / ring
		return []finding{bad(text, fmt.Sprintf("two blocks have to fit: give --slots %d or more (or leave it out, for %d)", least, defaultSlots))}
	}
	return []finding{good("%s", text)}
}

// blockBytes is about what a decoder's block of a model has: 256 tokens of plain keys
// and values, 2,048 of DeepSeek-V4.
func blockBytes(f *facts.Facts) int64 {
	if f.Kind == facts.KindDSV4 {
		const perToken = 240 // a layer's pools and carries, for 43 layers 9,842
		return int64(f.Layers) * perToken * 2048
	}
	size := int64(2)
	if f.DType == "F32" {
		size = 4
	}
	return 2 * 256 * int64(f.Layers) * int64(f.KVHeads) * int64(f.HeadDim) * size
}

// lookWeights reads the projection's weights.
func (d *prefillDoctor) lookWeights(ctx context.Context) []finding {
	v4 := d.loaded != nil && d.loaded.Kind == facts.KindDSV4
	if d.f.weights == "" {
		if v4 {
			return []finding{bad("DeepSeek-V4 needs the decoder's projection weights", "run `pdlink-vllm weights export CHECKPOINT --out FILE.safetensors` on the decoder's checkpoint, copy what it makes here, and give --weights FILE.safetensors --model-config CHECKPOINT/config.json")}
		}
		return nil
	}
	p, err := d.f.projection()
	if err != nil {
		return []finding{bad(err.Error(), "export them again: `pdlink-vllm weights export CHECKPOINT --out FILE.safetensors`")}
	}
	defer p.Weights.Close() // it was read
	if d.made, err = p.Facts(); err != nil {
		return []finding{bad(err.Error(), "export them again: `pdlink-vllm weights export CHECKPOINT --out FILE.safetensors`")}
	}
	found := []finding{good("%s: %d layers, numerics %s", d.f.weights, len(d.made.Layers), d.f.numerics)}
	if d.f.numerics == kernels.Ideal.String() {
		found = append(found, doubt("--numerics ideal is no decoder's", "leave it out, unless you measure"))
	}
	return append(found, noteFindings(ctx, d.f.weights)...)
}
