/* Bytes in and out of a socket or a transport. */
#define _GNU_SOURCE
#include "link_pipe.h"

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#define PIECE (256 << 10) /* bytes after which a sleeping reader of a ring is woken */

static int is_near(int fd)
{
    struct sockaddr_storage here = {0}, there = {0};
    socklen_t size = sizeof here, other = sizeof there;
    if (getsockname(fd, (struct sockaddr *)&here, &size) || getpeername(fd, (struct sockaddr *)&there, &other) ||
        here.ss_family != there.ss_family)
        return 0;
    if (here.ss_family == AF_INET)
        return ((struct sockaddr_in *)&here)->sin_addr.s_addr == ((struct sockaddr_in *)&there)->sin_addr.s_addr;
    return here.ss_family == AF_INET6 && !memcmp(&((struct sockaddr_in6 *)&here)->sin6_addr,
                                                 &((struct sockaddr_in6 *)&there)->sin6_addr, sizeof(struct in6_addr));
}

int pipe_core(const pipe_end *end)
{
    const rgpu_transport *far = end->transport;
    if (far && far->ops->core)
        return far->ops->core(far);
#ifdef SO_INCOMING_CPU
    int core;
    socklen_t size = sizeof core; /* what comes from this machine is put into the socket on the core that sent it */
    if (end->near && !getsockopt(end->fd, SOL_SOCKET, SO_INCOMING_CPU, &core, &size))
        return core;
#endif
    return -1;
}

int pipe_from(pipe_end *end, PyObject *args)
{
    PyObject *object, *native;
    unsigned long long transport;
    if (!PyArg_ParseTuple(args, "O", &object) || !(native = PyObject_GetAttrString(object, "native")))
        return -1;
    int good = PyArg_ParseTuple(native, "iK", &end->fd, &transport);
    Py_DECREF(native);
    if (!good)
        return -1;
    end->transport = (rgpu_transport *)(uintptr_t)transport;
    end->near = is_near(end->fd);
    Py_INCREF(object);
    end->object = object;
    return 0;
}

/* -1: errno says why. Needs no GIL. */
static int ring(pipe_end *end)
{
    if (end->transport->ops->ring(end->transport) && send(end->fd, "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
        errno != EAGAIN && errno != EWOULDBLOCK)
        return -1;
    return 0;
}

static int ended(pipe_end *end)
{
    PyObject *said = PyObject_GetAttrString(end->object, "ended");
    int is = said ? PyObject_IsTrue(said) : -1;
    Py_XDECREF(said);
    return is;
}

int64_t pipe_take(pipe_end *end, unsigned char *to, size_t size)
{
    if (!end->transport) {
        int64_t got = recv(end->fd, to, size, MSG_DONTWAIT);
        if (got > 0)
            return got;
        return !got ? HUNG_UP : errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? NOTHING : OVER;
    }
    int64_t got = end->transport->ops->read(end->transport, to, size);
    return got < 0 ? BROKEN : got > 0 && ring(end) ? OVER : got;
}

int64_t pipe_told(pipe_end *end, int64_t got)
{
    if (got > 0)
        return got;
    if (got == NOTHING) {
        int over = end->transport ? ended(end) : 0;
        if (over > 0)
            PyErr_SetString(PyExc_ConnectionError, "the peer is gone");
        return over ? -1 : 0;
    }
    PyErr_SetString(PyExc_ConnectionError, got == OVER ? strerror(errno) : got == HUNG_UP ? "the peer hung up" : "the peer broke the rules of the transport, or is gone");
    return -1;
}

int64_t pipe_take_all(pipe_end *end, unsigned char *to, size_t size, double stalled, int64_t *got)
{
    double began = link_now(), heard = began, now = began;
    int64_t total = 0;
    *got = 1;
    while ((size_t)total < size && *got >= 0 && now - heard < stalled && now - began < MOVING) {
        *got = pipe_take(end, to + total, size - (size_t)total);
        now = link_now();
        if (*got > 0) {
            total += *got;
            heard = now;
        } else if (!*got)
            sched_yield();
    }
    return total;
}

static int64_t give_socket(int fd, struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    int64_t given = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (given < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    return given;
}

static int64_t give_transport(pipe_end *end, const struct iovec *parts, int count)
{
    int64_t total = 0;
    if (end->transport->ops->give) {
        total = end->transport->ops->give(end->transport, parts, count);
        errno = total < 0 ? EPIPE : 0;
        return total;
    }
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < parts[i].iov_len;) {
            size_t left = parts[i].iov_len - at, size = left < PIECE ? left : PIECE;
            int64_t given = end->transport->ops->write(end->transport, (char *)parts[i].iov_base + at, size);
            if (given < 0)
                errno = EPIPE;
            if (given < 0 || ring(end))
                return -1;
            total += given;
            at += (size_t)given;
            if ((size_t)given < size)
                return total;
        }
    return total;
}

int64_t pipe_give(pipe_end *end, struct iovec *parts, int count)
{
    return end->transport ? give_transport(end, parts, count) : give_socket(end->fd, parts, count);
}

int64_t pipe_give_all(pipe_end *end, struct iovec *parts, int count)
{
    double began = link_now(), heard = began, now = began;
    int64_t total = 0;
    while (count && now - heard < STALLED && now - began < MOVING) {
        int64_t given = pipe_give(end, parts, count);
        if (given < 0)
            return total ? total : -1; /* the next call says it again */
        now = link_now();
        total += given;
        if (given)
            heard = now;
        else
            sched_yield();
        for (; count && (size_t)given >= parts->iov_len; parts++, count--)
            given -= (int64_t)parts->iov_len;
        if (count) {
            parts->iov_base = (char *)parts->iov_base + given;
            parts->iov_len -= (size_t)given;
        }
    }
    return total;
}
