/* A stream of bytes over UCX tagged messages: RDMA where the network has it.
 *
 * The library is found at run time (dlopen) and its headers are not needed: the few declarations below
 * are UCP's stable ABI, 1.10 and later. Data travels through buffers of our own, which are registered
 * with the network once; the caller's memory is free as soon as a call returns. A UCX worker is one thread's at a
 * time, and another may look for news meanwhile: every call takes the end's lock, or finds it taken. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rgpu_transport.h"

#define PIECE (256u << 10) /* bytes of one message at most */
#define SLOTS 16           /* messages under way */
#define API_MAJOR 1
#define API_MINOR 10

enum { UCS_OK = 0, UCS_INPROGRESS = 1, UCS_ERR_LAST = -100 };
enum { FEATURE_TAG = 1, FEATURE_WAKEUP = 16, PARAM_FEATURES = 1, WORKER_THREAD_MODE = 1, SERIALIZED = 1 };
enum { EP_ADDRESS = 1, EP_ERR_MODE = 2, EP_ERR_HANDLER = 4, ERR_MODE_PEER = 1 };
enum { OP_FLAGS = 16, CLOSE_FORCE = 1 };

typedef int status;
typedef struct { uint64_t mask, features, rest[30]; } ucp_params;
typedef struct { uint64_t mask; int thread_mode; uint64_t rest[30]; } ucp_worker_params;
typedef struct {
    uint64_t mask;
    const void *address;
    int err_mode;
    void (*failed)(void *arg, void *ep, status why);
    void *arg;
    uint64_t rest[26];
} ucp_ep_params;
typedef struct { uint32_t mask, flags; uint64_t rest[30]; } ucp_request_param;
typedef struct { uint64_t tag, length, rest[6]; } ucp_tag_info;

static struct {
    status (*init_version)(unsigned, unsigned, const ucp_params *, const void *config, void **context);
    status (*worker_create)(void *context, const ucp_worker_params *, void **worker);
    void (*worker_destroy)(void *worker);
    status (*worker_get_address)(void *worker, void **address, size_t *size);
    void (*worker_release_address)(void *worker, void *address);
    status (*worker_get_efd)(void *worker, int *fd);
    status (*worker_arm)(void *worker);
    unsigned (*worker_progress)(void *worker);
    status (*ep_create)(void *worker, const ucp_ep_params *, void **ep);
    void *(*ep_close_nbx)(void *ep, const ucp_request_param *);
    void *(*tag_send_nbx)(void *ep, const void *, size_t, uint64_t tag, const ucp_request_param *);
    void *(*tag_probe_nb)(void *worker, uint64_t tag, uint64_t mask, int take, ucp_tag_info *);
    void *(*tag_msg_recv_nbx)(void *worker, void *, size_t, void *message, const ucp_request_param *);
    status (*request_check_status)(void *request);
    void (*request_free)(void *request);
} ucp;
static void *context; /* of this process, for every link; never taken down: other threads may be inside */

typedef struct {
    rgpu_transport base;
    pthread_mutex_t lock;
    void *worker, *ep; /* ep: NULL before the peer is known; worker: NULL when the end is shut */
    uint64_t my_tag, peer_tag;
    void *sending[SLOTS], *receiving;
    size_t low, high, coming; /* of `inbox`: what is there; the length of what is on its way */
    int failed;
    unsigned char inbox[PIECE], slot[SLOTS][PIECE];
} ucx;

static int is_error(const void *p) { return (uintptr_t)p >= (uintptr_t)(intptr_t)UCS_ERR_LAST; }

static int load(const char *path, char *why, size_t size)
{
    static const struct { const char *name; void **to; } names[] = {
        {"ucp_init_version", (void **)&ucp.init_version},
        {"ucp_worker_create", (void **)&ucp.worker_create},
        {"ucp_worker_destroy", (void **)&ucp.worker_destroy},
        {"ucp_worker_get_address", (void **)&ucp.worker_get_address},
        {"ucp_worker_release_address", (void **)&ucp.worker_release_address},
        {"ucp_worker_get_efd", (void **)&ucp.worker_get_efd},
        {"ucp_worker_arm", (void **)&ucp.worker_arm},
        {"ucp_worker_progress", (void **)&ucp.worker_progress},
        {"ucp_ep_create", (void **)&ucp.ep_create},
        {"ucp_ep_close_nbx", (void **)&ucp.ep_close_nbx},
        {"ucp_tag_send_nbx", (void **)&ucp.tag_send_nbx},
        {"ucp_tag_probe_nb", (void **)&ucp.tag_probe_nb},
        {"ucp_tag_msg_recv_nbx", (void **)&ucp.tag_msg_recv_nbx},
        {"ucp_request_check_status", (void **)&ucp.request_check_status},
        {"ucp_request_free", (void **)&ucp.request_free},
    };
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(why, size, "%s", dlerror());
        return -1;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *names[i].to = dlsym(library, names[i].name);
        if (*names[i].to == NULL) {
            snprintf(why, size, "%s has no %s", path, names[i].name);
            return -1;
        }
    }
    return 0;
}

