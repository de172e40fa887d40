/* msgpack. Reading what nobody has vouched for: each function leaves the reader alone where it says 0, but `skip`. */
#ifndef RGPU_EXECUTE_READ_H
#define RGPU_EXECUTE_READ_H

#include <stdint.h>
#include <string.h>

/* Bytes that nobody has vouched for: nothing is read beyond `end`. */
typedef struct {
    const unsigned char *at, *end;
} reader;

static inline int take(reader *r, size_t size, uint64_t *x)
{
    if ((size_t)(r->end - r->at) < size)
        return 0;
    uint64_t value = 0;
    for (size_t i = 0; i < size; i++)
        value = value << 8 | r->at[i];
    r->at += size;
    *x = value;
    return 1;
}

/* An integer that is not negative. */
static inline int take_natural(reader *r, uint64_t *x)
{
    if (r->at == r->end)
        return 0;
    unsigned char mark = *r->at;
    if (mark < 0x80) {
        *x = mark;
        r->at++;
        return 1;
    }
    if (mark < 0xcc || mark > 0xd3)
        return 0;
    size_t size = (size_t)1 << (mark & 3);
    reader rest = {r->at + 1, r->end};
    if (!take(&rest, size, x) || (mark >= 0xd0 && *x >> (8 * size - 1)))
        return 0;
    *r = rest;
    return 1;
}

/* Any integer that fits. */
static inline int take_integer(reader *r, int64_t *x)
{
    uint64_t value;
    reader rest = *r;
    if (take_natural(&rest, &value)) {
        if (value > INT64_MAX)
            return 0;
        *x = (int64_t)value;
        *r = rest;
        return 1;
    }
    if (r->at == r->end)
        return 0;
    unsigned char mark = *r->at;
    if (mark >= 0xe0) {
        *x = (int64_t)mark - 256;
        r->at++;
        return 1;
    }
    if (mark < 0xd0 || mark > 0xd3)
        return 0;
    size_t size = (size_t)1 << (mark & 3);
    rest = (reader){r->at + 1, r->end};
    if (!take(&rest, size, &value))
        return 0;
    *x = size == 8 ? (int64_t)value : (int64_t)(value | ~(uint64_t)0 << (8 * size)); /* negative, or take_natural's */
    *r = rest;
    return 1;
}

/* The head of a list (fix, 16, 32). */
static inline int take_list(reader *r, uint64_t *count)
{
    if (r->at == r->end)
        return 0;
    unsigned char mark = *r->at;
    if ((mark & 0xf0) == 0x90) {
        *count = mark & 15;
        r->at++;
        return 1;
    }
    if (mark != 0xdc && mark != 0xdd)
        return 0;
    reader rest = {r->at + 1, r->end};
    if (!take(&rest, mark == 0xdc ? 2 : 4, count))
        return 0;
    *r = rest;
    return 1;
}

static inline int take_text(reader *r, const char **text, size_t *size)
{
    if (r->at == r->end)
        return 0;
    unsigned char mark = *r->at;
    reader rest = {r->at + 1, r->end};
    uint64_t length = mark & 31;
    if ((mark & 0xe0) != 0xa0 && !(mark == 0xd9 && take(&rest, 1, &length)))
        return 0;
    if ((uint64_t)(rest.end - rest.at) < length)
        return 0;
    *text = (const char *)rest.at;
    *size = (size_t)length;
    rest.at += length;
    *r = rest;
    return 1;
}

/* Step over one value, whatever it is; 0 where the bytes are none. Costs no more than their number. */
static inline int skip(reader *r)
{
    uint64_t open = 1, n;
    while (open) {
        if (r->at == r->end || open > (uint64_t)(r->end - r->at))
            return 0;
        open--;
        unsigned char mark = *r->at++;
        if (mark < 0x80 || mark >= 0xe0 || mark == 0xc0 || mark == 0xc2 || mark == 0xc3)
            continue;
        if (mark < 0x90) {
            open += 2 * (uint64_t)(mark & 15);
            continue;
        }
        if (mark < 0xa0) {
            open += mark & 15;
            continue;
        }
        uint64_t size = 0;
        if (mark < 0xc0)
            size = mark & 31;
        else if ((mark >= 0xc4 && mark <= 0xc6) || (mark >= 0xd9 && mark <= 0xdb)) {
            if (!take(r, (size_t)1 << (mark <= 0xc6 ? mark - 0xc4 : mark - 0xd9), &size))
                return 0;
        } else if (mark == 0xca || mark == 0xcb)
            size = mark == 0xca ? 4 : 8;
        else if (mark >= 0xcc && mark <= 0xd3)
            size = (uint64_t)1 << (mark & 3);
        else if (mark >= 0xdc && mark <= 0xdf) {
            if (!take(r, mark & 1 ? 4 : 2, &n))
                return 0;
            open += mark >= 0xde ? 2 * n : n;
        } else
            return 0; /* extensions, and what msgpack never uses */
        if (size > (uint64_t)(r->end - r->at))
            return 0;
        r->at += size;
    }
    return 1;
}

/* Write one integer that is not negative, as msgpack's shortest form; the bytes written. */
static inline size_t store_natural(unsigned char *to, uint64_t x)
{
    if (x < 0x80) {
        *to = (unsigned char)x;
        return 1;
    }
    size_t log = x <= 0xff ? 0 : x <= 0xffff ? 1 : x <= 0xffffffff ? 2 : 3, size = (size_t)1 << log;
    to[0] = (unsigned char)(0xcc + log);
    for (size_t i = 0; i < size; i++)
        to[1 + i] = (unsigned char)(x >> 8 * (size - 1 - i));
    return 1 + size;
}

#endif
