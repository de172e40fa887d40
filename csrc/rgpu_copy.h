/* Copies of kilobytes and more. */
#ifndef RGPU_COPY_H
#define RGPU_COPY_H
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define COPY_LINE 64

/* memcpy, but for one case. C libraries copy from 2 KiB to about 1 MiB by `rep movsb`, which on AMD's cores takes ten times as
 * long where the target's place in its page is 1 to 63 bytes behind the source's (measured on EPYC, glibc 2.36: 256 KiB in
 * 88 us, else in 8). */
static inline void copy_bytes(void *to, const void *from, size_t size)
{
#ifdef __SSE2__
    if (size >= 2048 && (((uintptr_t)to - (uintptr_t)from) & 4095) - 1 < COPY_LINE - 1) {
        unsigned char *target = to;
        const unsigned char *source = from;
        for (; size >= COPY_LINE; target += COPY_LINE, source += COPY_LINE, size -= COPY_LINE) {
            __m128i line[4];
            for (int i = 0; i < 4; i++)
                line[i] = _mm_loadu_si128((const __m128i *)source + i);
            for (int i = 0; i < 4; i++)
                _mm_storeu_si128((__m128i *)target + i, line[i]);
        }
        memcpy(target, source, size);
        return;
    }
#endif
    memcpy(to, from, size);
}

/* The same for what will not be read again soon: a plain copy would first fetch each line that it overwrites. */
static inline void copy_past_caches(void *to, const void *from, size_t size)
{
#ifdef __SSE2__
    unsigned char *target = to;
    const unsigned char *source = from;
    size_t odd = -(uintptr_t)target & (COPY_LINE - 1);
    odd = odd < size ? odd : size;
    memcpy(target, source, odd);
    for (target += odd, source += odd, size -= odd; size >= COPY_LINE;
         target += COPY_LINE, source += COPY_LINE, size -= COPY_LINE)
        for (int i = 0; i < 4; i++)
            _mm_stream_si128((__m128i *)target + i, _mm_loadu_si128((const __m128i *)source + i));
    _mm_sfence();
    memcpy(target, source, size);
#else
    memcpy(to, from, size);
#endif
}

#endif
