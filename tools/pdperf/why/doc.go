// Package why says in one sentence what limited a link, from what both ends
// counted while they moved bytes. It measures nothing and knows no sockets: [Limit]
// is a pure function of [Input], which may have come from another host.
//
//	v := why.Limit(why.Input{Seconds: 10, Bytes: n, Line: 1.17e9, Sender: ..., Receiver: ..., Flow: why.FlowOf(deltas)})
//	fmt.Println("Limited by:", v) // "loss: 1.02 % of the segments were sent again, …"
package why
