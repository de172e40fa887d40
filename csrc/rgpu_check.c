/* Records with a checksum, for links that have no keys: TCP's own sum of 16 bits guards single packets between two hosts and
 * nothing that happens to the bytes within one. A record is its length (u32, little-endian), a CRC-32C of that, so many bytes,
 * and a CRC-32C of them that goes on from the first, which itself goes on from the record's number: what is changed, repeated,
 * left out or out of order is found. It proves nothing about who wrote it. The twin is rgpu.link.checked. */
#include <stdlib.h>
#include <string.h>

#include "rgpu_crc.h"
#include "rgpu_records.h"

#define HEAD ((size_t)8)
#define TAIL ((size_t)4)
#define PIECE ((size_t)12 << 10) /* bytes that stay in the nearest cache */

typedef struct {
    record_guard base;
    uint32_t given, taken; /* records so far */
} check;

static uint32_t of_head(uint32_t number, const unsigned char *head) { return rgpu_crc32c(number, head, 4); }

/* Copies, piece by piece, and adds what lies there then to the sum: of what leaves, and of what is used. */
static uint32_t copy(uint32_t sum, unsigned char *to, const unsigned char *from, size_t size)
{
    for (size_t piece; size; size -= piece, from += piece, to += piece) {
        piece = size < PIECE ? size : PIECE;
        memcpy(to, from, piece);
        sum = rgpu_crc32c(sum, to, piece);
    }
    return sum;
}

static int wrap(record_guard *base, unsigned char *record, const struct iovec *parts, size_t skip, size_t size)
{
    unsigned char *to = record + HEAD;
    put_u32(record, size);
    uint32_t sum = of_head(((check *)base)->given++, record);
    put_u32(record + 4, sum);
    for (size_t left = size; left; parts++, skip = 0) {
        size_t part = parts->iov_len - skip < left ? parts->iov_len - skip : left;
        sum = copy(sum, to, (unsigned char *)parts->iov_base + skip, part);
        to += part;
        left -= part;
    }
    put_u32(to, sum);
    return 0;
}

static size_t length(const record_guard *base, const unsigned char *head)
{
    return get_u32(head + 4) == of_head(((const check *)base)->taken, head) ? get_u32(head) : 0;
}

static int open_record(record_guard *base, const unsigned char *from, unsigned char *to, size_t size)
{
    ((check *)base)->taken++;
    return copy((uint32_t)get_u32(from + 4), to, from + HEAD, size) == get_u32(from + HEAD + size);
}

static void check_close(record_guard *base) { free(base); }

rgpu_transport *rgpu_check_open(int fd)
{
    check *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->base = (record_guard){HEAD, TAIL, wrap, length, open_record, check_close};
    return records_open(fd, &t->base);
}