int rgpu_ucx_load(const char *path, char *why, size_t size)
{
    if (context != NULL)
        return 0;
    if (load(path, why, size))
        return -1;
    ucp_params params = {.mask = PARAM_FEATURES, .features = FEATURE_TAG | FEATURE_WAKEUP};
    status found = ucp.init_version(API_MAJOR, API_MINOR, &params, NULL, &context);
    if (found != UCS_OK) {
        context = NULL;
        snprintf(why, size, "UCX finds no transport it can use (status %d)", found);
        return -1;
    }
    return 0;
}

static void on_failure(void *arg, void *ep, status why)
{
    (void)ep;
    (void)why;
    ((ucx *)arg)->failed = 1;
}

/* Whether a request is over: 1, or -1 where it has failed; it is freed then. */
static int over(ucx *t, void **request)
{
    if (*request == NULL)
        return 1;
    status now = ucp.request_check_status(*request);
    if (now == UCS_INPROGRESS)
        return 0;
    t->failed |= now != UCS_OK;
    ucp.request_free(*request);
    *request = NULL;
    return now == UCS_OK ? 1 : -1;
}

static void progress(ucx *t)
{
    while (ucp.worker_progress(t->worker))
        ;
}

static void *free_slot(ucx *t, int *which)
{
    for (int i = 0; i < SLOTS; i++)
        if (over(t, &t->sending[i])) {
            *which = i;
            return t->slot[i];
        }
    return NULL;
}

static int64_t write_locked(ucx *t, const void *in, size_t size)
{
    ucp_request_param plain = {0};
    size_t done = 0;
    if (t->ep == NULL)
        return t->worker == NULL ? -1 : 0;
    progress(t);
    while (done < size && !t->failed) {
        int i;
        void *slot = free_slot(t, &i);
        if (slot == NULL)
            break;
        size_t n = size - done < PIECE ? size - done : PIECE;
        memcpy(slot, (const char *)in + done, n);
        void *request = ucp.tag_send_nbx(t->ep, slot, n, t->peer_tag, &plain);
        if (is_error(request))
            t->failed = 1;
        else
            t->sending[i] = request;
        done += n;
        progress(t);
    }
    return t->failed ? -1 : (int64_t)done;
}

/* Take in the next message, if there is one. */
static void receive(ucx *t)
{
    if (t->receiving == NULL && t->coming == 0) {
        ucp_tag_info info;
        ucp_request_param plain = {0};
        void *message = ucp.tag_probe_nb(t->worker, t->my_tag, ~0ull, 1, &info);
        if (message == NULL)
            return;
        if (info.length == 0 || info.length > PIECE) {
            t->failed = 1;
            return;
        }
        t->coming = info.length;
        t->receiving = ucp.tag_msg_recv_nbx(t->worker, t->inbox, PIECE, message, &plain);
        if (is_error(t->receiving)) {
            t->receiving = NULL;
            t->coming = 0;
            t->failed = 1;
            return;
        }
        progress(t);
    }
    int came = over(t, &t->receiving);
    if (came) {
        t->low = 0;
        t->high = came > 0 ? t->coming : 0;
        t->coming = 0;
    }
}

static int64_t ucx_write(rgpu_transport *base, const void *in, size_t size)
{
    ucx *t = (ucx *)base;
    pthread_mutex_lock(&t->lock);
    int64_t done = write_locked(t, in, size);
    pthread_mutex_unlock(&t->lock);
    return done;
}

static int64_t read_locked(ucx *t, void *out, size_t size)
{
    size_t done = 0;
    if (t->worker == NULL)
        return -1;
    progress(t);
    while (done < size) {
        if (t->low == t->high)
            receive(t);
        if (t->low == t->high) /* what has come counts also when the peer has gone since */
            return t->failed && !done ? -1 : (int64_t)done;
        size_t n = t->high - t->low < size - done ? t->high - t->low : size - done;
        memcpy((char *)out + done, t->inbox + t->low, n);
        t->low += n;
        done += n;
    }
    return (int64_t)done;
}

static int64_t ucx_read(rgpu_transport *base, void *out, size_t size)
{
    ucx *t = (ucx *)base;
    pthread_mutex_lock(&t->lock);
    int64_t done = read_locked(t, out, size);
    pthread_mutex_unlock(&t->lock);
    return done;
}

/* Whether there is something to read, or to learn; the lock is held. */
static int something(ucx *t)
{
    if (t->worker == NULL)
        return 1;
    progress(t);
    if (t->low == t->high)
        receive(t);
    return t->failed || t->low != t->high;
}

static int ucx_news(const rgpu_transport *base)
{
    ucx *t = (ucx *)base;
    if (pthread_mutex_trylock(&t->lock))
        return 0; /* who has it sees the news himself */
    int found = something(t);
    pthread_mutex_unlock(&t->lock);
    return found;
}

