package front

// Running is how many requests for prompts are under way: of those that Transfers lists
// later, the ones whose body has been read and whose answer has not ended. A body that is
// still coming is not counted, and neither is what is no request for a prompt.
func (f *Front) Running() int {
	f.records.mu.Lock()
	defer f.records.mu.Unlock()
	return f.records.running
}
