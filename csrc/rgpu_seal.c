/* A socket whose bytes are sealed: records of AES-256-GCM, by a libcrypto that is found when it is needed. A record is
 * its length (u32, little-endian, authenticated), so many bytes of ciphertext and 16 of tag; its nonce is the number of
 * records before it, so one that is changed, repeated, left out or out of order opens nowhere. No byte leaves here that
 * did not open. The twin is rgpu.link.seal. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "rgpu_transport.h"

#define RECORD ((size_t)64 << 10) /* bytes of plain text in one; as in rgpu.link.seal */
#define HEAD ((size_t)4)
#define TAG ((size_t)16)
#define KEY 32
#define NONCE 12
#define TAKEN ((size_t)256 << 10) /* of the socket at once, at most */
#define SHORT ((size_t)4 << 10)   /* a record below this may have many behind it */

/* Of OpenSSL's evp.h, whose form has not changed since 1.1. */
enum { GET_TAG = 0x10, SET_TAG = 0x11 };
static struct {
    void *(*ctx_new)(void);
    void (*ctx_free)(void *);
    const void *(*aes_256_gcm)(void);
    int (*encrypt_init)(void *, const void *, void *, const unsigned char *, const unsigned char *);
    int (*encrypt_update)(void *, unsigned char *, int *, const unsigned char *, int);
    int (*encrypt_final)(void *, unsigned char *, int *);
    int (*decrypt_init)(void *, const void *, void *, const unsigned char *, const unsigned char *);
    int (*decrypt_update)(void *, unsigned char *, int *, const unsigned char *, int);
    int (*decrypt_final)(void *, unsigned char *, int *);
    int (*ctrl)(void *, int, int, void *);
} evp;
static int loaded;

int rgpu_seal_load(const char *name)
{
    static const char *const names[] = {
        "EVP_CIPHER_CTX_new", "EVP_CIPHER_CTX_free", "EVP_aes_256_gcm", "EVP_EncryptInit_ex", "EVP_EncryptUpdate",
        "EVP_EncryptFinal_ex", "EVP_DecryptInit_ex", "EVP_DecryptUpdate", "EVP_DecryptFinal_ex", "EVP_CIPHER_CTX_ctrl",
    };
    void **const slots[] = {
        (void **)&evp.ctx_new, (void **)&evp.ctx_free, (void **)&evp.aes_256_gcm, (void **)&evp.encrypt_init,
        (void **)&evp.encrypt_update, (void **)&evp.encrypt_final, (void **)&evp.decrypt_init, (void **)&evp.decrypt_update,
        (void **)&evp.decrypt_final, (void **)&evp.ctrl,
    };
    if (loaded)
        return 0;
    void *library = dlopen(*name ? name : NULL, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return -1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(*slots[i] = dlsym(library, names[i]))) {
            dlclose(library);
            return -1;
        }
    loaded = 1;
    return 0;
}

/* One direction. */
typedef struct {
    void *ctx;
    unsigned char iv[NONCE];
    uint64_t count, limit; /* of records */
} cipher;

typedef struct {
    rgpu_transport base;
    int fd, over;
    cipher out, in;
    unsigned char *sealed;            /* the record that is leaving */
    size_t sealed_low, sealed_high;   /* what has not left of it */
    size_t stands_for, credit;        /* its plain bytes; those that have left, and the caller has not been told */
    unsigned char *taken, *plain;     /* what has come; the record that was opened and not asked for yet */
    size_t low, high, plain_low, plain_high;
    atomic_int more; /* there is something to read without the socket; any thread may ask */
} seal;

/* The nonce of the next record; 0: there is none left under this key. */
static int next_nonce(cipher *c, unsigned char *nonce)
{
    if (c->count >= c->limit)
        return 0;
    memcpy(nonce, c->iv, NONCE);
    for (int i = 0; i < 8; i++)
        nonce[NONCE - 1 - i] ^= (unsigned char)(c->count >> 8 * i);
    c->count++;
    return 1;
}

