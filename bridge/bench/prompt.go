package bench

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// prompt is a text that is like no other from its first words on, with a marker in its middle.
type prompt struct {
	text   string
	marker string // digits
}

// words are common and short, so that every tokenizer has about one token for each.
const words = `the of and to in is that it was for on are as with his they at be this from have or by one had not but what
all were when we there can an your which their said if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who now people my made over did down only way find use may
water long little very after words called just where most know get through back much before go good new write our used me man too any
day same right look think also around another came come work three word must because does part even place well such here take why
things help put years different away again off went old number great tell men say small every found still between name should home big
give air line set own under read last never us left end along while might next sound below saw something thought both few those always
looked show large often together asked house world going want school important until form food keep children feet land side without boy
once animals life enough took sometimes four head above kind began almost live page got earth need far hand high year mother light parts
country father let night following picture being study second eyes soon times story boys since white days ever paper hard near sentence
better best across during today others however sure means knew try told young miles sun ways thing whole hear example heard several`

// question ends a prompt. What is asked for is long, so that a rate can be told.
const question = "What is the access code of this document? Write the code first. Then retell the document from its beginning, sentence by sentence, and do not stop early."

// newPrompt makes the prompt of a seed with a number of words. Equal arguments make equal prompts. leading has
// it end with the beginning of the answer, for models that only go on with a text.
func newPrompt(seed uint64, n int, leading bool) prompt {
	r := rand.New(rand.NewPCG(seed, 0x62656e6368)) // no secret: it must be repeatable
	list := strings.Fields(words)
	p := prompt{marker: fmt.Sprintf("%08d", 10_000_000+r.IntN(90_000_000))}
	var b strings.Builder
	b.Grow(7*n + 500)
	fmt.Fprintf(&b, "%016x is the number of this document.\n", r.Uint64())
	said := false
	for i := 0; i < n || !said; {
		if !said && i >= n/2 {
			fmt.Fprintf(&b, "The access code of this document is %s.", p.marker)
			said = true
		}
		for k, length := 0, 6+r.IntN(10); k < length && i < n; k++ {
			word := list[r.IntN(len(list))]
			if k == 0 {
				word = strings.ToUpper(word[:1]) + word[1:]
			}
			b.WriteString(" " + word)
			i++
		}
		b.WriteByte('.')
	}
	b.WriteString("\n\n" + question)
	if leading {
		b.WriteString("\nThe access code of this document is")
	}
	p.text = b.String()
	return p
}

// found reports that an answer names the marker, whatever it puts between its digits.
func (p *prompt) found(answer string) bool {
	return strings.Contains(strings.NewReplacer(" ", "", "-", "", ",", "", ".", "", "_", "").Replace(answer), p.marker)
}

// fields are a request for an answer to the prompt.
func (p *prompt) fields(api API, answer int) (path string, fields map[string]any) {
	fields = map[string]any{
		"max_tokens": answer, "temperature": 0, "stream": true, "stream_options": map[string]any{"include_usage": true},
	}
	if api == Completions {
		fields["prompt"] = p.text
		return "completions", fields
	}
	fields["messages"] = p.messages()
	return "chat/completions", fields
}

func (p *prompt) messages() []map[string]string {
	return []map[string]string{{"role": "user", "content": p.text}}
}
