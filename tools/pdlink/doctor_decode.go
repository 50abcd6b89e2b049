package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge/facts"
	"pdlink/bridge/omlx"
	"pdlink/bridge/omlx/plugin"
	"pdlink/tools/linkkeys"
	"pdlink/transport/keys"
)

func newDoctorDecode(std streams, p patients) *cobra.Command {
	f, from, load := p.decode, p.decodes, ""
	c := &cobra.Command{
		Use:   "decode {--store DIR | --decoder URL}",
		Short: "look at a decoder's host",
		Long: `decode looks at what "pdlink decode" needs, with that command's flags: the decoder, its
plug-in and the models that it has loaded, the store, the addresses, the keys, the
limits. $` + decoderKeyEnv + ` has the decoder's API key, if it needs one.

It writes two small files into the store and removes them. With --load the decoder
loads a model, which stays loaded; nothing is generated.

` + statusText,
		Example: `  pdlink doctor decode --decoder http://127.0.0.1:8000
  pdlink doctor decode --decoder http://127.0.0.1:8000 --load Qwen3-32B-8bit`,
		Args: wants(0),
	}
	settle := borrow(c, from, p.config)
	c.Flags().StringVar(&load, "load", "", "have the decoder load the model `ID` and look at it: without it those that are loaded are looked at")
	c.RunE = func(*cobra.Command, []string) error {
		if err := settle(); err != nil {
			return err
		}
		u, err := f.check(flagsOf(from))
		if err != nil {
			return err
		}
		d := &decodeDoctor{f: f, url: u, given: flagsOf(from), load: load}
		defer d.close()
		return examine(c.Context(), std, f.asJSON, d, d.checks())
	}
	return c
}

// decodeDoctor looks at a decoder's host. Its checks run one after the other.
type decodeDoctor struct {
	f     *decodeFlags
	url   linkURL
	given given
	load  string

	keys    linkkeys.Choice
	decoder *decoderClient      // nil: there is none, or it does not answer
	info    *plugin.Status      // nil: its plug-in does not answer
	models  []*plugin.ModelInfo // that it has loaded, as far as they could be looked at
}

func (d *decodeDoctor) close() {
	d.keys.Close() //nolint:errcheck // it cannot fail
}

func (*decodeDoctor) checks() []check[decodeDoctor] {
	return []check[decodeDoctor]{
		{"limits", 0, func(*decodeDoctor, context.Context) []finding { return fileLimits() }},
		{"keys", 0, (*decodeDoctor).lookKeys},
		{"listen", 0, (*decodeDoctor).lookListen},
		{"front", 0, (*decodeDoctor).lookFront},
		{"decoder", 0, (*decodeDoctor).lookDecoder},
		{"plug-in", 0, (*decodeDoctor).lookPlugin},
		{"models", loadTime, (*decodeDoctor).lookModels},
		{"canary", 0, (*decodeDoctor).lookCanary},
		{"facts", 0, (*decodeDoctor).lookFacts},
		{"store", 0, (*decodeDoctor).lookStore},
		{"clock", 0, (*decodeDoctor).lookClock},
		{"watch", 0, func(d *decodeDoctor, ctx context.Context) []finding { return d.f.watching.look(ctx) }},
	}
}

// loadTime is how long a model may take to be loaded: a disk reads 100 GB in minutes.
const loadTime = 10 * time.Minute

// lookKeys looks at this host's key and its peers.
func (d *decodeDoctor) lookKeys(ctx context.Context) []finding {
	found, choice := keysFindings(ctx, &d.f.keys, d.given, d.url)
	d.keys = choice
	if choice.Store != nil && len(choice.Store.Peers()) == 0 {
		found = append(found, bad("no peer is paired, so nobody can connect", "run here the line that `pdlink keys show` prints on the prefill host (`pdlink keys init` where it has no key yet)"))
	}
	return found
}

