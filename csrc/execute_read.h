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
    const unsigned char *at = r->at;
    uint64_t value = 0;
    if (size == 8) /* as handles are: compilers make one instruction of it */
        value = (uint64_t)at[0] << 56 | (uint64_t)at[1] << 48 | (uint64_t)at[2] << 40 | (uint64_t)at[3] << 32 |
                (uint64_t)at[4] << 24 | (uint64_t)at[5] << 16 | (uint64_t)at[6] << 8 | at[7];
    else
        for (size_t i = 0; i < size; i++)
            value = value << 8 | at[i];
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

/* Bytes behind a mark, by the mark; MORE: what is there says it; NONE: extensions, and what msgpack never uses. */
enum { MORE = -1, NONE = -2 };
static const signed char behind[256] = {
    [0x80 ... 0xbf] = MORE, [0xc1] = NONE, [0xc4 ... 0xc6] = MORE, [0xc7 ... 0xc9] = NONE, [0xca] = 4, [0xcb] = 8,
    [0xcc] = 1, [0xcd] = 2, [0xce] = 4, [0xcf] = 8, [0xd0] = 1, [0xd1] = 2, [0xd2] = 4, [0xd3] = 8,
    [0xd4 ... 0xd8] = NONE, [0xd9 ... 0xdf] = MORE,
};

/* Step over one value, whatever it is; 0 where the bytes are none. Costs no more than their number. */
static inline int skip(reader *r)
{
    uint64_t open = 1, n;
    while (open) {
        if (r->at == r->end || open > (uint64_t)(r->end - r->at))
            return 0;
        open--;
        unsigned char mark = *r->at++;
        uint64_t size = 0;
        if (behind[mark] >= 0)
            size = (uint64_t)behind[mark];
        else if (behind[mark] == NONE)
            return 0;
        else if (mark < 0xa0)
            open += mark < 0x90 ? 2 * (uint64_t)(mark & 15) : (uint64_t)(mark & 15);
        else if (mark < 0xc0)
            size = mark & 31;
        else if (mark < 0xdc) {
            if (!take(r, (size_t)1 << (mark <= 0xc6 ? mark - 0xc4 : mark - 0xd9), &size))
                return 0;
        } else {
            if (!take(r, mark & 1 ? 4 : 2, &n))
                return 0;
            open += mark >= 0xde ? 2 * n : n;
        }
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
