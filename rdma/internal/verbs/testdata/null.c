/* A library of verbs whose only device does nothing and completes at once. It spends on the processor what a provider spends:
 * it takes a lock, copies each work request into an entry of 64 bytes, and answers polls from a ring. Tests tell it, by
 * null_set, how to fail; null_sent shows what it was given. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port
#define RING 1024

enum { DEREG_BUSY, QP_BUSY, POLL_FAILS, POLL_MANY, ARM_FAILS, POST_FAILS_AT, POST_ERRNO, POST_NO_BAD, LIST_ERRNO, OPEN_ERRNO, KEEP_NONE, SETTINGS };
static int settings[SETTINGS];

struct sent {
	uint64_t id, addr[4], remote;
	uint32_t length[4], lkey[4], sges, opcode, flags, imm, rkey;
};
struct null_qp {
	struct ibv_qp qp;
	struct null_cq *send, *recv;
	pthread_spinlock_t lock;
	uint64_t queue[RING][8];
	unsigned at;
};
struct null_cq {
	struct ibv_cq cq;
	pthread_spinlock_t lock;
	struct { uint64_t id; uint32_t opcode, qp; } done[RING];
	unsigned head, tail;
	int armed;
};

static struct ibv_device device;
static struct sent sent[RING];
static int sent_count, objects;

void null_set(int what, int value) { settings[what] = value; }
int null_objects(void) { return objects; }
struct sent *null_sent(int *count) { *count = sent_count; return sent; }
void null_reset(void) { memset(settings, 0, sizeof settings); sent_count = 0; }

/* fails says whether a call fails now: the setting counts the failures that are left. */
static int fails(int what) { return settings[what] > 0 ? settings[what]--, 1 : 0; }

static void complete(struct null_cq *c, uint64_t id, uint32_t opcode, uint32_t qp)
{
	pthread_spin_lock(&c->lock);
	c->done[c->head % RING].id = id;
	c->done[c->head % RING].opcode = opcode;
	c->done[c->head++ % RING].qp = qp;
	if (c->armed && c->cq.channel) {
		uint64_t one = 1;
		c->armed = 0;
		if (write(c->cq.channel->fd, &one, sizeof one) < 0) abort();
	}
	pthread_spin_unlock(&c->lock);
}

/* refused says whether the request at index i of a list is not taken. */
static int refused(int i, void *wr, void **bad)
{
	if (!settings[POST_ERRNO] || i != settings[POST_FAILS_AT]) return 0;
	if (!settings[POST_NO_BAD]) *bad = wr;
	return settings[POST_ERRNO];
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *w, struct ibv_send_wr **bad)
{
	struct null_qp *n = (struct null_qp *)qp;
	int i = 0, err;
	pthread_spin_lock(&n->lock);
	for (; w; w = w->next, i++) {
		uint64_t *e = n->queue[n->at++ % RING];
		if ((err = refused(i, w, (void **)bad))) { pthread_spin_unlock(&n->lock); return err; }
		e[0] = w->wr_id, e[1] = w->opcode, e[2] = w->wr.rdma.remote_addr, e[3] = w->wr.rdma.rkey;
		e[4] = w->send_flags, e[5] = w->num_sge;
		if (w->num_sge) e[6] = w->sg_list->addr, e[7] = (uint64_t)w->sg_list->lkey << 32 | w->sg_list->length;
		if (sent_count < RING && !settings[KEEP_NONE]) {
			struct sent *s = &sent[sent_count++];
			*s = (struct sent){ .id = w->wr_id, .remote = w->wr.rdma.remote_addr, .sges = w->num_sge, .opcode = w->opcode,
					    .flags = w->send_flags, .imm = w->imm_data, .rkey = w->wr.rdma.rkey };
			for (int k = 0; k < w->num_sge && k < 4; k++)
				s->addr[k] = w->sg_list[k].addr, s->length[k] = w->sg_list[k].length, s->lkey[k] = w->sg_list[k].lkey;
		}
		if (w->send_flags & IBV_SEND_SIGNALED)
			complete(n->send, w->wr_id, w->opcode == IBV_WR_RDMA_WRITE ? IBV_WC_RDMA_WRITE : IBV_WC_SEND, qp->qp_num);
	}
	pthread_spin_unlock(&n->lock);
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *w, struct ibv_recv_wr **bad)
{
	int i = 0, err;
	for (; w; w = w->next, i++) {
		if ((err = refused(i, w, (void **)bad))) return err;
		complete(((struct null_qp *)qp)->recv, w->wr_id, IBV_WC_RECV, w->num_sge);
	}
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	struct null_cq *c = (struct null_cq *)cq;
	int i = 0;
	if (settings[POLL_FAILS]) return -settings[POLL_FAILS];
	if (settings[POLL_MANY]) return most + 1;
	pthread_spin_lock(&c->lock);
	for (; i < most && c->tail != c->head; i++, c->tail++) {
		memset(&wc[i], 0, sizeof wc[i]);
		wc[i].wr_id = c->done[c->tail % RING].id;
		wc[i].opcode = c->done[c->tail % RING].opcode;
		wc[i].qp_num = c->done[c->tail % RING].qp;
	}
	pthread_spin_unlock(&c->lock);
	return i;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	(void)solicited;
	if (settings[ARM_FAILS]) return settings[ARM_FAILS];
	((struct null_cq *)cq)->armed = 1;
	return 0;
}

