/* C ABI of libpdproj: the decoder's finished cache from a prefill engine's
 * attention input, on an NVIDIA GPU. It is the twin of package kernels, whose
 * profile mlx-metal defines what is correct.
 *
 * Rules for all functions:
 *  - They return PDPROJ_OK or an error code and, where err is not NULL, a text of
 *    at most PDPROJ_TEXT-1 bytes that names the fix. No exceptions, no globals, no
 *    output, no signal handlers.
 *  - After create nothing is allocated, neither on the host nor on the device, and
 *    the device is never synchronised. Exceptions say so: pdproj_wait and
 *    pdproj_carry wait for what they name.
 *  - A handle may be used by several threads: a lock orders their calls. Work
 *    given to different streams of one handle is ordered by events, because the
 *    workspace is shared. Two handles are independent.
 *  - The calling thread has the device that it had afterwards. Where that is another one than the handle's and
 *    has no context in the process, CUDA gives it one, which takes memory there: threads that only work
 *    for one GPU make it their current device first.
 *  - Streams are cudaStream_t of the caller's primary context (the address that
 *    torch calls cuda_stream); NULL is the legacy default stream.
 *  - All bf16 values are bit patterns, all sizes bytes unless said otherwise.
 */
#ifndef PDPROJ_H
#define PDPROJ_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PDPROJ_API __attribute__((visibility("default")))

/* Version of this interface; a library of another version is not usable. */
#define PDPROJ_ABI 2
#define PDPROJ_TEXT 256

enum {
	PDPROJ_OK = 0,
	PDPROJ_EARG = 1,    /* an argument cannot be; the text says which */
	PDPROJ_ENODEV = 2,  /* no usable GPU or driver */
	PDPROJ_ELIB = 3,    /* cuBLASLt is missing or too old */
	PDPROJ_EMEM = 4,    /* not enough memory */
	PDPROJ_ECUDA = 5,   /* the CUDA runtime or cuBLASLt reports a failure */
	PDPROJ_ESTATE = 6,  /* rows or a seed that do not continue the request */
	PDPROJ_EFULL = 7,   /* as many requests as the handle was made for */
	PDPROJ_EALGO = 8,   /* no GEMM whose rows are independent of the chunk */
	PDPROJ_ELOST = 9    /* the handle takes no more work: its own cannot be put in order any longer. Destroy it */
};

typedef struct pdproj_error {
	int32_t code;
	char text[PDPROJ_TEXT];
} pdproj_error;

/* The arrays that a block holds of one layer, in the order of their bytes. */
enum {
	PDPROJ_WINDOW = 0,       /* bf16 [window, head_dim], rotated */
	PDPROJ_POOLED = 1,       /* bf16 [block/ratio, head_dim] */
	PDPROJ_PREV_KV = 2,      /* bf16 [4, 2*head_dim], ratio 4 only, raw */
	PDPROJ_PREV_GATE = 3,
	PDPROJ_IDX_POOLED = 4,   /* bf16 [block/4, index_dim] */
	PDPROJ_IDX_PREV_KV = 5,  /* bf16 [4, 2*index_dim] */
	PDPROJ_IDX_PREV_GATE = 6,
	PDPROJ_WINDOW_PRE = 7,   /* the window before rotation, for tests */
	PDPROJ_ARRAYS = 8
};

/* Weights of one layer in host memory, read during create only. Parts that the
 * ratio does not use are NULL. Matrices are row-major bf16 [out, hidden]; out is
 * head_dim, or twice that for the pools of ratio 4 (lane A, then lane B). */
typedef struct pdproj_layer {
	int32_t ratio; /* 0, 4 or 128 */
	int32_t reserved;
	const uint16_t *kv, *kv_norm;
	const uint16_t *comp_kv, *comp_gate, *comp_norm;
	const uint16_t *idx_kv, *idx_gate, *idx_norm;
	const float *comp_ape, *idx_ape; /* [ratio, out] */
	/* Where each array lies in a block's payload; negative: not wanted. The arrays
	 * of a layer must lie within PDPROJ_SPAN bytes, and not overlap. */
	int64_t offset[PDPROJ_ARRAYS];
} pdproj_layer;

#define PDPROJ_SPAN (64 << 20)

enum {
	PDPROJ_DIRECT = 1, /* kernels write to the destination, without staging; default on integrated GPUs */
	PDPROJ_STAGED = 2, /* kernels write to the device, a copy engine moves it on; default elsewhere */
	PDPROJ_SERIAL = 4, /* window rows on the caller's stream, not beside the pool's GEMM */
	PDPROJ_PACKED = 8  /* what a call completes of a block lies without gaps from its destination on; always staged */
};

