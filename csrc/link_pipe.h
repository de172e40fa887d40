/* A connection's end as bytes, and the two that read and write messages there: what the files of a stream share. */
#ifndef RGPU_LINK_PIPE_H
#define RGPU_LINK_PIPE_H
#include "link.h"

#include <sys/uio.h>

#include "rgpu_transport.h"

#define FRAMES 64
#define MESSAGE ((size_t)32 << 20) /* as in rgpu.link.framing */
#define BUFFER (256 << 10)
#define PLACED (96 << 10) /* as in rgpu.link.base */
#define STALLED 50e-6    /* seconds without a byte after which a large frame waits for its turn like everything else */
#define MOVING 3e-3      /* seconds that one call moves a large frame on */

/* Either a socket, or a transport with a socket for its bell. */
typedef struct {
    PyObject *object; /* keeps both alive */
    int fd, near; /* near: both ends of the socket are this machine's */
    rgpu_transport *transport;
} pipe_end;

typedef struct {
    PyObject_HEAD
    pipe_end pipe;
    PyObject *memory; /* a bytearray of BUFFER bytes that nobody resizes */
    unsigned char *buffer;
    Py_ssize_t low, high; /* where the bytes not looked at yet are */
    long long signs, taken; /* taken: bytes of messages, by link_turn.c; set back by who counts them */
    char fresh, heard, emptied, partial;
    char torn; /* as Outlet's */
    unsigned fills;
} Inlet;

typedef struct {
    PyObject_HEAD
    pipe_end pipe;
    long long given; /* as Inlet's taken */
    char torn;       /* the rest of a message was lost: the connection has no use any more */
} Outlet;

/* Nothing here needs the GIL but pipe_from, pipe_told. */
enum { NOTHING = 0, OVER = -1, HUNG_UP = -2, BROKEN = -3 }; /* OVER: errno says why */
int pipe_from(pipe_end *end, PyObject *args);                            /* (pipe): its ``native`` is a file descriptor, and the address of a transport or 0 */
int64_t pipe_take(pipe_end *end, unsigned char *to, size_t size);        /* bytes taken, or one of the above */
int64_t pipe_take_all(pipe_end *end, unsigned char *to, size_t size, double stalled, int64_t *got); /* as long as something comes; `got`: the last look's outcome */
int64_t pipe_told(pipe_end *end, int64_t got);                           /* the same, with an exception (-1) where the connection is over */
int64_t pipe_give(pipe_end *end, struct iovec *parts, int count);        /* bytes given, or -1: errno says why */
int64_t pipe_give_all(pipe_end *end, struct iovec *parts, int count);    /* the same for what is large: as long as the peer takes something */
int pipe_core(const pipe_end *end);                                      /* the core that the peer wrote on last; -1: unknown */

/* link_stream.c */
int64_t inlet_fill(Inlet *in); /* bytes taken into the buffer; -1 with an exception */

static inline uint32_t u32(const unsigned char *from)
{
    return from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

#endif
