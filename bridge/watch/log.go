package watch

import (
	"context"
	"log/slog"
	"strings"
)

// log writes the line of a transfer.
func (t Transfer) log(l *slog.Logger) {
	level := slog.LevelInfo
	if t.State != "complete" && t.State != "skipped" {
		level = slog.LevelWarn
	}
	l.LogAttrs(context.Background(), level, "transfer",
		slog.String("transfer", t.Transfer), slog.String("state", t.State), slog.String("reason", t.Reason),
		slog.Int("blocks", t.Blocks), slog.Int("total", t.Total), slog.Int("present", t.Present), slog.Int("tokens", t.Tokens),
		slog.Uint64("bytes", t.Bytes), slog.Uint64("saved", t.Saved()), slog.Uint64("bad", t.Bad), slog.Float64("seconds", t.Seconds), slog.Float64("engine_seconds", t.Engine),
		slog.String("links", linkWords(t.Links)), slog.String("peers", strings.Join(t.Peers, ", ")))
}

// log writes the line of a request.
func (r Request) log(l *slog.Logger) {
	level := slog.LevelInfo
	if r.Outcome == "declined" || r.Outcome == "partial" || r.Less {
		level = slog.LevelWarn
	}
	cached := -1
	if r.Cached != nil {
		cached = *r.Cached
	}
	l.LogAttrs(context.Background(), level, "request",
		slog.String("id", r.ID), slog.String("path", r.Path), slog.String("model", r.Model), slog.String("outcome", r.Outcome), slog.String("reason", r.Reason),
		slog.Int("tokens", r.Tokens), slog.Int("promised", r.Promised), slog.Int("cached_tokens", cached), slog.Int("status", r.Status),
		slog.Float64("plan_seconds", r.Plan), slog.Float64("bridge_seconds", r.Bridge), slog.Float64("adopt_seconds", r.Adopt), slog.Float64("first_seconds", r.First), slog.Float64("seconds", r.Seconds))
}
