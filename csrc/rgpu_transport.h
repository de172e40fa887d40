/* Transports: streams of bytes between two processes that are not sockets. One vtable for all of them;
 * no call blocks. A socket beside each carries its bell and tells of the other process's end. */
#ifndef RGPU_TRANSPORT_H
#define RGPU_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "rgpu_transport.cdef.h"

typedef struct {
    /* Bytes moved, 0: none now, -1: the other side broke the rules or is gone. */
    int64_t (*read)(rgpu_transport *, void *out, size_t size);
    int64_t (*write)(rgpu_transport *, const void *in, size_t size);
    /* Before sleeping: 1 when the bell will ring for news (`writing`: and for room), 0 when there is some. */
    int (*doze)(rgpu_transport *, int writing);
    /* Whether the other side sleeps and has to be rung for what was done since; asks once. */
    int (*ring)(rgpu_transport *);
    int (*news)(const rgpu_transport *); /* whether there is something to read, from any thread; NULL: cannot tell */
    int (*busy)(rgpu_transport *); /* whether what was written still needs calls to leave */
    int (*fd)(rgpu_transport *); /* readable when there is news, or -1 */
    void (*close)(rgpu_transport *);
    int64_t (*give)(rgpu_transport *, const struct iovec *parts, int count); /* `write` for several; NULL: one by one */
    int (*core)(const rgpu_transport *); /* which the other side wrote on last, or -1; NULL: cannot tell */
} rgpu_transport_ops;

struct rgpu_transport {
    const rgpu_transport_ops *ops;
};

#endif
