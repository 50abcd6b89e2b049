package omlx

// UsableBlocks is how many whole blocks a store may hold of a prompt so that the
// decoder can use all of them. A decoder must compute at least one token of the
// prompt. Plain KV is trimmed by one token where blocks cover all of it, so every
// whole block is usable. State of a boundary, which DeepSeek-V4's layers have,
// cannot be trimmed: a prompt that its blocks cover completely is read again from
// the start, so the last block of an exact multiple must not be there.
func (s Spec) UsableBlocks(promptTokens int) int {
	if promptTokens < 1 || s.BlockTokens < 1 {
		return 0
	}
	if s.Kind == KindDSV4 {
		return (promptTokens - 1) / s.BlockTokens
	}
	return promptTokens / s.BlockTokens
}
