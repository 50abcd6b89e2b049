#include "handle.cuh"
#include "numerics.cuh"

#include <math.h>

namespace pd {

namespace {

// Entry i of the decoder's stored table; it multiplies with its reciprocal.
float frequency(const pdproj_config *c, bool compressed, int i) {
	const double base = compressed ? c->compress_rope_theta : c->rope_theta;
	const float exponent = (float)(2 * i) / (float)c->rope_dim;
	float inv = 1.0f / (float)pow(base, (double)exponent);
	if (!compressed || c->yarn_factor == 0) return 1.0f / inv;
	const double dims = c->rope_dim;
	const double fast = dims * log(c->yarn_original / (c->yarn_beta_fast * 2 * M_PI)) / (2 * log(base));
	const double slow = dims * log(c->yarn_original / (c->yarn_beta_slow * 2 * M_PI)) / (2 * log(base));
	const double low = fmax(floor(fast), 0);
	double high = fmin(ceil(slow), dims - 1);
	if (low == high) high += 0.001;
	float ramp = ((float)i - (float)low) / (float)(high - low);
	ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
	const float keep = 1.0f - ramp;
	inv = (inv / (float)c->yarn_factor) * (1.0f - keep) + inv * keep;
	return 1.0f / inv;
}

// Arrays of one layer must not share bytes: the kernel writes them in no order.
int check_offsets(const pdproj_config *c, int i, pdproj_error *err) {
	const pdproj_layer &l = c->layer[i];
	for (int64_t o : l.offset) {
		if (o >= 0 && (o % 8 || o > INT64_MAX / 4)) return fail(err, PDPROJ_EARG, "layer %d: offset %lld is not a multiple of 8", i, (long long)o);
	}
	for (int a = 0; a < arrays; a++) {
		for (int b = 0; b < arrays; b++) {
			const int64_t begin = l.offset[a], n = array_bytes(c, l.ratio, a);
			if (a == b || begin < 0 || n == 0 || l.offset[b] < begin || l.offset[b] >= begin + n || array_bytes(c, l.ratio, b) == 0) continue;
			return fail(err, PDPROJ_EARG, "layer %d: the offsets of arrays %d and %d overlap", i, a, b);
		}
	}
	return PDPROJ_OK;
}

struct Bound {
	const char *name;
	int64_t v, low, high, multiple;
};

int check_layer(const pdproj_config *c, int i, pdproj_error *err) {
	const pdproj_layer &l = c->layer[i];
	if (l.ratio != 0 && l.ratio != 4 && l.ratio != 128) return fail(err, PDPROJ_EARG, "layer %d has ratio %d, want 0, 4 or 128", i, l.ratio);
	if (l.ratio && c->block_tokens % l.ratio) {
		return fail(err, PDPROJ_EARG, "block of %d tokens is no multiple of ratio %d (layer %d)", c->block_tokens, l.ratio, i);
	}
	const bool pool = l.comp_kv && l.comp_gate && l.comp_norm && l.comp_ape;
	const bool index = l.idx_kv && l.idx_gate && l.idx_norm && l.idx_ape;
	if (!l.kv || !l.kv_norm || (l.ratio && !pool) || (l.ratio == 4 && !index)) {
		return fail(err, PDPROJ_EARG, "layer %d lacks weights for ratio %d", i, l.ratio);
	}
	if (l.ratio == 4 && (c->index_dim < 8 || c->index_dim > max_dim || c->index_dim % 8 || c->index_dim < c->rope_dim)) {
		return fail(err, PDPROJ_EARG, "index_dim is %d, want a multiple of 8 from rope_dim to %d", c->index_dim, max_dim);
	}
	return check_offsets(c, i, err);
}

} // namespace

int64_t array_bytes(const pdproj_config *c, int ratio, int a) {
	const int64_t rows = ratio ? c->block_tokens / ratio : 0;
	switch (a) {
	case window_rows:
	case window_pre: return 2ll * c->window * c->head_dim;
	case pooled: return 2 * rows * c->head_dim;
	case prev_kv:
	case prev_gate: return ratio == 4 ? 2ll * 4 * 2 * c->head_dim : 0;
	case idx_pooled: return ratio == 4 ? 2 * rows * c->index_dim : 0;
	default: return ratio == 4 ? 2ll * 4 * 2 * c->index_dim : 0;
	}
}

void inverse_frequencies(const pdproj_config *c, bool compressed, float *out) {
	for (int i = 0; i < c->rope_dim / 2; i++) out[i] = 1.0f / frequency(c, compressed, i);
}

int check(const pdproj_config *c, pdproj_error *err) {
	if (!c || c->size != sizeof *c) return fail(err, PDPROJ_EARG, "config has another size: build the caller against this pdproj.h");
	const Bound bounds[] = {
		{"layers", c->layers, 1, 4096, 1},
		{"hidden", c->hidden, 8, 1 << 17, 8},
		{"head_dim", c->head_dim, 8, max_dim, 8},
		{"rope_dim", c->rope_dim, 2, c->head_dim, 2},
		{"window", c->window, 1, 1 << 14, 1},
		{"block_tokens", c->block_tokens, c->window, 1 << 20, 1},
		{"max_tokens", c->max_tokens, 1, 1 << 17, 1},
		{"max_requests", c->max_requests, 1, 1024, 1},
		{"max_positions", c->max_positions, 1, 1 << 24, 1},
		{"blocks of one call", c->max_tokens / (c->block_tokens > 0 ? c->block_tokens : 1) + 2, 1, max_blocks, 1},
	};
	for (const Bound &b : bounds) {
		if (b.v < b.low || b.v > b.high || b.v % b.multiple) {
			return fail(err, PDPROJ_EARG, "%s is %lld, want %lld to %lld in steps of %lld", b.name, (long long)b.v, (long long)b.low,
				(long long)b.high, (long long)b.multiple);
		}
	}
	const double reals[] = {c->norm_eps, c->rope_theta, c->compress_rope_theta};
	for (double v : reals) {
		if (!(v > 0 && v < 1e15)) return fail(err, PDPROJ_EARG, "norm_eps and the rope bases must be positive");
	}
	if (c->yarn_factor != 0 && !(c->yarn_factor >= 1 && c->yarn_original >= 1 && c->yarn_beta_fast > 0 && c->yarn_beta_slow > 0)) {
		return fail(err, PDPROJ_EARG, "yarn parameters must be positive, or the factor 0");
	}
	if (c->flags & ~(uint32_t)(PDPROJ_DIRECT | PDPROJ_STAGED | PDPROJ_SERIAL | PDPROJ_PACKED)) {
		return fail(err, PDPROJ_EARG, "flags %#x are unknown: leave them out, or use a newer library", c->flags);
	}
	if ((c->flags & PDPROJ_DIRECT) && (c->flags & (PDPROJ_STAGED | PDPROJ_PACKED))) return fail(err, PDPROJ_EARG, "direct excludes staged and packed");
	if (!c->layer) return fail(err, PDPROJ_EARG, "config has no layers");
	for (int i = 0; i < c->layers; i++) {
		if (const int code = check_layer(c, i, err)) return code;
	}
	return PDPROJ_OK;
}

} // namespace pd