static int ucx_doze(rgpu_transport *base, int writing)
{
    ucx *t = (ucx *)base;
    int which;
    pthread_mutex_lock(&t->lock);
    int asleep = !something(t) && !(writing && free_slot(t, &which) != NULL) && ucp.worker_arm(t->worker) == UCS_OK;
    pthread_mutex_unlock(&t->lock);
    return asleep;
}

static int ucx_ring(rgpu_transport *base)
{
    (void)base;
    return 0; /* UCX wakes the other side by itself */
}

static int busy_locked(ucx *t)
{
    int busy = 0;
    if (t->worker == NULL)
        return 0;
    progress(t);
    for (int i = 0; i < SLOTS; i++)
        busy |= !over(t, &t->sending[i]);
    return busy;
}

static int ucx_busy(rgpu_transport *base)
{
    ucx *t = (ucx *)base;
    pthread_mutex_lock(&t->lock);
    int busy = busy_locked(t);
    pthread_mutex_unlock(&t->lock);
    return busy;
}

static int ucx_fd(rgpu_transport *base)
{
    int fd = -1;
    return ucp.worker_get_efd(((ucx *)base)->worker, &fd) == UCS_OK ? fd : -1;
}

static double seconds_now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* What was written leaves, if it does so in time: the peer has to ask for what is large. The lock is held. */
static void leave(ucx *t, double until)
{
    static const struct timespec moment = {0, 50000};
    while (!t->failed && busy_locked(t) && seconds_now() < until)
        nanosleep(&moment, NULL);
}

void rgpu_ucx_shut(rgpu_transport *base, double seconds)
{
    ucx *t = (ucx *)base;
    pthread_mutex_lock(&t->lock);
    if (t->ep != NULL) {
        if (seconds > 0)
            leave(t, seconds_now() + seconds);
        ucp_request_param force = {.mask = OP_FLAGS, .flags = CLOSE_FORCE};
        void *request = ucp.ep_close_nbx(t->ep, &force);
        while (request != NULL && !is_error(request) && ucp.request_check_status(request) == UCS_INPROGRESS)
            ucp.worker_progress(t->worker);
        if (request != NULL && !is_error(request))
            ucp.request_free(request);
        for (int k = 0; k < SLOTS; k++)
            if (t->sending[k] != NULL)
                ucp.request_free(t->sending[k]);
        if (t->receiving != NULL)
            ucp.request_free(t->receiving);
        t->ep = NULL;
    }
    if (t->worker != NULL)
        ucp.worker_destroy(t->worker);
    t->worker = NULL;
    pthread_mutex_unlock(&t->lock);
}

static void ucx_close(rgpu_transport *base)
{
    rgpu_ucx_shut(base, 0);
    pthread_mutex_destroy(&((ucx *)base)->lock);
    free(base);
}

static const rgpu_transport_ops ucx_ops = {
    .read = ucx_read, .write = ucx_write, .doze = ucx_doze, .ring = ucx_ring, .news = ucx_news, .busy = ucx_busy,
    .fd = ucx_fd, .close = ucx_close,
};

rgpu_transport *rgpu_ucx_open(uint64_t tag)
{
    ucp_worker_params params = {.mask = WORKER_THREAD_MODE, .thread_mode = SERIALIZED};
    ucx *t = context == NULL ? NULL : calloc(1, sizeof *t);
    if (t == NULL)
        return NULL;
    t->base.ops = &ucx_ops;
    t->my_tag = tag;
    if (ucp.worker_create(context, &params, &t->worker) != UCS_OK) {
        free(t);
        return NULL;
    }
    pthread_mutex_init(&t->lock, NULL);
    return &t->base;
}

int64_t rgpu_ucx_address(rgpu_transport *base, void *out, size_t size)
{
    ucx *t = (ucx *)base;
    void *address;
    size_t length;
    if (ucp.worker_get_address(t->worker, &address, &length) != UCS_OK)
        return -1;
    if (length <= size)
        memcpy(out, address, length);
    ucp.worker_release_address(t->worker, address);
    return length <= size ? (int64_t)length : -1;
}

static int connect_locked(ucx *t, const void *address, uint64_t tag)
{
    ucp_ep_params params = {.mask = EP_ADDRESS | EP_ERR_MODE | EP_ERR_HANDLER, .address = address,
                            .err_mode = ERR_MODE_PEER, .failed = on_failure, .arg = t};
    t->peer_tag = tag;
    if (ucp.ep_create(t->worker, &params, &t->ep) == UCS_OK)
        return 0;
    params.mask = EP_ADDRESS; /* transports that cannot tell of a peer's end: the socket beside them does */
    return ucp.ep_create(t->worker, &params, &t->ep) == UCS_OK ? 0 : -1;
}

int rgpu_ucx_connect(rgpu_transport *base, const void *address, uint64_t tag)
{
    ucx *t = (ucx *)base;
    pthread_mutex_lock(&t->lock);
    int failed = t->worker == NULL ? -1 : connect_locked(t, address, tag);
    pthread_mutex_unlock(&t->lock);
    return failed;
}
