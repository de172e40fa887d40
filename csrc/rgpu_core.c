#include "rgpu_core.h"

#include <string.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

/* ---- strided copies ------------------------------------------------------------------------ */

/* Copies n elements of `size` bytes, `to_step` and `from_step` bytes apart. */
typedef void run_fn(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n, size_t size);

/* The fixed-size memcpy pairs become single moves, aligned or not. */
#define RUN(name, type, value)                                                                         \
    static void name(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n,        \
                     size_t size)                                                                      \
    {                                                                                                  \
        (void)size;                                                                                    \
        for (int64_t i = 0; i < n; i++, to += to_step, from += from_step) {                            \
            type x;                                                                                    \
            memcpy(&x, from, sizeof x);                                                                \
            x = value;                                                                                 \
            memcpy(to, &x, sizeof x);                                                                  \
        }                                                                                              \
    }

typedef struct {
    uint64_t low, high;
} pair;

RUN(copy_1, uint8_t, x)
RUN(copy_2, uint16_t, x)
RUN(copy_4, uint32_t, x)
RUN(copy_8, uint64_t, x)
RUN(copy_16, pair, x)
RUN(swap_2, uint16_t, __builtin_bswap16(x))
RUN(swap_4, uint32_t, __builtin_bswap32(x))
RUN(swap_8, uint64_t, __builtin_bswap64(x))

static void copy_any(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++, to += to_step, from += from_step)
        memcpy(to, from, size);
}

static void swap_any(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++, to += to_step, from += from_step)
        for (size_t k = 0; k < size; k++)
            to[k] = from[size - 1 - k];
}

static void copy_block(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n, size_t size)
{
    (void)to_step;
    (void)from_step;
    memcpy(to, from, (size_t)n * size);
}

static run_fn *choose_run(size_t size, int swap, int contiguous)
{
    if (swap)
        return size == 2 ? swap_2 : size == 4 ? swap_4 : size == 8 ? swap_8 : swap_any;
    if (contiguous)
        return copy_block;
    switch (size) {
    case 1: return copy_1;
    case 2: return copy_2;
    case 4: return copy_4;
    case 8: return copy_8;
    case 16: return copy_16;
    default: return copy_any;
    }
}

/* One axis of a copy: how many elements, and how far apart on either side. The side that is packed
 * has C order, so its smallest step is on the last axis. */
typedef struct {
    int64_t n, to, from;
} axis;

typedef struct {
    axis axes[RGPU_MAX_DIMS + 1]; /* one more for the parts of a swapped element */
    int ndim;
    size_t size;
    int swap;
} plan;

static int64_t distance(int64_t step)
{
    return step < 0 ? -step : step;
}

/* Neighbouring axes that are one run on both sides become one axis. */
static void merge_axes(plan *p)
{
    int last = 0;
    for (int i = 1; i < p->ndim; i++) {
        axis *outer = &p->axes[last], inner = p->axes[i];
        if (outer->to == inner.n * inner.to && outer->from == inner.n * inner.from)
            *outer = (axis){outer->n * inner.n, inner.to, inner.from};
        else
            p->axes[++last] = inner;
    }
    p->ndim = last + 1;
}

#define TILE 16 /* larger tiles collide in the cache when steps are powers of two */

/* Two axes, each the fast one of its own side: tiles keep both sides in the cache. */
static void copy_tiles(const plan *p, axis slow, axis fast, char *to, const char *from, run_fn *run)
{
    for (int64_t i = 0; i < slow.n; i += TILE) {
        int64_t rows = slow.n - i < TILE ? slow.n - i : TILE;
        for (int64_t j = 0; j < fast.n; j += TILE) {
            int64_t columns = fast.n - j < TILE ? fast.n - j : TILE;
            for (int64_t row = i; row < i + rows; row++)
                run(to + row * slow.to + j * fast.to, fast.to, from + row * slow.from + j * fast.from, fast.from,
                    columns, p->size);
        }
    }
}