struct ibv_device **ibv_get_device_list(int *n)
{
	if (settings[LIST_ERRNO]) { errno = settings[LIST_ERRNO]; return NULL; }
	struct ibv_device **list = calloc(2, sizeof *list);
	strcpy(device.name, "null0");
	list[0] = &device;
	*n = 1;
	return list;
}
void ibv_free_device_list(struct ibv_device **list) { free(list); }
const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct ibv_context *c;
	if (settings[OPEN_ERRNO]) { errno = settings[OPEN_ERRNO]; return NULL; }
	c = calloc(1, sizeof *c);
	c->device = d;
	c->async_fd = eventfd(0, 0);
	c->ops.post_send = post_send, c->ops.post_recv = post_recv, c->ops.poll_cq = poll_cq, c->ops.req_notify_cq = req_notify_cq;
	objects++;
	return c;
}
int ibv_close_device(struct ibv_context *c) { close(c->async_fd); free(c); objects--; return 0; }
#ifndef FEWER
int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	(void)c;
	strcpy(a->fw_ver, "1.2.3");
	a->phys_port_cnt = 1, a->max_mr_size = 1ull << 40, a->max_qp_wr = RING, a->max_qp_init_rd_atom = 3;
	return 0;
}
#endif
int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	struct ibv_port_attr *a = (void *)attr;
	(void)c;
	if (port != 1) return EINVAL;
	a->state = IBV_PORT_ACTIVE, a->gid_tbl_len = 4, a->active_mtu = IBV_MTU_1024, a->link_layer = IBV_LINK_LAYER_ETHERNET, a->flags = 1;
	return 0;
}
int ibv_query_gid(struct ibv_context *c, uint8_t port, int index, union ibv_gid *gid)
{
	(void)c, (void)port;
	if (index == 1) { errno = ENODATA; return -1; }
	memset(gid, 0, sizeof *gid);
	if (index != 2) gid->raw[0] = 0xfe, gid->raw[1] = 0x80, gid->raw[15] = index;
	return 0;
}
struct ibv_pd *ibv_alloc_pd(struct ibv_context *c) { struct ibv_pd *p = calloc(1, sizeof *p); p->context = c; objects++; return p; }
int ibv_dealloc_pd(struct ibv_pd *p) { free(p); objects--; return 0; }
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *m;
	if (access & ~7) { errno = EINVAL; return NULL; }
	m = calloc(1, sizeof *m);
	m->context = pd->context, m->pd = pd, m->addr = addr, m->length = length, m->lkey = 7, m->rkey = 8;
	objects++;
	return m;
}
int ibv_dereg_mr(struct ibv_mr *m)
{
	if (fails(DEREG_BUSY)) return EBUSY;
	free(m);
	objects--;
	return 0;
}
#ifndef FEWER
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct ibv_comp_channel *ch = calloc(1, sizeof *ch);
	ch->context = c, ch->fd = eventfd(0, EFD_SEMAPHORE);
	objects++;
	return ch;
}
int ibv_destroy_comp_channel(struct ibv_comp_channel *ch) { close(ch->fd); free(ch); objects--; return 0; }
#endif
struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *user, struct ibv_comp_channel *ch, int vector)
{
	struct null_cq *q;
	if (vector) { errno = EINVAL; return NULL; }
	q = calloc(1, sizeof *q);
	pthread_spin_init(&q->lock, 0);
	q->cq.context = c, q->cq.channel = ch, q->cq.cq_context = user, q->cq.cqe = cqe + 1;
	objects++;
	return &q->cq;
}
int ibv_destroy_cq(struct ibv_cq *q) { free(q); objects--; return 0; }
#ifndef FEWER
int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **user)
{
	uint64_t one;
	*cq = NULL, *user = NULL;
	return read(ch->fd, &one, sizeof one) < 0 ? -1 : 0;
}
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n) { (void)cq, (void)n; }
#endif
struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct null_qp *q = calloc(1, sizeof *q);
	pthread_spin_init(&q->lock, 0);
	q->qp.context = pd->context, q->qp.pd = pd, q->qp.qp_num = 0x123, q->qp.qp_type = a->qp_type;
	q->send = (struct null_cq *)a->send_cq, q->recv = (struct null_cq *)a->recv_cq;
	objects++;
	return &q->qp;
}
static struct ibv_qp_attr moved;
static int moved_mask;
struct ibv_qp_attr *null_moved(int *mask) { *mask = moved_mask; return &moved; }
int ibv_modify_qp(struct ibv_qp *q, struct ibv_qp_attr *a, int mask) { (void)q; moved = *a, moved_mask = mask; return 0; }
#ifndef LACKING
int ibv_destroy_qp(struct ibv_qp *q)
{
	if (fails(QP_BUSY)) return EBUSY;
	free(q);
	objects--;
	return 0;
}
#endif
#ifndef FEWER
int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	uint64_t n;
	(void)e;
	return read(c->async_fd, &n, sizeof n) < 0 ? -1 : 0;
}
void ibv_ack_async_event(struct ibv_async_event *e) { (void)e; }
#endif
#ifdef FOREIGN
int foreign(void) __asm__("ibv_post_send"); /* the header has a function of that name, which no library exports */
int foreign(void) { return 0; }
#endif