int pdproj_leaf(int32_t op, const float *in, float *out, uint64_t n) {
	pd::Power table[pd::powers];
	for (int j = 0; j < pd::powers; j++) table[j] = pd::power(j);
	for (uint64_t i = 0; i < n; i++) {
		float s, c;
		switch (op) {
		case 'e': out[i] = pd::exp0(in[i], table); break;
		case 'q': out[i] = pd::quotient(in[i], 3.0f, pd::inverse(3.0f)); break;
		case 's': pd::sincos32(in[i], &s, &c), out[i] = s; break;
		case 'c': pd::sincos32(in[i], &s, &c), out[i] = c; break;
		case 'b': out[i] = pd::round16(in[i]); break;
		case 'r': out[i] = pd::scale_of((double)in[i], 1.0, 1e-6f); break;
		default: return PDPROJ_EARG;
		}
	}
	return PDPROJ_OK;
}

int pdproj_frequencies(const pdproj_config *config, int32_t compressed, float *out, pdproj_error *err) {
	if (!config || config->size != sizeof *config || config->rope_dim < 2 || config->rope_dim > 2 * pd::max_dim) {
		return pd::fail(err, PDPROJ_EARG, "config has another size, or no rope_dim");
	}
	pd::inverse_frequencies(config, compressed != 0, out);
	return PDPROJ_OK;
}
