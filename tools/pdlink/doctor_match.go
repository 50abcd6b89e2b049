package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pdlink/bridge/prefill/calls"
	"pdlink/tools/cmdline"
	"pdlink/transport"
)

// maxNote bounds the file beside exported weights.
const maxNote = 1 << 20

// noteFindings holds a file of weights against what was noted when it was exported.
func noteFindings(ctx context.Context, weights string) []finding {
	note := strings.TrimSuffix(weights, filepath.Ext(weights)) + ".json"
	b, err := cmdline.ReadFile(note, maxNote, nil)
	if err != nil {
		return []finding{doubt(fmt.Sprintf("%s is not there, so the file cannot be held against what was exported", note), "copy it along with the weights")}
	}
	var said struct {
		SHA256 string `json:"sha256"`
	}
	if err := json.Unmarshal(b, &said); err != nil || len(said.SHA256) != 2*sha256.Size {
		return []finding{doubt(note+" has no sha256", "export the weights again: `pdlink-vllm weights export`")}
	}
	f, err := os.Open(weights)
	if err != nil {
		return []finding{bad(err.Error(), "let this user read it")}
	}
	defer f.Close() // it was read
	h := sha256.New()
	if _, err := io.Copy(h, heedful{ctx, f}); ctx.Err() != nil {
		return []finding{doubt(fmt.Sprintf("%s was not read to its end in time, so it was not held against what was exported", weights), "look again once nothing else reads from that disk")}
	} else if err != nil {
		return []finding{bad(err.Error(), "copy the weights again")}
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != said.SHA256 {
		return []finding{bad(fmt.Sprintf("%s is not the file that was exported: sha256 %s, noted %s", weights, got[:16], said.SHA256[:16]), "copy it again, with its .json")}
	}
	return []finding{good("it is the file that was exported, sha256 %s", said.SHA256[:16])}
}

// heedful reads until its context ends.
type heedful struct {
	ctx context.Context
	io.Reader
}

// Read implements io.Reader.
func (r heedful) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}

// lookMatch asks the decode host what it makes of this one.
func (d *prefillDoctor) lookMatch(ctx context.Context) []finding {
	if d.conn == nil {
		return nil
	}
	o, err := d.ask(ctx)
	switch {
	case errors.Is(err, transport.ErrRefused):
		return []finding{doubt(fmt.Sprintf("the decode host does not say what it makes of this one: %v", err),
			"start `pdlink decode` there with --decoder, of the same release as here")}
	case err != nil:
		return []finding{bad(fmt.Sprintf("the decode host was asked and does not answer: %v", err), "see the log of `pdlink decode`")}
	}
	d.seen = &o
	found := d.buildFindings(o)
	switch {
	case d.loaded == nil && d.busy:
		return append(found, d.besideFindings(o)...)
	case d.loaded == nil:
		found = append(found, d.idFindings(o)...)
		return append(found, doubt("what the engine has loaded is not known here, so nothing was compared", "mend what keeps the engine's workers away, see connector"))
	}
	for _, model := range d.models {
		m := o.Models[model]
		switch {
		case !m.Known:
			found = append(found, d.unknownFinding(model)...)
		case m.Refused != "":
			found = append(found, bad(fmt.Sprintf("%s is not the decoder's model: %s", model, m.Refused), "load the same checkpoint at both ends, and look at its rope_scaling and --dtype"))
		case len(m.Findings) > 0:
			found = append(found, doubt(fmt.Sprintf("%s is the decoder's model as far as both ends tell: %s", model, strings.Join(m.Findings, "; ")), "see the reason behind each"))
		default:
			found = append(found, good("%s is the decoder's model, in everything that is compared", model))
		}
	}
	return found
}

// buildFindings compares the releases of the two hosts.
func (d *prefillDoctor) buildFindings(o calls.Opinion) []finding {
	switch mine := thisBuild().Version; {
	case o.Build == "":
		return nil
	case o.Build != mine:
		return []finding{doubt(fmt.Sprintf("the decode host runs pdlink %s, and this is %s", o.Build, mine), "install the same release on both hosts, unless you are just about to")}
	}
	return []finding{good("the decode host runs pdlink %s, as this host", o.Build)}
}

// besideFindings is what can be said beside a pdlink prefill that runs: the decode host
// is asked about the models by their ids, and what was not compared is named, with where
// it was and how to have it looked at here.
func (d *prefillDoctor) besideFindings(o calls.Opinion) []finding {
	found := d.idFindings(o)
	if d.waits != "" {
		return append(found, doubt("the pdlink prefill that runs here takes no prompts, so nothing was compared yet", "see connector"))
	}
	return append(found, doubt("what the engine has loaded the pdlink prefill knows that runs here: layers, data type, rotation, weights and tokenizer were not compared by doctor",
		"read the lines \"prefill host "+d.f.name+"\" in the log of `pdlink decode`, which compared them when it connected; or stop pdlink prefill while doctor looks (`sudo systemctl stop pdlink-prefill`), and start it again"))
}

// idFindings is what the decode host says of the models' ids, where nothing more can be
// compared.
func (d *prefillDoctor) idFindings(o calls.Opinion) (found []finding) {
	for _, model := range d.models {
		if o.Models[model].Known {
			found = append(found, good("%s: the decoder has loaded a model of this id", model))
			continue
		}
		found = append(found, d.unknownFinding(model)...)
	}
	return found
}

// unknownFinding is the finding on an id of which the decode host knows nothing; none on
// the engine's own name of what another id means.
func (d *prefillDoctor) unknownFinding(model string) []finding {
	if len(d.f.mapped) > 0 && d.f.mapped[model] == "" {
		return nil
	}
	return []finding{doubt(fmt.Sprintf("%s: the decoder has not loaded a model of this id, or wants an API key to say what it is", model),
		"name the decoder's id with --model DECODER=ENGINE; load it there; set $"+decoderKeyEnv+" for pdlink decode")}
}

// ask opens a probe and returns the answer.
func (d *prefillDoctor) ask(ctx context.Context) (o calls.Opinion, err error) {
	loaded := d.loaded
	if loaded != nil && d.made != nil {
		doc := *loaded
		doc.Projection = d.made
		loaded = &doc
	}
	meta, err := d.service.Host(d.served, loaded, d.text).Encode()
	if err != nil {
		return o, err
	}
	began := time.Now()
	out, err := d.conn.Open(ctx, transport.Request{ID: transport.NewID(), Kind: calls.KindProbe, Replayable: true, Meta: meta})
	if err != nil {
		return o, err
	}
	d.way = time.Since(began)
	defer out.Cancel("that is all")
	if o, err = calls.ParseOpinion(out.Answer()); err == nil {
		d.off = o.Time().Sub(began.Add(d.way / 2))
	}
	return o, err
}

// lookClock compares the two hosts' clocks.
func (d *prefillDoctor) lookClock(context.Context) []finding {
	if d.seen == nil {
		return nil
	}
	text := fmt.Sprintf("the decode host's is %v ahead of this one's, to %v", d.off.Round(time.Millisecond), (d.way / 2).Round(time.Millisecond))
	if d.off.Abs() > clockSlack+d.way {
		return []finding{doubt(text, "set both by NTP: logs of the two hosts cannot be read together")}
	}
	return []finding{good("%s", text)}
}