typedef struct pdproj_config {
	uint32_t size;  /* sizeof(pdproj_config) */
	uint32_t flags; /* PDPROJ_DIRECT, ... */
	int32_t device; /* ordinal */
	int32_t layers;
	const pdproj_layer *layer; /* [layers] of this handle, which may be a share of the model's */
	int32_t hidden, head_dim, index_dim, rope_dim, window;
	int32_t block_tokens; /* of the decoder's block */
	int32_t max_tokens;   /* most rows of one call */
	int32_t max_requests; /* most carries at once */
	int64_t max_positions;
	double norm_eps, rope_theta, compress_rope_theta;
	/* yarn_factor 0 means no scaling of compress_rope_theta's frequencies. */
	double yarn_factor, yarn_original, yarn_beta_fast, yarn_beta_slow;
	uint64_t staging;     /* bytes of device staging; 0: twelve calls of max_tokens */
	const char *cublaslt; /* path of cuBLASLt, or NULL: what is loaded, then the usual names */
} pdproj_config;

typedef struct pdproj_facts {
	uint32_t size; /* sizeof(pdproj_facts), set by the caller */
	int32_t abi, runtime, driver;
	int32_t sm;         /* compute capability, 90 for 9.0 */
	int32_t processors; /* multiprocessors */
	int32_t integrated; /* GPU and CPU share their memory */
	int32_t reserved;
	uint64_t memory, memory_free;
	char name[64];
} pdproj_facts;

/* Bytes that create took and the algorithms that it settled on. */
typedef struct pdproj_usage {
	uint32_t size; /* sizeof(pdproj_usage), set by the caller */
	int32_t direct;
	uint64_t weights, carries, workspace, staging;
	uint64_t cublaslt; /* version */
	char gemm[512];    /* one line per matrix width */
} pdproj_usage;

/* A range of a block's payload that a call completed. */
typedef struct pdproj_piece {
	int64_t block;  /* index of the block in the sequence */
	int64_t offset; /* in the payload, as in pdproj_layer.offset */
	int64_t length;
	void *at; /* where its first byte lies */
} pdproj_piece;

typedef struct pdproj pdproj;
typedef struct pdproj_request pdproj_request;

PDPROJ_API int32_t pdproj_abi(void);

/* What the driver says of a device. PDPROJ_ENODEV where there is none. */
PDPROJ_API int pdproj_query(int32_t device, pdproj_facts *out, pdproj_error *err);

/* Uploads the weights, takes all memory and settles the GEMM algorithms: for each
 * width one whose rows do not depend on how many rows there are, proved on this
 * device before it is used. Waits for its own work. */
PDPROJ_API int pdproj_create(const pdproj_config *config, pdproj **out, pdproj_error *err);
/* Waits for the handle's own streams and frees everything, requests included. */
PDPROJ_API void pdproj_destroy(pdproj *h);
PDPROJ_API int pdproj_used(pdproj *h, pdproj_usage *out, pdproj_error *err);

/* A request's carry, at position 0 in every layer. Freeing it waits for nothing;
 * work in flight keeps its memory because later work is ordered behind it. */
PDPROJ_API int pdproj_request_create(pdproj *h, pdproj_request **out, pdproj_error *err);
PDPROJ_API void pdproj_request_free(pdproj *h, pdproj_request *r);

/* Puts one layer of the request at a block boundary. For ratio 4 the rows of the
 * window before it are given (host memory, bf16, sizes as PREV arrays; read before
 * the stream has passed the call); all four NULL means that the first pooled row is computed
 * without them, as decoders do that restored a three-element state. */
PDPROJ_API int pdproj_seed(pdproj *h, pdproj_request *r, int32_t layer, int64_t position, const uint16_t *prev_kv,
	const uint16_t *prev_gate, const uint16_t *idx_prev_kv, const uint16_t *idx_prev_gate, void *stream, pdproj_error *err);

/* Projects the next n rows of a layer: x is bf16 [n, hidden] on the device, first
 * the token position of its first row, which must be where the layer stands.
 *
 * dst has one entry for each block that the rows touch, from first/block_tokens
 * on: where the byte at the layer's lowest offset of that block goes, in memory that the
 * device can write (pinned, see pdproj_pin); NULL drops that block's bytes. With
 * PDPROJ_PACKED it is where the first completed byte goes, and the others of that block follow
 * in the order of their offsets.
 * pieces, if not NULL, has room for most entries and receives what the call
 * completed; *count how many. All of them are in place when the ticket is done,
 * see pdproj_done. Pieces of one call come in ascending order of block, then offset.
 * The number is at most PDPROJ_ARRAYS for each block.
 * Those of layer 0 leave at once. The pieces of up to four later calls leave together: when the
 * last of them is made, or when somebody asks for the ticket of one, which is never later than he
 * needs it. What dst names must be there until its ticket, or a later one, is done or the handle
 * is destroyed, also when the request is given up.
 * A copy that the driver refuses fails its own ticket and no other: pdproj_done and pdproj_wait of that ticket give the
 * error, those of later ones do not, so each call's ticket is asked for. The call's other pieces are copied.
 * A call that fails gives no ticket and may have enqueued kernels: the layer's carry is undefined, free the request. With staging
 * none of its pieces is copied, so what dst names is free at once; in direct mode it may be written until a later
 * ticket is done or the handle is destroyed. What it enqueued is ordered before later calls, as any call's is; where the
 * driver refuses even that, the call and every later one that would enqueue something fail with PDPROJ_ELOST: destroy the
 * handle. */