static void execute(plan *p, char *to, const char *from, int packing)
{
    axis fast = p->axes[p->ndim - 1], slow = {1, 0, 0};
    int outer = p->ndim - 1, tiled = -1;
    int64_t best = distance(packing ? fast.from : fast.to);
    for (int i = 0; i < outer; i++) {
        int64_t step = distance(packing ? p->axes[i].from : p->axes[i].to);
        if (step < best)
            best = step, tiled = i;
    }
    if (tiled >= 0) {
        slow = p->axes[tiled];
        memmove(&p->axes[tiled], &p->axes[tiled + 1], (size_t)(outer - tiled - 1) * sizeof(axis));
        outer--;
        if (!packing) { /* runs write their own side in order; the jumps are left to the reads */
            axis last = fast;
            fast = slow;
            slow = last;
        }
    }
    int contiguous = fast.to == (int64_t)p->size && fast.from == (int64_t)p->size;
    run_fn *run = choose_run(p->size, p->swap, contiguous);

    int64_t at[RGPU_MAX_DIMS + 1] = {0};
    for (;;) {
        if (tiled >= 0)
            copy_tiles(p, slow, fast, to, from, run);
        else
            run(to, fast.to, from, fast.from, fast.n, p->size);
        int i = outer - 1;
        for (; i >= 0; i--) { /* an odometer over the remaining axes */
            const axis *a = &p->axes[i];
            if (++at[i] < a->n) {
                to += a->to;
                from += a->from;
                break;
            }
            to -= (a->n - 1) * a->to;
            from -= (a->n - 1) * a->from;
            at[i] = 0;
        }
        if (i < 0)
            return;
    }
}

static int copy_region(char *to, const char *from, int packing, int ndim, const int64_t *shape,
                       const int64_t *strides, size_t itemsize, size_t unit)
{
    if (ndim < 0 || ndim > RGPU_MAX_DIMS || itemsize == 0 || (unit > 1 && itemsize % unit))
        return -1;
    plan p = {.ndim = 0, .size = unit > 1 ? unit : itemsize, .swap = unit > 1};
    int64_t packed = (int64_t)itemsize;
    for (int i = ndim - 1; i >= 0; i--) {
        if (shape[i] < 0)
            return -1;
        if (shape[i] == 0)
            return 0;
        p.axes[i] = (axis){shape[i], packing ? packed : strides[i], packing ? strides[i] : packed};
        packed *= shape[i];
    }
    if (p.swap) /* the parts of an element are one more axis */
        p.axes[ndim++] = (axis){(int64_t)(itemsize / unit), (int64_t)unit, (int64_t)unit};
    for (int i = 0; i < ndim; i++) /* axes of one element say nothing */
        if (p.axes[i].n != 1)
            p.axes[p.ndim++] = p.axes[i];
    if (p.ndim == 0)
        p.axes[p.ndim++] = (axis){1, (int64_t)p.size, (int64_t)p.size};
    merge_axes(&p);
    execute(&p, to, from, packing);
    return 0;
}

int rgpu_pack(void *out, const void *region, int ndim, const int64_t *shape, const int64_t *strides,
              size_t itemsize, size_t unit)
{
    return copy_region(out, region, 1, ndim, shape, strides, itemsize, unit);
}

int rgpu_unpack(void *region, const void *in, int ndim, const int64_t *shape, const int64_t *strides,
                size_t itemsize, size_t unit)
{
    return copy_region(region, in, 0, ndim, shape, strides, itemsize, unit);
}

/* ---- memory -------------------------------------------------------------------------------- */

int rgpu_tune_malloc(int mmap_threshold, int trim_threshold)
{
#if defined(__GLIBC__)
    return mallopt(M_MMAP_THRESHOLD, mmap_threshold) && mallopt(M_TRIM_THRESHOLD, trim_threshold);
#else
    (void)mmap_threshold;
    (void)trim_threshold;
    return 0;
#endif
}
