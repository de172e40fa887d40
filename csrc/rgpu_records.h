/* A socket whose bytes travel in records, each guarded by what somebody else knows how to do: rgpu_seal.c seals them,
 * rgpu_check.c gives them a checksum. No byte leaves here whose record did not open. The twin is rgpu.link.records. */
#ifndef RGPU_RECORDS_H
#define RGPU_RECORDS_H

#include "rgpu_transport.h"

#define RECORD ((size_t)64 << 10) /* bytes of data in one; as in rgpu.link.records */
#define HEAD_MOST 8
#define TAIL_MOST 16

/* How one connection's records are guarded, in both directions. */
typedef struct record_guard record_guard;
struct record_guard {
    size_t head, tail; /* bytes before and behind the data */
    /* Writes the next record's head, data and tail: `size` bytes of these parts, `skip` of the first passed over. 0, or -1. */
    int (*wrap)(record_guard *, unsigned char *to, const struct iovec *parts, size_t skip, size_t size);
    /* The length that the head of the next record names; 0: it is none. */
    size_t (*length)(const record_guard *, const unsigned char *head);
    /* The data of the next record, of this length, which lies at `from`. Whether it is one. */
    int (*open)(record_guard *, const unsigned char *from, unsigned char *to, size_t size);
    void (*close)(record_guard *);
};

/* Takes the guard over, also where it fails (NULL). */
rgpu_transport *records_open(int fd, record_guard *guard);

static inline void put_u32(unsigned char *to, size_t value)
{
    for (int i = 0; i < 4; i++)
        to[i] = (unsigned char)(value >> 8 * i);
}

static inline size_t get_u32(const unsigned char *from)
{
    return from[0] | (size_t)from[1] << 8 | (size_t)from[2] << 16 | (size_t)from[3] << 24;
}

#endif