PDPROJ_API int pdproj_project(pdproj *h, pdproj_request *r, int32_t layer, const void *x, int32_t n, int64_t first,
	void *const *dst, int32_t dsts, pdproj_piece *pieces, int32_t most, int32_t *count, uint64_t *ticket, void *stream,
	pdproj_error *err);

/* Readies a layer's work for calls with this x, n and place of first in its block, so
 * that such a call costs the host half as much. An engine's buffers are few: what is seen
 * again is worth it. Takes memory; PDPROJ_EFULL after eight for a layer, which is
 * harmless. Not while the calling thread captures a stream. */
PDPROJ_API int pdproj_prepare(pdproj *h, int32_t layer, const void *x, int32_t n, int64_t first, pdproj_error *err);

/* 1 when the pieces of that ticket are in place, and those of all earlier ones that were not refused; 0 when not
 * yet; a negative error code where a piece of that ticket was refused, or the device fails. Neither 1 nor a refusal
 * leaves anything in flight to that ticket's destinations. Where the device fails something may be, until the handle is
 * destroyed; then every later ticket fails too. Refusals are remembered for at least 512 calls. Does not wait, but sends
 * on what waits to leave. */
PDPROJ_API int pdproj_done(pdproj *h, uint64_t ticket, pdproj_error *err);
PDPROJ_API int pdproj_wait(pdproj *h, uint64_t ticket, pdproj_error *err);

/* Reads a layer's carry rows, for tests and for moving a request: raw projections,
 * bf16 [slots, width], row of token t at t mod slots; slots is 8 for ratio 4 and 128
 * for ratio 128, width is the columns of [comp kv, comp gate, idx kv, idx gate].
 * bytes must be that size exactly. Waits for the stream. */
PDPROJ_API int pdproj_carry(pdproj *h, pdproj_request *r, int32_t layer, void *out, uint64_t bytes, void *stream, pdproj_error *err);

/* Page-locks memory that somebody else made, so that the device can write to it. */
PDPROJ_API int pdproj_pin(int32_t device, void *at, uint64_t bytes, pdproj_error *err);
PDPROJ_API int pdproj_unpin(void *at, pdproj_error *err);

/* Plain key/value caches. One source is the keys or the values of one layer in
 * paged memory; strides are in bytes, so every order of [page, K|V, head, token, element]
 * that keeps a head's elements together is described by base and strides. */
typedef struct pdproj_paged {
	const void *base;
	int64_t page_stride, token_stride, head_stride;
	int32_t page_tokens, pages; /* pages bounds what the table may say */
	int32_t heads;              /* heads of this source, from base on */
	int32_t run;                /* bytes of one head of one token */
} pdproj_paged;

typedef struct pdproj_kv pdproj_kv;

#define PDPROJ_SOURCES 8

PDPROJ_API int pdproj_kv_create(int32_t device, uint64_t staging, uint32_t flags, pdproj_kv **out, pdproj_error *err);
PDPROJ_API void pdproj_kv_destroy(pdproj_kv *h);
/* Gathers whole blocks: the tokens [first, first + blocks*block_tokens), found through the page table (device memory, int32,
 * entry of page i of the sequence), are written as [heads, block_tokens, run] for each block and source, to
 * dst[block*sources + source]; NULL drops one. A table entry outside the pages leaves its tokens
 * zero. The rules of pdproj_project hold for tickets and streams. */
PDPROJ_API int pdproj_kv_gather(pdproj_kv *h, const pdproj_paged *source, int32_t sources, const int32_t *table, int64_t first,
	int32_t block_tokens, int32_t blocks, void *const *dst, uint64_t *ticket, void *stream, pdproj_error *err);
PDPROJ_API int pdproj_kv_done(pdproj_kv *h, uint64_t ticket, pdproj_error *err);
PDPROJ_API int pdproj_kv_wait(pdproj_kv *h, uint64_t ticket, pdproj_error *err);

/* Device memory for callers that have no CUDA runtime of their own (tests, replay). */
PDPROJ_API int pdproj_alloc(int32_t device, uint64_t bytes, int32_t pinned, void **out, pdproj_error *err);
PDPROJ_API int pdproj_free(void *at, int32_t pinned, pdproj_error *err);
/* Copies and waits for it. */
PDPROJ_API int pdproj_copy(int32_t device, void *to, const void *from, uint64_t bytes, pdproj_error *err);

/* The leaf functions of the kernels on this processor, so that they can be tested
 * where there is no GPU. op: 'e' exponential of in[i], which is at most 0; 'q' in[i]/3 by the rounded reciprocal; 's', 'c' sine and
 * cosine; 'b' rounding to bf16; 'r' 1/sqrt(in[i] + 1e-6) as the norm does it. Another op is PDPROJ_EARG. */
PDPROJ_API int pdproj_leaf(int32_t op, const float *in, float *out, uint64_t n);
/* The factors that positions are multiplied with, [rope_dim/2]. */
PDPROJ_API int pdproj_frequencies(const pdproj_config *config, int32_t compressed, float *out, pdproj_error *err);

#ifdef __cplusplus
}
#endif
#endif
