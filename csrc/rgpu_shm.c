/* Rings in shared memory. The other process is not trusted: what it writes there may change at any time,
 * so each index is read once and checked, and bytes are copied out before anybody looks at them. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "rgpu_copy.h"
#include "rgpu_transport.h"

#define LINE 64
#define PIECE (256u << 10) /* so much is shown to the other side at once: it copies while we go on */
#define STREAMED (4u << 20) /* bytes from which on what is read is written past the caches, which it would only empty */

typedef struct {
    _Alignas(LINE) _Atomic uint64_t head; /* bytes ever written; the writer's */
    _Atomic uint32_t core;                /* 1 + the core that wrote last; 0: unknown */
    _Alignas(LINE) _Atomic uint64_t tail; /* bytes ever read; the reader's */
    _Alignas(LINE) _Atomic uint32_t reader_dozes, writer_dozes;
    _Alignas(LINE) unsigned char data[];
} ring;

typedef struct {
    rgpu_transport base;
    ring *in, *out;
    uint64_t read, written; /* our own indices: the shared ones are only announcements */
    size_t capacity;
    int rang; /* there is something to ring for */
} shm;

static size_t ring_size(size_t capacity) { return sizeof(ring) + capacity; }

size_t rgpu_shm_size(size_t capacity) { return 2 * ring_size(capacity); }

/* How many bytes can be read, or -1 when the writer claims what cannot be. */
static int64_t readable(const shm *t)
{
    uint64_t n = atomic_load_explicit(&t->in->head, memory_order_acquire) - t->read;
    return n <= t->capacity ? (int64_t)n : -1;
}

static int64_t writable(const shm *t)
{
    uint64_t n = t->written - atomic_load_explicit(&t->out->tail, memory_order_acquire);
    return n <= t->capacity ? (int64_t)(t->capacity - n) : -1;
}

/* Whether a writer that sleeps is to go on: not for every few bytes, waking costs as much as copying many. */
static int roomy(uint64_t used, size_t capacity) { return used <= capacity / 2; }

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static int64_t shm_read(rgpu_transport *base, void *out, size_t size)
{
    shm *t = (shm *)base;
    size_t done = 0;
    while (done < size) {
        int64_t have = readable(t);
        if (have < 0)
            return -1;
        if (have == 0)
            break;
        size_t at = t->read & (t->capacity - 1);
        size_t n = least(least((size_t)have, size - done), least(t->capacity - at, PIECE));
        if (size >= STREAMED)
            copy_past_caches((char *)out + done, t->in->data + at, n);
        else
            copy_bytes((char *)out + done, t->in->data + at, n);
        t->read += n;
        done += n;
        atomic_store_explicit(&t->in->tail, t->read, memory_order_release);
    }
    t->rang |= done > 0;
    return (int64_t)done;
}

static uint32_t this_core(void)
{
#ifdef __linux__
    return (uint32_t)(sched_getcpu() + 1);
#else
    return 0;
#endif
}

static int64_t shm_write(rgpu_transport *base, const void *in, size_t size)
{
    shm *t = (shm *)base;
    size_t done = 0;
    atomic_store_explicit(&t->out->core, this_core(), memory_order_relaxed);
    while (done < size) {
        int64_t room = writable(t);
        if (room < 0)
            return -1;
        if (room == 0)
            break;
        size_t at = t->written & (t->capacity - 1);
        size_t n = least(least((size_t)room, size - done), least(t->capacity - at, PIECE));
        copy_bytes(t->out->data + at, (const char *)in + done, n);
        t->written += n;
        done += n;
        atomic_store_explicit(&t->out->head, t->written, memory_order_release);
    }
    t->rang |= done > 0;
    return (int64_t)done;
}

static int shm_doze(rgpu_transport *base, int writing)
{
    shm *t = (shm *)base;
    atomic_store(&t->in->reader_dozes, 1);
    if (writing)
        atomic_store(&t->out->writer_dozes, 1);
    /* The flags are seen before the indices are looked at, and the other side does it the other way round. */
    atomic_thread_fence(memory_order_seq_cst);
    int64_t room = writable(t);
    if (readable(t) == 0 && !(writing && (room < 0 || roomy(t->capacity - (uint64_t)room, t->capacity))))
        return 1;
    atomic_store(&t->in->reader_dozes, 0);
    atomic_store(&t->out->writer_dozes, 0);
    return 0;
}

static int shm_ring(rgpu_transport *base)
{
    shm *t = (shm *)base;
    if (!t->rang)
        return 0;
    t->rang = 0;
    atomic_thread_fence(memory_order_seq_cst);
    int reader = atomic_load(&t->out->reader_dozes) && atomic_exchange(&t->out->reader_dozes, 0);
    uint64_t left = atomic_load(&t->in->head) - t->read;
    int writer = roomy(left, t->capacity) && atomic_load(&t->in->writer_dozes) &&
                 atomic_exchange(&t->in->writer_dozes, 0);
    return reader || writer;
}

static int shm_news(const rgpu_transport *base) { return readable((const shm *)base) != 0; }

static int shm_busy(rgpu_transport *base)
{
    (void)base;
    return 0;
}

static int shm_fd(rgpu_transport *base)
{
    (void)base;
    return -1;
}

static int shm_core(const rgpu_transport *base)
{
    return (int)atomic_load_explicit(&((const shm *)base)->in->core, memory_order_relaxed) - 1;
}

static void shm_close(rgpu_transport *base) { free(base); }

static const rgpu_transport_ops shm_ops = {
    .read = shm_read, .write = shm_write, .doze = shm_doze, .ring = shm_ring, .news = shm_news, .busy = shm_busy,
    .fd = shm_fd, .close = shm_close, .core = shm_core,
};

rgpu_transport *rgpu_shm_open(void *shared, size_t capacity, int side)
{
    if (capacity == 0 || (capacity & (capacity - 1)) || ((uintptr_t)shared & (LINE - 1)))
        return NULL;
    shm *t = calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    ring *first = shared, *second = (ring *)((char *)shared + ring_size(capacity));
    t->base.ops = &shm_ops;
    t->in = side ? first : second;
    t->out = side ? second : first;
    t->capacity = capacity;
    return &t->base;
}

/* The vtable's callers. */

int64_t rgpu_transport_read(rgpu_transport *t, void *out, size_t size) { return t->ops->read(t, out, size); }
int64_t rgpu_transport_write(rgpu_transport *t, const void *in, size_t size) { return t->ops->write(t, in, size); }
int rgpu_transport_doze(rgpu_transport *t, int writing) { return t->ops->doze(t, writing); }
int rgpu_transport_ring(rgpu_transport *t) { return t->ops->ring(t); }
int rgpu_transport_busy(rgpu_transport *t) { return t->ops->busy(t); }
int rgpu_transport_fd(rgpu_transport *t) { return t->ops->fd(t); }
void rgpu_transport_close(rgpu_transport *t) { t->ops->close(t); }