static void put_u32(unsigned char *to, size_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

static size_t get_u32(const unsigned char *from)
{
    return from[0] | (size_t)from[1] << 8 | (size_t)from[2] << 16 | (size_t)from[3] << 24;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Seals what comes next of these parts, as much as one record takes; -1: it could not. */
static int seal_record(seal *t, const struct iovec *parts, int count, size_t skip)
{
    unsigned char nonce[NONCE], *to = t->sealed + HEAD;
    size_t size = 0;
    int n;
    for (int i = 0; i < count && size < RECORD; i++)
        size += parts[i].iov_len - (i ? 0 : skip);
    size = least(size, RECORD);
    put_u32(t->sealed, size);
    if (!next_nonce(&t->out, nonce) || evp.encrypt_init(t->out.ctx, NULL, NULL, NULL, nonce) != 1 ||
        evp.encrypt_update(t->out.ctx, NULL, &n, t->sealed, (int)HEAD) != 1)
        return -1;
    for (size_t left = size; left; parts++, skip = 0) {
        size_t part = least(parts->iov_len - skip, left);
        if (part && evp.encrypt_update(t->out.ctx, to, &n, (unsigned char *)parts->iov_base + skip, (int)part) != 1)
            return -1;
        to += part;
        left -= part;
    }
    if (evp.encrypt_final(t->out.ctx, to, &n) != 1 || evp.ctrl(t->out.ctx, GET_TAG, (int)TAG, to) != 1)
        return -1;
    t->stands_for = size;
    t->sealed_low = 0;
    t->sealed_high = HEAD + size + TAG;
    return 0;
}

/* 1: the record has left; 0: not all of it; -1: the connection is over. */
static int send_record(seal *t)
{
    while (t->sealed_low < t->sealed_high) {
        ssize_t n = send(t->fd, t->sealed + t->sealed_low, t->sealed_high - t->sealed_low, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
        t->sealed_low += (size_t)n;
    }
    t->credit += t->stands_for;
    t->stands_for = 0;
    return 1;
}

/* A record counts as given when all of it has left: until then the caller keeps its bytes, and offers them again. */
static int64_t seal_give(rgpu_transport *base, const struct iovec *parts, int count)
{
    seal *t = (seal *)base;
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
        if (!t->stands_for && seal_record(t, parts, count, skip))
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

static int64_t seal_write(rgpu_transport *base, const void *in, size_t size)
{
    struct iovec part = {(void *)in, size};
    return seal_give(base, &part, size > 0);
}

/* The length of the record that begins what has come, its head here; 0: it is none. */
static size_t length_of(const seal *t)
{
    size_t n = get_u32(t->taken + t->low);
    return n <= RECORD ? n : 0;
}

static int whole(const seal *t)
{
    return t->high - t->low >= HEAD && t->high - t->low >= HEAD + length_of(t) + TAG;
}

/* Opens the record that is here. Whether it is one. */
static int open_record(seal *t, unsigned char *to, size_t size)
{
    unsigned char nonce[NONCE], *from = t->taken + t->low;
    int n;
    if (!size || !next_nonce(&t->in, nonce) || evp.decrypt_init(t->in.ctx, NULL, NULL, NULL, nonce) != 1 ||
        evp.decrypt_update(t->in.ctx, NULL, &n, from, (int)HEAD) != 1 ||
        evp.decrypt_update(t->in.ctx, to, &n, from + HEAD, (int)size) != 1 ||
        evp.ctrl(t->in.ctx, SET_TAG, (int)TAG, from + HEAD + size) != 1 || evp.decrypt_final(t->in.ctx, to + size, &n) != 1)
        return 0;
    t->low += HEAD + size + TAG;
    return 1;
}

/* Takes in more: 1, 0: there is none now, -1: the connection is over. `dry`: and that was all. */
static int take_more(seal *t, int *dry)
{
    size_t here = t->high - t->low, ask = TAKEN - t->high;
    if (!here)
        t->low = t->high = 0, ask = TAKEN;
    if (here >= HEAD && length_of(t) > SHORT) /* exactly to its end, and the next one's head: nothing is moved twice */
        ask = HEAD + length_of(t) + TAG - here + HEAD;
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

static int64_t seal_read(rgpu_transport *base, void *out, size_t size)
{
    seal *t = (seal *)base;
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
            if (!open_record(t, fits ? to : t->plain, n))
                t->over = 1;
            else if (fits)
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

static int seal_news(const rgpu_transport *base)
{
    const seal *t = (const seal *)base;
    struct pollfd asked = {t->fd, POLLIN, 0};
    return atomic_load(&t->more) || poll(&asked, 1, 0) != 0;
}

static int seal_doze(rgpu_transport *base, int writing)
{
    (void)writing; /* the socket tells of room */
    return !atomic_load(&((seal *)base)->more);
}

static int seal_nothing(rgpu_transport *base)
{
    (void)base;
    return 0;
}

static int seal_fd(rgpu_transport *base) { return ((seal *)base)->fd; }

static void seal_close(rgpu_transport *base)
{
    seal *t = (seal *)base;
    if (t->out.ctx)
        evp.ctx_free(t->out.ctx); /* which forgets the keys */
    if (t->in.ctx)
        evp.ctx_free(t->in.ctx);
    free(t->sealed);
    free(t->taken);
    free(t->plain);
    free(t);
}

static const rgpu_transport_ops seal_ops = {
    .read = seal_read, .write = seal_write, .give = seal_give, .doze = seal_doze, .ring = seal_nothing,
    .news = seal_news, .busy = seal_nothing, .fd = seal_fd, .close = seal_close,
};

rgpu_transport *rgpu_seal_open(int fd, const void *out_key, const void *in_key, uint64_t records)
{
    const unsigned char *out = out_key, *in = in_key;
    seal *t = loaded ? calloc(1, sizeof *t) : NULL;
    if (!t)
        return NULL;
    t->base.ops = &seal_ops;
    t->fd = fd;
    t->out.limit = t->in.limit = records;
    memcpy(t->out.iv, out + KEY, NONCE);
    memcpy(t->in.iv, in + KEY, NONCE);
    t->out.ctx = evp.ctx_new();
    t->in.ctx = evp.ctx_new();
    t->sealed = malloc(HEAD + RECORD + TAG);
    t->taken = malloc(TAKEN);
    t->plain = malloc(RECORD);
    if (!t->out.ctx || !t->in.ctx || !t->sealed || !t->taken || !t->plain ||
        evp.encrypt_init(t->out.ctx, evp.aes_256_gcm(), NULL, out, NULL) != 1 ||
        evp.decrypt_init(t->in.ctx, evp.aes_256_gcm(), NULL, in, NULL) != 1) {
        seal_close(&t->base);
        return NULL;
    }
    return &t->base;
}
