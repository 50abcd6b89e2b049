package front

// Running is how many requests have no answer yet.
func (f *Front) Running() int {
	f.records.mu.Lock()
	defer f.records.mu.Unlock()
	return f.records.running
}
