/* CRC-32C by the processor's instruction, three streams at a time; by tables where there is none.
 *
 * The instruction takes a word each cycle and has its result three cycles later, so three pieces of the data go through it
 * side by side. The register is linear over GF(2): what BLOCK zero bytes do to it is a table of four times 256 words, and
 * moves the register of a piece past the next one. */
#include "rgpu_crc.h"

#include <string.h>

#define CASTAGNOLI 0x82f63b78u
#define BLOCK 1024 /* bytes of a piece, a power of two */
#define SLICES 8

static uint32_t slices[SLICES][256]; /* what a byte does, followed by so many zero bytes */
static uint32_t past[4][256];        /* what BLOCK zero bytes do to each byte of a register */

static uint32_t times(const uint32_t *matrix, uint32_t vector)
{
    uint32_t sum = 0;
    for (int i = 0; vector; i++, vector >>= 1)
        sum ^= vector & 1u ? matrix[i] : 0u;
    return sum;
}

__attribute__((constructor)) static void make_tables(void) /* when the module is loaded: no threads race for it */
{
    uint32_t zeros[32], twice[32];
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1u ? CASTAGNOLI : 0u);
        slices[0][n] = crc;
    }
    for (int k = 1; k < SLICES; k++)
        for (int n = 0; n < 256; n++)
            slices[k][n] = slices[k - 1][n] >> 8 ^ slices[0][slices[k - 1][n] & 255u];
    for (int i = 0; i < 32; i++) { /* one zero byte */
        uint32_t bit = (uint32_t)1 << i;
        zeros[i] = bit >> 8 ^ slices[0][bit & 255u];
    }
    for (size_t length = 1; length < BLOCK; length *= 2) {
        for (int i = 0; i < 32; i++)
            twice[i] = times(zeros, zeros[i]);
        memcpy(zeros, twice, sizeof zeros);
    }
    for (int k = 0; k < 4; k++)
        for (uint32_t n = 0; n < 256; n++)
            past[k][n] = times(zeros, n << 8 * k);
}

static uint32_t by_tables(uint32_t crc, const unsigned char *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ (data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        crc = slices[7][low & 255u] ^ slices[6][low >> 8 & 255u] ^ slices[5][low >> 16 & 255u] ^ slices[4][low >> 24] ^
              slices[3][data[4]] ^ slices[2][data[5]] ^ slices[1][data[6]] ^ slices[0][data[7]];
    }
    for (; size; data++, size--)
        crc = crc >> 8 ^ slices[0][(crc ^ *data) & 255u];
    return crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

static uint64_t word_at(const unsigned char *data)
{
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

static uint64_t moved(uint64_t crc)
{
    return past[0][crc & 255u] ^ past[1][crc >> 8 & 255u] ^ past[2][crc >> 16 & 255u] ^ past[3][crc >> 24 & 255u];
}

#if defined(__clang__) && __clang_major__ >= 14
#define CRC32_TARGET "sse4.2,crc32" /* a feature of its own there */
#else
#define CRC32_TARGET "sse4.2"
#endif
__attribute__((target(CRC32_TARGET))) static uint32_t by_instruction(uint32_t crc, const unsigned char *data, size_t size)
{
    uint64_t a = crc;
        for (; size >= 3 * BLOCK; data += 3 * BLOCK, size -= 3 * BLOCK) {
        uint64_t b = 0, c = 0;
        for (size_t i = 0; i < BLOCK; i += 8) {
            a = _mm_crc32_u64(a, word_at(data + i));
            b = _mm_crc32_u64(b, word_at(data + BLOCK + i));
            c = _mm_crc32_u64(c, word_at(data + 2 * BLOCK + i));
        }
        a = moved(moved(a) ^ b) ^ c;
    }
    for (; size >= 8; data += 8, size -= 8)
        a = _mm_crc32_u64(a, word_at(data));
    crc = (uint32_t)a;
    for (; size; data++, size--)
        crc = _mm_crc32_u8(crc, *data);
    return crc;
}

int rgpu_crc32c_hardware(void)
{
    return __builtin_cpu_supports("sse4.2") != 0;
}
#else
#define by_instruction by_tables

int rgpu_crc32c_hardware(void)
{
    return 0;
}
#endif

uint32_t rgpu_crc32c(uint32_t crc, const void *data, size_t size)
{
    return ~(rgpu_crc32c_hardware() ? by_instruction(~crc, data, size) : by_tables(~crc, data, size));
}
