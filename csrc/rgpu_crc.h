/* CRC-32C (Castagnoli), for both modules that need it: rgpu_core.cdef.h declares it for Python. */
#ifndef RGPU_CRC_H
#define RGPU_CRC_H

#include <stddef.h>
#include <stdint.h>

uint32_t rgpu_crc32c(uint32_t crc, const void *data, size_t size);
int rgpu_crc32c_hardware(void);

#endif
