package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge/facts"
	"pdlink/bridge/prefill"
	"pdlink/bridge/prefill/calls"
	"pdlink/kernels"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
)

func newDoctorPrefill(std streams, config *configFlags, f *prefillFlags, from *cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   "prefill --to URL",
		Short: "look at a prefill host",
		Long: `prefill looks at what "pdlink prefill" needs, with that command's flags: the memory, the
engine and its connector, the way to the decode host and that it is the right one, and
whether what the engine has loaded is the decoder's model.

While no pdlink prefill runs here it takes that one's place at the socket for a moment:
the engine's workers look for one twice a second, and say what they have loaded.

` + statusText,
		Example: `  pdlink doctor prefill --to tcp://10.0.0.5:7411 --model Qwen3-32B-8bit=Qwen/Qwen3-32B`,
		Args:    wants(0),
	}
	settle := borrow(c, from, config)
	c.RunE = func(*cobra.Command, []string) error {
		if err := settle(); err != nil {
			return err
		}
		if err := f.check(flagsOf(from)); err != nil {
			return err
		}
		d := &prefillDoctor{f: f, given: flagsOf(from)}
		defer d.close()
		return examine(c.Context(), std, f.asJSON, d.checks())
	}
	return c
}

// prefillDoctor looks at a prefill host. Its checks run one after the other.
type prefillDoctor struct {
	f     *prefillFlags
	given given

	keys   linkkeys.Choice
	keysOK bool
	conn   transport.Conn    // to the decode host; nil: there is none
	served []string          // the engine's ids
	models []string          // the decoder's ids of what would be announced
	text   *facts.Text       // what the engine makes of the probe text; nil: it does not say
	loaded *facts.Facts      // what workers say; nil: nothing
	made   *facts.Projection // of the weights; nil: there are none
	seen   *calls.Opinion    // the decode host's; nil: none
	off    time.Duration     // how far its clock is ahead
	way    time.Duration     // how long asking for it took
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

func (d *prefillDoctor) checks() []check {
	return []check{
		{"limits", 0, func(context.Context) []finding { return fileLimits() }},
		{"memory", 0, d.lookMemory},
		{"keys", 0, d.lookKeys},
		{"link", 0, func(ctx context.Context) []finding { return lookLink(ctx, d.f.url) }},
		{"peer", 0, d.lookPeer},
		{"engine", 0, d.lookEngine},
		{"connector", 0, d.lookConnector},
		{"ring", 0, d.lookRing},
		{"weights", weightsTime, d.lookWeights},
		{"match", 0, d.lookMatch},
		{"clock", 0, d.lookClock},
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
		return []finding{bad(err.Error(), "give --slots a smaller number")}
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
	found, choice := keysFindings(ctx, &d.f.keys, d.given, d.f.url)
	d.keys = choice
	d.keysOK = !slices.ContainsFunc(found, func(f finding) bool { return f.Level == levelFail })
	if choice.Store != nil && len(choice.Store.Peers()) == 0 {
		found = append(found, bad("no peer is paired, so the decode host is not believed", "paste here what `pdlink keys show` prints on the decode host"))
	}
	return found
}

// lookPeer connects to the decode host.
func (d *prefillDoctor) lookPeer(ctx context.Context) []finding {
	if !d.keysOK {
		return nil
	}
	c, err := d.f.url.open(linkOptions{keys: d.keys}).Dial(ctx, d.f.url.addr)
	if err != nil {
		return []finding{bad(dialError(ctx, err).Error(), peerCure(err))}
	}
	d.conn = c
	x := c.Facts()
	text := fmt.Sprintf("%s answers", d.f.url)
	switch {
	case x.Proven && x.Sealed:
		text += fmt.Sprintf(", it is %s, and data is sealed", x.Peer)
	case x.Proven:
		text += fmt.Sprintf(", it is %s, and data is not sealed", x.Peer)
	case x.Peer != "":
		text += fmt.Sprintf(" and calls itself %s", x.Peer)
	}
	return []finding{good("%s", text)}
}

// peerCure is what to do about a dial that failed, beside what its error says.
func peerCure(err error) string {
	switch {
	case linkkeys.Refused(err):
		return "pair the two hosts again: `pdlink keys show` here and there, and run each line on the other"
	case errors.Is(err, transport.ErrIncompatible):
		return "install the same release on both hosts"
	}
	return "start `pdlink decode` there with --listen on an address of that host, and let its firewall pass the port"
}

// lookEngine looks whether the engine answers, what it serves and how long prompts may be.
func (d *prefillDoctor) lookEngine(ctx context.Context) (found []finding) {
	if d.f.engineURL == nil {
		d.models = servedIDs(nil, d.f.mapped, true)
		return []finding{good("another host of group %s asks it", d.f.group)}
	}
	engine := prefill.NewVLLM(d.f.engineURL, os.Getenv(engineKeyEnv))
	defer engine.Close() //nolint:errcheck // it cannot fail
	served, err := engine.Models(ctx)
	if err != nil {
		cure := "start it, or name its address with --engine"
		if strings.Contains(err.Error(), fmt.Sprint(http.StatusUnauthorized)) {
			cure = "set $" + engineKeyEnv + " to the engine's API key"
		}
		return []finding{bad(fmt.Sprintf("%s does not answer: %v", d.f.engineURL, err), cure)}
	}
	d.served, d.models = served, servedIDs(served, d.f.mapped, false)
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
	if ids, err := engine.Tokens(ctx, served[0], facts.ProbeText()); err == nil {
		d.text = facts.TextOf(ids)
	}
	for _, id := range served {
		if n, err := engine.MaxModelLen(ctx, id); err == nil {
			found = append(found, good("%s takes prompts of up to %d tokens", id, n))
		} else {
			found = append(found, doubt(fmt.Sprintf("how long prompts of %s may be is not known: %v", id, err), "see --max-model-len of vLLM: longer ones are left to the decoder"))
		}
	}
	return found
}

// servedIDs are the decoder's ids of what an engine serves.
func servedIDs(served []string, mapped map[string]string, all bool) (ids []string) {
	for _, id := range served {
		if mapped[id] == "" {
			ids = append(ids, id)
		}
	}
	for decoder, engine := range mapped {
		if all || slices.Contains(served, engine) {
			ids = append(ids, decoder)
		}
	}
	slices.Sort(ids)
	return ids
}

// lookConnector takes a sidecar's place for a moment, and hears what workers say.
func (d *prefillDoctor) lookConnector(ctx context.Context) []finding {
	o := d.options()
	var refused []string
	faults := make(chan error, 16)
	o.OnFault = func(err error) {
		select {
		case faults <- err:
		default:
		}
	}
	o.Reclaim = -1
	server, err := prefill.Listen(ctx, o)
	switch {
	case errors.Is(err, prefill.ErrInUse):
		return []finding{good("a pdlink prefill runs and has %s: it says itself whether workers are connected, and compares what they have loaded", d.f.socket)}
	case errors.Is(err, prefill.ErrUnavailable):
		return []finding{bad(err.Error(), "prefill hosts run Linux")}
	case errors.Is(err, fs.ErrNotExist):
		return []finding{bad(err.Error(), fmt.Sprintf("make the directory %s, which this user and the engine's must be able to enter", filepath.Dir(d.f.socket)))}
	case err != nil:
		return []finding{bad(err.Error(), "choose a --socket in a directory that is this user's")}
	}
	defer server.Close() //nolint:errcheck // nothing is under way
	d.await(ctx, server)
	for len(faults) > 0 {
		refused = append(refused, (<-faults).Error())
	}
	n, expected := server.Workers(), server.Expected()
	d.loaded, _ = server.Loaded()
	switch {
	case n == 0 && len(refused) > 0:
		return []finding{bad("workers came and were refused: "+strings.Join(slices.Compact(refused), "; "), "run the engine as this user, or name its user with --uid")}
	case n == 0:
		return []finding{bad(fmt.Sprintf("no worker of the engine came to %s within %v", d.f.socket, workerTime),
			"start vLLM with the connector (--kv-transfer-config, see `pdlink prefill --help`) and with this socket")}
	case n < expected:
		return []finding{bad(fmt.Sprintf("%d of %d workers came", n, expected), "see the engine's log for the others")}
	}
	found := []finding{good("%s of the engine came", count(n, "worker"))}
	if d.loaded != nil && len(d.loaded.Unknown) > 0 {
		found = append(found, doubt("not all is known of what they have loaded: "+silenceText(d.loaded), "update pdlink-vllm"))
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
		if n := server.Workers(); n > 0 && n >= server.Expected() && settled {
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
	if ring < 2*block {
		return []finding{bad(text, "give --slots a greater number: two blocks have to fit")}
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
func (d *prefillDoctor) lookWeights(context.Context) []finding {
	v4 := d.loaded != nil && d.loaded.Kind == facts.KindDSV4
	if d.f.weights == "" {
		if v4 {
			return []finding{bad("DeepSeek-V4 needs the decoder's projection weights", "`pdlink-vllm weights export` on the decoder's checkpoint, then --weights FILE --model-config config.json")}
		}
		return nil
	}
	p, err := d.f.projection()
	if err != nil {
		return []finding{bad(err.Error(), "export them again: `pdlink-vllm weights export`")}
	}
	defer p.Weights.Close() //nolint:errcheck // it was read
	if d.made, err = p.Facts(); err != nil {
		return []finding{bad(err.Error(), "export them again: `pdlink-vllm weights export`")}
	}
	found := []finding{good("%s: %d layers, numerics %s", d.f.weights, len(d.made.Layers), d.f.numerics)}
	if d.f.numerics == kernels.Ideal.String() {
		found = append(found, doubt("--numerics ideal is no decoder's", "leave it out, unless you measure"))
	}
	return append(found, noteFindings(d.f.weights)...)
}
