/* The rings in shared memory: two threads, random pieces, a peer that lies; under the sanitizers (scripts/check). */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rgpu_copy.h"
#include "rgpu_transport.h"

#define CAPACITY (1u << 12)
#define TOTAL (4u << 20)

static int check(int good, const char *what)
{
    if (!good)
        fprintf(stderr, "test_transport: %s\n", what);
    return good;
}

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 2654435761u >> 13);
}

static void *writer(void *t)
{
    unsigned char piece[3 * CAPACITY];
    unsigned seed = 1;
    size_t sent = 0;
    while (sent < TOTAL) {
        size_t n = (size_t)rand_r(&seed) % sizeof piece + 1;
        n = n < TOTAL - sent ? n : TOTAL - sent;
        for (size_t i = 0; i < n; i++)
            piece[i] = byte_at(sent + i);
        int64_t done = rgpu_transport_write(t, piece, n);
        if (done < 0)
            return NULL;
        sent += (size_t)done;
        if (done == 0)
            sched_yield();
    }
    return t;
}

static int stream(void *shared)
{
    rgpu_transport *a = rgpu_shm_open(shared, CAPACITY, 0), *b = rgpu_shm_open(shared, CAPACITY, 1);
    unsigned char piece[2 * CAPACITY];
    unsigned seed = 2;
    size_t got = 0;
    int good = a && b;
    pthread_t thread;
    void *result = NULL;
    pthread_create(&thread, NULL, writer, a);
    while (good && got < TOTAL) {
        int64_t n = rgpu_transport_read(b, piece, (size_t)rand_r(&seed) % sizeof piece + 1);
        good = check(n >= 0, "a read failed");
        for (int64_t i = 0; i < n; i++)
            good &= piece[i] == byte_at(got + (size_t)i);
        got += (size_t)n;
        if (n == 0)
            sched_yield();
    }
    pthread_join(thread, &result);
    good = check(good && result == a, "the bytes that came are not those that left");
    rgpu_transport_close(a);
    rgpu_transport_close(b);
    return good;
}

/* A frame so large that it is written past the caches, to places of any alignment. */
static int large(void *shared)
{
    unsigned char *frame = malloc(TOTAL + (1u << 20));
    int good = frame != NULL;
    for (size_t odd = 0; good && odd < 67; odd += 11) {
        rgpu_transport *a = rgpu_shm_open(memset(shared, 0, rgpu_shm_size(CAPACITY)), CAPACITY, 0);
        rgpu_transport *b = rgpu_shm_open(shared, CAPACITY, 1);
        unsigned char piece[CAPACITY];
        size_t got = 0;
        for (size_t turn = 1; good && got < CAPACITY * 5; turn++) {
            size_t size = turn * 97 % CAPACITY + 1;
            for (size_t i = 0; i < size; i++)
                piece[i] = byte_at(got + i);
            good = rgpu_transport_write(a, piece, size) == (int64_t)size &&
                   rgpu_transport_read(b, frame + odd + got, TOTAL + 1) == (int64_t)size;
            got += size;
        }
        for (size_t i = 0; i < got; i++)
            good &= frame[odd + i] == byte_at(i);
        rgpu_transport_close(a);
        rgpu_transport_close(b);
    }
    free(frame);
    return check(good, "a large frame is not what it was");
}

/* Copies at all distances within a page. */
static int copies(void)
{
    enum { SIZE = 5000, ROOM = 3 * 4096 };
    unsigned char *from = aligned_alloc(4096, ROOM), *to = aligned_alloc(4096, ROOM);
    int good = from && to;
    for (size_t i = 0; good && i < ROOM; i++)
        from[i] = byte_at(i);
    for (size_t a = 0; good && a < 70; a += 7)
        for (size_t b = 0; good && b < 140; b++)
            for (int past = 0; past < 2; past++) {
                size_t size = SIZE - 31 * b;
                memset(to, 0xee, ROOM);
                (past ? copy_past_caches : copy_bytes)(to + b, from + a, size);
                good &= !memcmp(to + b, from + a, size) && to[b + size] == 0xee && (!b || to[b - 1] == 0xee);
            }
    free(from);
    free(to);
    return check(good, "a copy is not what it was");
}

static int bells(void *shared)
{
    char byte = 'x', full[CAPACITY] = {0};
    rgpu_transport *a = rgpu_shm_open(shared, CAPACITY, 0), *b = rgpu_shm_open(shared, CAPACITY, 1);
    int good = check(!rgpu_transport_ring(a), "nothing happened, and there is a bell");
    good &= check(rgpu_transport_doze(b, 0), "nothing to read, and no sleep");
    good &= check(rgpu_transport_write(a, &byte, 1) == 1 && rgpu_transport_ring(a), "the sleeper is not rung");
    good &= check(!rgpu_transport_ring(a), "rung twice");
    good &= check(!rgpu_transport_doze(b, 0), "something to read, and asleep");
    good &= check(rgpu_transport_read(b, &byte, 1) == 1 && byte == 'x', "another byte");
    good &= check(rgpu_transport_write(a, full, sizeof full) == CAPACITY, "an empty ring is not empty");
    good &= check(rgpu_transport_write(a, &byte, 1) == 0, "a full ring takes more");
    good &= check(rgpu_transport_doze(a, 1), "a full ring, and no sleep");
    good &= check(rgpu_transport_read(b, &byte, 1) == 1 && rgpu_transport_ring(b), "the waiting writer is not rung");
    rgpu_transport_close(a);
    rgpu_transport_close(b);
    return good;
}

static int liars(unsigned char *shared)
{
    char byte;
    size_t half = rgpu_shm_size(CAPACITY) / 2;
    int good = 1;
    for (unsigned round = 0; round < 2000; round++) {
        memset(shared, 0, 2 * half);
        rgpu_transport *b = rgpu_shm_open(shared, CAPACITY, 1);
        for (int i = 0; i < 16; i++) /* every index and flag that the other side could write */
            shared[((unsigned)i & 1) * half + (size_t)rand() % 192] = (unsigned char)rand();
        char out[64];
        for (int i = 0; i < 8; i++) {
            int64_t n = rgpu_transport_read(b, out, sizeof out), m = rgpu_transport_write(b, out, sizeof out);
            good &= n >= -1 && n <= (int64_t)sizeof out && m >= -1 && m <= (int64_t)sizeof out;
        }
        rgpu_transport_close(b);
    }
    memset(shared, 0x7f, 2 * half);
    rgpu_transport *b = rgpu_shm_open(shared, CAPACITY, 1);
    good &= rgpu_transport_read(b, &byte, 1) == -1 && rgpu_transport_write(b, &byte, 1) == -1;
    rgpu_transport_close(b);
    return check(good, "a liar was believed");
}

int main(void)
{
    unsigned char *shared = aligned_alloc(4096, (rgpu_shm_size(CAPACITY) + 4095) / 4096 * 4096);
    memset(shared, 0, rgpu_shm_size(CAPACITY));
    int good = check(rgpu_shm_open(shared, 3000, 0) == NULL, "a capacity that is no power of two");
    good &= stream(shared);
    memset(shared, 0, rgpu_shm_size(CAPACITY));
    good &= bells(shared) && liars(shared) && large(shared) && copies();
    char why[256];
    good &= check(rgpu_ucx_load("/nowhere/libucp.so.0", why, sizeof why) == -1 && why[0], "UCX out of nowhere");
    good &= check(rgpu_ucx_open(1) == NULL, "UCX without its library");
    free(shared);
    return !good;
}
