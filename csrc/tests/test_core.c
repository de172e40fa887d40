/* The C core against the most naive loops there are, under the sanitizers (scripts/check builds it). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rgpu_core.h"

#define ROUNDS 4000

static int check(int good, const char *what)
{
    if (!good)
        fprintf(stderr, "test_core: %s\n", what);
    return good;
}

/* One element after the other, by its index: what pack must do. */
static void naive_pack(char *out, const char *region, int ndim, const int64_t *shape, const int64_t *strides,
                       size_t itemsize, size_t unit)
{
    int64_t total = 1;
    for (int i = 0; i < ndim; i++)
        total *= shape[i];
    for (int64_t n = 0; n < total; n++) {
        const char *from = region;
        int64_t rest = n;
        for (int i = ndim - 1; i >= 0; i--) {
            from += rest % shape[i] * strides[i];
            rest /= shape[i];
        }
        for (size_t k = 0; k < itemsize; k++)
            *out++ = unit > 1 ? from[k / unit * unit + unit - 1 - k % unit] : from[k];
    }
}

static int round_trip(void)
{
    static const size_t sizes[] = {1, 2, 3, 4, 8, 12, 16, 24}, units[] = {0, 2, 4, 8, 16};
    int ndim = rand() % 5, order[5] = {0, 1, 2, 3, 4};
    size_t itemsize = sizes[rand() % 8], unit = units[rand() % 5];
    if (unit > 1 && itemsize % unit)
        unit = 0;
    int64_t shape[5], strides[5], step = (int64_t)itemsize, low = 0, count = 1;
    for (int i = 0; i < ndim; i++) { /* axes in any order in memory, with gaps, in either direction */
        int j = i + rand() % (ndim - i), axis = order[j];
        order[j] = order[i];
        shape[axis] = rand() % 8 ? rand() % 9 : 70;
        if (ndim > 3)
            shape[axis] %= 6;
        strides[axis] = step + (rand() % 3 ? 0 : rand() % 5);
        step = strides[axis] * (shape[axis] ? shape[axis] : 1);
        count *= shape[axis];
        if (rand() % 3 == 0 && shape[axis]) {
            low += strides[axis] * (shape[axis] - 1);
            strides[axis] = -strides[axis];
        }
    }
    size_t bytes = (size_t)step, packed = (size_t)count * itemsize;
    char *memory = malloc(bytes), *again = calloc(bytes, 1);
    char *out = malloc(packed + 1), *expected = malloc(packed + 1); /* exact: an overrun is seen */
    if (!memory || !again || !out || !expected)
        return check(0, "no memory");
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (char)rand();
    int good = check(rgpu_pack(out, memory + low, ndim, shape, strides, itemsize, unit) == 0, "pack refused");
    naive_pack(expected, memory + low, ndim, shape, strides, itemsize, unit);
    good = good && check(memcmp(out, expected, packed) == 0, "pack differs from the naive loop");
    good = good && check(rgpu_unpack(again + low, out, ndim, shape, strides, itemsize, unit) == 0, "unpack refused");
    memset(out, 0, packed);
    naive_pack(out, again + low, ndim, shape, strides, itemsize, unit);
    good = good && check(memcmp(out, expected, packed) == 0, "unpack is not the inverse of pack");
    free(memory), free(again), free(out), free(expected);
    return good;
}

int main(void)
{
    int good = check(rgpu_crc32c(0, "123456789", 9) == 0xe3069283u, "crc32c of the standard's example");
    good &= check(rgpu_crc32c(rgpu_crc32c(0, "1234", 4), "56789", 5) == 0xe3069283u, "crc32c continued");
    int64_t shape[1] = {-1}, strides[1] = {1};
    char byte = 0;
    good &= check(rgpu_pack(&byte, &byte, 1, shape, strides, 1, 0) == -1, "a negative shape was accepted");
    good &= check(rgpu_pack(&byte, &byte, RGPU_MAX_DIMS + 1, shape, strides, 1, 0) == -1, "too many axes accepted");
    srand(7);
    for (int i = 0; good && i < ROUNDS; i++)
        good = round_trip();
    puts(good ? "test_core: ok" : "test_core: FAILED");
    return !good;
}