// keysFindings opens the keys that a command would, and says what it finds.
func keysFindings(ctx context.Context, f *linkkeys.Flags, g given, ways ...linkURL) (found []finding, c linkkeys.Choice) {
	places, u, exposed := make([]linkkeys.Place, 0, len(ways)), ways[0], error(nil)
	for _, w := range ways {
		places = append(places, w.place())
		if err := w.place().Exposed(ctx); exposed == nil && err != nil {
			u, exposed = w, err
		}
	}
	c, err := f.Choose(ctx, g, func(error) {}, places...)
	switch {
	case err != nil:
		return []finding{bad(err.Error(), keysCure(f, err))}, c
	case c.Store == nil && errors.Is(exposed, linkkeys.ErrExposed):
		return []finding{bad(fmt.Sprintf("%s needs keys, and this host has none", u), "run `pdlink keys init` here, then on the other host the line that it prints, and here the line that pair prints there")}, c
	case c.Store == nil && exposed != nil:
		return []finding{bad(exposed.Error(), "name a host that this one can look up, or its address")}, c
	case c.Store == nil:
		return []finding{good("none are needed for %s", u)}, c
	}
	names := make([]string, 0, len(c.Store.Peers()))
	for _, p := range c.Store.Peers() {
		names = append(names, p.Name)
	}
	found = append(found, good("%s, peers: %s", c.Text(), listText(names)))
	if c.Encrypt == linkkeys.EncryptOff {
		found = append(found, doubt("--encrypt off: where the other end says so too, whoever can reach the cable can read and change the data", "leave --encrypt out"))
	}
	return found, c
}

// keysCure is what to do about keys that cannot be used.
func keysCure(f *linkkeys.Flags, err error) string {
	dir, _ := linkkeys.DirOf(f.Dir) // where there is none, the error says what to do
	switch {
	case errors.Is(err, keys.ErrNoIdentity):
		return "run " + dir.Command("init") + " here, then on the other host the line that it prints, and here the line that pair prints there"
	case errors.Is(err, keys.ErrUnknownPeer):
		return "name one of those that " + dir.Command("list") + " shows, or run here the line that `pdlink keys show` prints on that host"
	case errors.Is(err, keys.ErrPermissions):
		return "run the command that it names, as the user whose keys these are"
	}
	return "mend the file that it names, or make a new key with " + dir.Command("init --replace") + " and pair again"
}

// lookDecoder looks whether the decoder answers, and takes the key.
func (d *decodeDoctor) lookDecoder(ctx context.Context) []finding {
	if d.f.door.url == nil {
		return nil
	}
	c := newDecoderClient(d.f.door.url)
	status, err := c.models(ctx)
	switch {
	case err != nil:
		return []finding{bad(fmt.Sprintf("%s does not answer: %v", d.f.door.url, err), "start it, or name its address with --decoder")}
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		why := "it wants an API key"
		if c.key != "" {
			why = "it refuses the API key of $" + decoderKeyEnv
		}
		return []finding{bad(fmt.Sprintf("%s answers: %s", d.f.door.url, why), "set $"+decoderKeyEnv+" to the decoder's API key, to have the rest looked at")}
	case status != http.StatusOK:
		return []finding{bad(fmt.Sprintf("%s answers %d to /v1/models", d.f.door.url, status), "name the address of oMLX's own API with --decoder")}
	}
	d.decoder = c
	return []finding{good("%s answers", d.f.door.url)}
}

// lookPlugin looks at the plug-in: that it is there, and what it can plan.
func (d *decodeDoctor) lookPlugin(ctx context.Context) []finding {
	if d.decoder == nil {
		return nil
	}
	info, err := d.decoder.plugin.Status(ctx, d.decoder.own())
	if err != nil {
		return []finding{bad(err.Error(), "install the plug-in into the decoder's environment (`pip install ./bridge/omlx/plugin` in a checkout of pdlink), start it again, and look with `python -m pdlink_omlx check`")}
	}
	d.info = info
	found := []finding{good("pdlink-omlx %s in oMLX %s (MLX %s, mlx-lm %s)", info.Plugin, info.Decoder["omlx"], info.Decoder["mlx"], info.Decoder["mlx_lm"])}
	var paths []string
	for path, why := range info.Plans {
		if why != "" {
			paths = append(paths, path+": "+why)
		}
	}
	if slices.Sort(paths); len(paths) > 0 {
		what := doubt("requests of these paths are not bridged: "+strings.Join(paths, "; "), "update pdlink-omlx to a release that knows this decoder")
		if len(paths) == len(info.Plans) {
			what.Level = levelFail
		}
		found = append(found, what)
	}
	return found
}

