#include "ring.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

namespace pd {

int fail(pdproj_error *err, int code, const char *format, ...) {
	if (err) {
		va_list args;
		va_start(args, format);
		vsnprintf(err->text, sizeof err->text, format, args);
		va_end(args);
		err->code = code;
	}
	return code;
}

int fail_cuda(pdproj_error *err, cudaError_t e, const char *what) {
	cudaGetLastError(); // else the caller's next check would find it
	int code = PDPROJ_ECUDA;
	switch (e) {
	case cudaErrorMemoryAllocation: code = PDPROJ_EMEM; break;
	case cudaErrorNoDevice:
	case cudaErrorInvalidDevice:
	case cudaErrorInsufficientDriver:
	case cudaErrorDevicesUnavailable:
	case cudaErrorNoKernelImageForDevice:
	case cudaErrorInvalidKernelImage:
	case cudaErrorInvalidDeviceFunction:
	case cudaErrorInvalidPtx:
	case cudaErrorUnsupportedPtxVersion:
	case cudaErrorJitCompilerNotFound:
	case cudaErrorJitCompilationDisabled:
	case cudaErrorSystemDriverMismatch:
	case cudaErrorCompatNotSupportedOnDevice:
	case cudaErrorStubLibrary: code = PDPROJ_ENODEV; break;
	default: break;
	}
	return fail(err, code, "%s: %s", what, cudaGetErrorString(e));
}

int fail_call(const Ring *r, pdproj_error *err, cudaError_t e, const char *what) {
	if (!r->lost) return fail_cuda(err, e, what);
	cudaGetLastError(); // else the caller's next check would find it
	return fail(err, PDPROJ_ELOST, "%s: a call's work cannot be put in order, destroy the handle: %s", what, cudaGetErrorString(r->lost));
}

namespace {

// Ranges that follow each other at both ends become one.
int join(Range *v, int n) {
	int kept = 0;
	for (int i = 0; i < n; i++) {
		Range *last = kept > 0 ? v + kept - 1 : nullptr;
		if (last && v[i].to == last->to + last->bytes && v[i].from == last->from + last->bytes) {
			last->bytes += v[i].bytes;
		} else {
			v[kept++] = v[i];
		}
	}
	return kept;
}

// What was refused is told to whoever asks for its ticket.
void charge(Ring *r, uint64_t ticket, cudaError_t e) {
	cudaGetLastError(); // else the caller's next check would find it
	Refused *f = r->refused + ticket % tickets;
	if (f->ticket != ticket) *f = {ticket, e};
}

cudaError_t charged(const Ring *r, uint64_t ticket) {
	const Refused *f = r->refused + ticket % tickets;
	return ticket && f->ticket == ticket ? f->why : cudaSuccess;
}

// Copies of one length at equal distances are one strided copy. Where they lie in several allocations
// the driver refuses that before it does anything: then each goes by itself. One that is refused
// even so is its ticket's, of[i] or for a null of the one given, and the others go on.
void copy(Ring *r, const Range *v, const uint64_t *of, uint64_t ticket, int n) {
	for (int i = 0; i < n;) {
		const Range a = v[i];
		int rows = 1;
		int64_t to = 0, from = 0;
		if (i + 1 < n) to = v[i + 1].to - a.to, from = v[i + 1].from - a.from;
		if (to >= a.bytes && from >= a.bytes && to < INT32_MAX) {
			while (i + rows < n && v[i + rows].bytes == a.bytes && v[i + rows].to == a.to + rows * to &&
				v[i + rows].from == a.from + rows * from) {
				rows++;
			}
		}
		const bool strided = rows > 1 && !cudaMemcpy2DAsync(a.to, to, a.from, from, a.bytes, rows, cudaMemcpyDefault, r->copies);
		if (rows > 1 && !strided) cudaGetLastError(); // what is really wrong, the single copies say again
		for (int j = i; !strided && j < i + rows; j++) {
			const cudaError_t e = cudaMemcpyAsync(v[j].to, v[j].from, v[j].bytes, cudaMemcpyDefault, r->copies);
			if (e) charge(r, of ? of[j] : ticket, e);
		}
		i += rows;
	}
}

// Enqueues the copies that wait, and more behind them, for all calls up to that ticket. Whatever
// comes of it, nothing of them waits any longer: a second try would repeat copies whose
// destinations may be somebody else's by then. Without the event, which the next try records, nobody knows
// when they are over.
cudaError_t send(Ring *r, uint64_t ticket, const Range *more, int n) {
	cudaError_t e = cudaStreamWaitEvent(r->copies, r->produced, 0);
	if (!e) {
		copy(r, r->waiting, r->waiting_of, 0, r->waitings);
		copy(r, more, nullptr, ticket, n);
		e = cudaEventRecord(r->done[ticket % tickets], r->copies);
	} else {
		for (int i = 0; i < r->waitings; i++) charge(r, r->waiting_of[i], e);
		if (n > 0) charge(r, ticket, e);
	}
	r->waitings = 0, r->waiting_bytes = 0;
	if (e) return e;
	for (uint64_t t = r->copied + 1; t <= ticket; t++) r->by[t % tickets] = ticket;
	r->copied = ticket;
	return cudaSuccess;
}

// Sees to it that the copies of a ticket are enqueued, and returns the ticket whose
// event stands for it: one that is too old has an older one's successor.
cudaError_t sent(Ring *r, uint64_t ticket, uint64_t *by) {
	const uint64_t seen = ticket + tickets <= r->issued ? r->issued + 1 - tickets : ticket;
	if (seen > r->copied) {
		const cudaError_t e = send(r, r->issued, nullptr, 0);
		if (e) return e;
	}
	*by = r->by[seen % tickets];
	return cudaSuccess;
}

} // namespace

int open_ring(Ring *r, uint64_t staging, bool direct, int together, pdproj_error *err) {
	memset(r, 0, sizeof *r);
	r->together = together;
	cudaError_t e = cudaEventCreateWithFlags(&r->produced, cudaEventDisableTiming);
	for (unsigned i = 0; i < tickets && !e; i++) {
		e = cudaEventCreateWithFlags(&r->done[i], cudaEventDisableTiming | cudaEventBlockingSync);
	}
	if (!e && !direct) {
		r->size = staging;
		e = cudaMalloc(&r->memory, staging);
		if (!e) e = cudaStreamCreateWithFlags(&r->copies, cudaStreamNonBlocking);
	}
	if (!e) return PDPROJ_OK;
	close_ring(r);
	return fail_cuda(err, e, "take staging memory");
}

void close_ring(Ring *r) {
	if (r->lost) cudaDeviceSynchronize(); // no event tells when that work is over
	if (r->copies) {
		if (r->waitings) send(r, r->issued, nullptr, 0);
		cudaStreamSynchronize(r->copies);
		cudaStreamDestroy(r->copies);
	}
	if (r->memory) cudaFree(r->memory);
	for (unsigned i = 0; i < tickets; i++) {
		if (r->done[i]) cudaEventDestroy(r->done[i]);
	}
	if (r->produced) cudaEventDestroy(r->produced);
	memset(r, 0, sizeof *r);
}

cudaError_t follow(Ring *r, cudaStream_t stream) {
	if (r->lost) return r->lost;
	const cudaError_t e = r->used && r->stream != stream ? cudaStreamWaitEvent(stream, r->produced, 0) : cudaSuccess;
	if (e) return e; // the stream stands where it stood
	r->used = true;
	r->stream = stream;
	return cudaSuccess;
}

cudaError_t mark(Ring *r, cudaStream_t stream) {
	const cudaError_t e = cudaEventRecord(r->produced, stream);
	if (e) {
		cudaGetLastError(); // else the caller's next check would find it
		r->lost = e;
	}
	return e;
}

cudaError_t take(Ring *r, uint64_t bytes, cudaStream_t stream, uint8_t **out) {
	*out = r->memory;
	if (bytes == 0) return cudaSuccess;
	uint64_t begin = (r->head + 255) / 256 * 256;
	if (begin % r->size + bytes > r->size) begin = (begin / r->size + 1) * r->size;
	r->head = begin + bytes;
	r->begin = begin;
	*out = r->memory + begin % r->size;
	// Calls begin in order, and so do their copies: the newest one that began where
	// this one ends, a lap ago, stands for all before it. One whose event was used again
	// is stood for by the oldest that is left.
	uint64_t last = r->reused;
	while (last < r->issued && (last + 1 + tickets <= r->issued || r->begins[(last + 1) % tickets] + r->size < r->head)) last++;
	if (last == r->reused) return cudaSuccess;
	uint64_t by;
	cudaError_t e = sent(r, last, &by);
	if (!e) e = cudaStreamWaitEvent(stream, r->done[by % tickets], 0);
	if (!e) r->reused = by;
	return e;
}

cudaError_t finish(Ring *r, Range *ranges, int n, bool now, cudaStream_t stream, uint64_t *ticket) {
	cudaError_t e = mark(r, stream);
	if (e) return e;
	const uint64_t next = r->issued + 1;
	const bool any = n > 0;
	n = join(ranges, n);
	uint64_t bytes = r->waiting_bytes;
	for (int i = 0; i < n; i++) bytes += ranges[i].bytes;
	if (!r->copies) {
		if ((e = cudaEventRecord(r->done[next % tickets], stream))) return e;
		r->by[next % tickets] = r->copied = next;
	} else if (!now && next < r->copied + r->together && r->waitings + n <= most_waiting && bytes < r->size / copies_together) {
		for (int i = 0; i < n; i++) r->waiting_of[r->waitings] = next, r->waiting[r->waitings++] = ranges[i];
		r->waiting_bytes = bytes;
	} else {
		send(r, next, ranges, n); // what fails of it is asked for by ticket
	}
	r->issued = next;
	r->begins[next % tickets] = any ? r->begin : r->head;
	if (ticket) *ticket = next;
	return cudaSuccess;
}

int done(Ring *r, uint64_t ticket, pdproj_error *err) {
	if (ticket > r->issued) return -fail(err, PDPROJ_EARG, "ticket %llu was not issued", (unsigned long long)ticket);
	if (ticket > r->finished) {
		uint64_t by;
		cudaError_t e = sent(r, ticket, &by);
		if (!e) e = cudaEventQuery(r->done[by % tickets]);
		if (e == cudaErrorNotReady) {
			cudaGetLastError();
			return 0;
		}
		if (e) return -fail_cuda(err, e, "look whether pieces have arrived");
		if (by > r->finished) r->finished = by;
	}
	const cudaError_t e = charged(r, ticket);
	return e ? -fail_cuda(err, e, "copy pieces to their destination") : 1;
}

// The lock is not held while waiting, so the handle stays usable.
int wait(Ring *r, pthread_mutex_t *lock, uint64_t ticket, pdproj_error *err) {
	cudaEvent_t event = nullptr;
	uint64_t by = 0;
	{
		Locked locked(lock);
		if (ticket > r->issued) return fail(err, PDPROJ_EARG, "ticket %llu was not issued", (unsigned long long)ticket);
		if (ticket > r->finished) {
			const cudaError_t e = sent(r, ticket, &by);
			if (e) return fail_cuda(err, e, "send pieces on");
			event = r->done[by % tickets];
		}
	}
	cudaError_t e = event ? cudaEventSynchronize(event) : cudaSuccess;
	if (e) return fail_cuda(err, e, "wait for pieces");
	Locked locked(lock);
	if (by > r->finished) r->finished = by;
	e = charged(r, ticket);
	return e ? fail_cuda(err, e, "copy pieces to their destination") : PDPROJ_OK;
}

} // namespace pd
