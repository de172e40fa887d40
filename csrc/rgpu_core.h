/* rgpu's C core: bytes, strides and checksums. It knows nothing of arrays, commands or Python. */
#ifndef RGPU_CORE_H
#define RGPU_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "rgpu_core.cdef.h"

#define RGPU_MAX_DIMS 64

#endif