// lookModels looks which models are loaded, and loads the one that is asked for.
func (d *decodeDoctor) lookModels(ctx context.Context) []finding {
	if d.info == nil {
		return nil
	}
	var found []finding
	if d.load != "" {
		if err := d.decoder.plugin.Load(ctx, d.decoder.own(), d.load); err != nil {
			found = append(found, bad(fmt.Sprintf("%s cannot be loaded: %v", d.load, err), "see the decoder's log"))
		} else if info, err := d.decoder.plugin.Status(ctx, d.decoder.own()); err == nil {
			d.info = info
		}
	}
	var loaded, others []string
	for _, m := range d.info.Models {
		if m.Loaded {
			loaded = append(loaded, m.ID)
		} else {
			others = append(others, m.ID)
		}
	}
	if len(loaded) == 0 && d.load == "" {
		return append(found, doubt(fmt.Sprintf("none is loaded (there are %s), so blocks, facts and store are not looked at", listText(others)),
			"send the decoder a request, or give --load ID"))
	}
	for _, id := range loaded {
		info, err := d.decoder.plugin.Info(ctx, d.decoder.own(), id)
		if err != nil {
			found = append(found, bad(fmt.Sprintf("%s: %v", id, err), cureOf(err)))
			continue
		}
		d.models = append(d.models, info.Model)
		found = append(found, good("%s is loaded: blocks of %d tokens, %s each, format %s", id, info.Model.BlockTokens, bytesText(uint64(info.Model.BlockBytes)), info.Model.Format))
	}
	return found
}

// lookCanary proves that this program writes what the decoder does.
func (d *decodeDoctor) lookCanary(context.Context) (found []finding) {
	for _, m := range d.models {
		spec, err := m.Native.Spec()
		if err == nil {
			_, err = omlx.NewLayout(spec)
		}
		if err != nil {
			found = append(found, bad(fmt.Sprintf("%s: %v", m.ID, err), "nothing is bridged for it: update pdlink to a release that knows this decoder's blocks"))
			continue
		}
		found = append(found, good("%s: a block of the decoder's own is what pdlink writes, byte for byte", m.ID))
	}
	return found
}

// lookFacts looks whether the decoder can say what its models are.
func (d *decodeDoctor) lookFacts(context.Context) (found []finding) {
	for _, m := range d.models {
		f := m.Told()
		if len(f.Unknown) == 0 {
			found = append(found, good("%s: %d tensors, rotations of %d layers: %s", m.ID, len(f.Tensors), len(f.Rope), factsText(f)))
			continue
		}
		found = append(found, doubt(fmt.Sprintf("%s: not all is known of what it is (%s)", m.ID, silenceText(f)),
			"update pdlink-omlx; until then prefill hosts may be refused, or taken unseen with --allow-unknown"))
	}
	return found
}

// silenceText is why not all is known of a model.
func silenceText(f *facts.Facts) string {
	words := make([]string, 0, len(f.Unknown))
	for field, why := range f.Unknown {
		words = append(words, strings.TrimPrefix(field+": "+why, ": "))
	}
	slices.Sort(words)
	return strings.Join(words, "; ")
}

// factsText is a model in a few words.
func factsText(f *facts.Facts) string {
	return fmt.Sprintf("%d layers of %s, %d key/value heads of %d, %s", f.Layers, f.Kind, f.KVHeads, f.HeadDim, f.DType)
}

// lookClock compares this host's clock with the decoder's word for it: they are one,
// unless the decoder is somewhere else, where its store cannot be written.
func (d *decodeDoctor) lookClock(ctx context.Context) []finding {
	if d.decoder == nil {
		return nil
	}
	began := time.Now()
	_, _, header, err := fetch(ctx, d.decoder.url("v1", "models"), d.decoder.key)
	if err != nil {
		return nil
	}
	then, err := http.ParseTime(header.Get("Date"))
	if err != nil {
		return nil
	}
	if off := time.Until(then).Abs(); off > time.Since(began)+clockSlack {
		return []finding{doubt(fmt.Sprintf("the decoder's clock and this host's are %v apart: is it another host?", off.Round(time.Second)),
			"run pdlink decode on the decoder's host")}
	}
	return []finding{good("as the decoder's, to the second")}
}

// clockSlack is how far clocks may be apart: an HTTP date has no fractions, and nothing
// but the reading of logs depends on more.
const clockSlack = 2 * time.Second
