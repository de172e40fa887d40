/* See rgpu_records.h. */
#define _GNU_SOURCE
#include "rgpu_records.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define TAKEN ((size_t)256 << 10) /* of the socket at once, at most */
#define SHORT ((size_t)4 << 10)   /* a record below this may have many behind it */

typedef struct {
    rgpu_transport base;
    int fd, over;
    record_guard *guard;
    unsigned char *leaving;             /* the record that is leaving */
    size_t leaving_low, leaving_high;   /* what has not left of it */
    size_t stands_for, credit;          /* its data's bytes; those that have left, and the caller has not been told */
    unsigned char *taken, *plain;       /* what has come; the record that was opened and not asked for yet */
    size_t low, high, plain_low, plain_high;
    atomic_int more; /* there is something to read without the socket; any thread may ask */
} stream;

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Makes the next record of these parts, of as much as one takes; -1: it could not. */
static int wrap_record(stream *t, const struct iovec *parts, int count, size_t skip)
{
    size_t size = 0;
    for (int i = 0; i < count && size < RECORD; i++)
        size += parts[i].iov_len - (i ? 0 : skip);
    size = least(size, RECORD);
    if (t->guard->wrap(t->guard, t->leaving, parts, skip, size))
        return -1;
    t->stands_for = size;
    t->leaving_low = 0;
    t->leaving_high = t->guard->head + size + t->guard->tail;
    return 0;
}

/* 1: the record has left; 0: not all of it; -1: the connection is over. */
static int send_record(stream *t)
{
    while (t->leaving_low < t->leaving_high) {
        ssize_t n = send(t->fd, t->leaving + t->leaving_low, t->leaving_high - t->leaving_low, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
        t->leaving_low += (size_t)n;
    }
    t->credit += t->stands_for;
    t->stands_for = 0;
    return 1;
}

/* A record counts as given when all of it has left: until then the caller keeps its bytes, and offers them again. */
static int64_t stream_give(rgpu_transport *base, const struct iovec *parts, int count)
{
    stream *t = (stream *)base;
    int64_t total = 0;
    size_t skip = 0;
    while (!t->over) {
        while (count && (t->credit || skip == parts->iov_len)) {
            size_t n = least(parts->iov_len - skip, t->credit);
            t->credit -= n;
            total += (int64_t)n;
            skip += n;
            if (skip < parts->iov_len)
                break;
            parts++, count--, skip = 0;
        }
        if (!count)
            return total;
        if (!t->stands_for && wrap_record(t, parts, count, skip))
            break;
        int sent = send_record(t);
        if (!sent)
            return total;
        if (sent < 0)
            break;
    }
    t->over = 1;
    return total ? total : -1;
}

static int64_t stream_write(rgpu_transport *base, const void *in, size_t size)
{
    struct iovec part = {(void *)in, size};
    return stream_give(base, &part, size > 0);
}

/* The length of the record that begins what has come, its head here; 0: it is none. */
static size_t length_of(const stream *t)
{
    size_t n = t->guard->length(t->guard, t->taken + t->low);
    return n <= RECORD ? n : 0;
}

static size_t around(const stream *t) { return t->guard->head + t->guard->tail; }

static int whole(const stream *t)
{
    return t->high - t->low >= t->guard->head && t->high - t->low >= length_of(t) + around(t);
}

/* Takes in more: 1, 0: there is none now, -1: the connection is over. `dry`: and that was all. */
static int take_more(stream *t, int *dry)
{
    size_t here = t->high - t->low, ask = TAKEN - t->high;
    if (!here)
        t->low = t->high = 0, ask = TAKEN;
    if (here >= t->guard->head && length_of(t) > SHORT) /* exactly to its end, and the next one's head: nothing is moved twice */
        ask = length_of(t) + around(t) - here + t->guard->head;
    if (t->low && t->high + (ask < SHORT ? SHORT : ask) > TAKEN) {
        memmove(t->taken, t->taken + t->low, here);
        t->low = 0;
        t->high = here;
        ask = ask < SHORT ? TAKEN - here : ask;
    }
    ssize_t n = recv(t->fd, t->taken + t->high, ask, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
    t->high += (size_t)n;
    *dry = (size_t)n < ask;
    return 1;
}

static int64_t stream_read(rgpu_transport *base, void *out, size_t size)
{
    stream *t = (stream *)base;
    size_t done = 0;
    int dry = 0;
    while (done < size && !t->over) {
        unsigned char *to = (unsigned char *)out + done;
        if (t->plain_low < t->plain_high) {
            size_t n = least(size - done, t->plain_high - t->plain_low);
            memcpy(to, t->plain + t->plain_low, n);
            t->plain_low += n;
            done += n;
        } else if (whole(t)) {
            size_t n = length_of(t);
            int fits = n <= size - done;
            if (!n || !t->guard->open(t->guard, t->taken + t->low, fits ? to : t->plain, n)) {
                t->over = 1;
                continue;
            }
            t->low += n + around(t);
            if (fits)
                done += n;
            else
                t->plain_low = 0, t->plain_high = n;
        } else {
            int more = dry ? 0 : take_more(t, &dry);
            if (!more)
                break;
            t->over = more < 0;
        }
    }
    atomic_store(&t->more, t->over || t->plain_low < t->plain_high || whole(t));
    return t->over && !done ? -1 : (int64_t)done;
}

static int stream_news(const rgpu_transport *base)
{
    const stream *t = (const stream *)base;
    struct pollfd asked = {t->fd, POLLIN, 0};
    return atomic_load(&t->more) || poll(&asked, 1, 0) != 0;
}

static int stream_doze(rgpu_transport *base, int writing)
{
    (void)writing; /* the socket tells of room */
    return !atomic_load(&((stream *)base)->more);
}

static int stream_nothing(rgpu_transport *base)
{
    (void)base;
    return 0;
}

static int stream_fd(rgpu_transport *base) { return ((stream *)base)->fd; }

static void stream_close(rgpu_transport *base)
{
    stream *t = (stream *)base;
    t->guard->close(t->guard);
    free(t->leaving);
    free(t->taken);
    free(t->plain);
    free(t);
}

static const rgpu_transport_ops stream_ops = {
    .read = stream_read, .write = stream_write, .give = stream_give, .doze = stream_doze, .ring = stream_nothing,
    .news = stream_news, .busy = stream_nothing, .fd = stream_fd, .close = stream_close,
};

rgpu_transport *records_open(int fd, record_guard *guard)
{
    stream *t = guard ? calloc(1, sizeof *t) : NULL;
    if (!t) {
        if (guard)
            guard->close(guard);
        return NULL;
    }
    t->base.ops = &stream_ops;
    t->fd = fd;
    t->guard = guard;
    t->leaving = malloc(HEAD_MOST + RECORD + TAIL_MOST);
    t->taken = malloc(TAKEN);
    t->plain = malloc(RECORD);
    if (!t->leaving || !t->taken || !t->plain) {
        stream_close(&t->base);
        return NULL;
    }
    return &t->base;
}
