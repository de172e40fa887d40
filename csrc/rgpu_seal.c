/* Records sealed by AES-256-GCM, by a libcrypto that is found when it is needed. A record is its length (u32, little-endian,
 * authenticated), so many bytes of ciphertext and 16 of tag; its nonce is the number of records before it, so one that
 * is changed, repeated, left out or out of order opens nowhere. The twin is rgpu.link.seal. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "rgpu_records.h"

#define HEAD ((size_t)4)
#define TAG ((size_t)16)
#define KEY 32
#define NONCE 12

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
    record_guard base;
    cipher out, in;
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

static int seal_record(record_guard *base, unsigned char *record, const struct iovec *parts, size_t skip, size_t size)
{
    cipher *c = &((seal *)base)->out;
    unsigned char nonce[NONCE], *to = record + HEAD;
    int n;
    put_u32(record, size);
    if (!next_nonce(c, nonce) || evp.encrypt_init(c->ctx, NULL, NULL, NULL, nonce) != 1 ||
        evp.encrypt_update(c->ctx, NULL, &n, record, (int)HEAD) != 1)
        return -1;
    for (size_t left = size; left; parts++, skip = 0) {
        size_t part = parts->iov_len - skip < left ? parts->iov_len - skip : left;
        if (part && evp.encrypt_update(c->ctx, to, &n, (unsigned char *)parts->iov_base + skip, (int)part) != 1)
            return -1;
        to += part;
        left -= part;
    }
    return evp.encrypt_final(c->ctx, to, &n) == 1 && evp.ctrl(c->ctx, GET_TAG, (int)TAG, to) == 1 ? 0 : -1;
}

static size_t length(const record_guard *base, const unsigned char *head)
{
    (void)base;
    return get_u32(head);
}

static int open_record(record_guard *base, const unsigned char *from, unsigned char *to, size_t size)
{
    cipher *c = &((seal *)base)->in;
    unsigned char nonce[NONCE];
    int n;
    return next_nonce(c, nonce) && evp.decrypt_init(c->ctx, NULL, NULL, NULL, nonce) == 1 &&
           evp.decrypt_update(c->ctx, NULL, &n, from, (int)HEAD) == 1 &&
           evp.decrypt_update(c->ctx, to, &n, from + HEAD, (int)size) == 1 &&
           evp.ctrl(c->ctx, SET_TAG, (int)TAG, (void *)(from + HEAD + size)) == 1 &&
           evp.decrypt_final(c->ctx, to + size, &n) == 1;
}

static void seal_close(record_guard *base)
{
    seal *t = (seal *)base;
    if (t->out.ctx)
        evp.ctx_free(t->out.ctx); /* which forgets the keys */
    if (t->in.ctx)
        evp.ctx_free(t->in.ctx);
    free(t);
}

rgpu_transport *rgpu_seal_open(int fd, const void *out_key, const void *in_key, uint64_t records)
{
    const unsigned char *out = out_key, *in = in_key;
    seal *t = loaded ? calloc(1, sizeof *t) : NULL;
    if (!t)
        return NULL;
    t->base = (record_guard){HEAD, TAG, seal_record, length, open_record, seal_close};
    t->out.limit = t->in.limit = records;
    memcpy(t->out.iv, out + KEY, NONCE);
    memcpy(t->in.iv, in + KEY, NONCE);
    t->out.ctx = evp.ctx_new();
    t->in.ctx = evp.ctx_new();
    if (!t->out.ctx || !t->in.ctx || evp.encrypt_init(t->out.ctx, evp.aes_256_gcm(), NULL, out, NULL) != 1 ||
        evp.decrypt_init(t->in.ctx, evp.aes_256_gcm(), NULL, in, NULL) != 1) {
        seal_close(&t->base);
        return NULL;
    }
    return records_open(fd, &t->base);
}
