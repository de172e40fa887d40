/* What Python sees of the C core. rgpu_core.h includes this file, so there is one declaration.
 * Only plain declarations: cffi parses it without a preprocessor. */

/* Copies the elements of a strided region, in C order, into `out` (pack), or back (unpack).
 * `unit` > 1 reverses the bytes of every `unit` bytes on the way; itemsize is a multiple of it.
 * Returns 0, or -1 when the description makes no sense. Strides are in bytes, and may be negative. */
int rgpu_pack(void *out, const void *region, int ndim, const int64_t *shape, const int64_t *strides,
              size_t itemsize, size_t unit);
int rgpu_unpack(void *region, const void *in, int ndim, const int64_t *shape, const int64_t *strides,
                size_t itemsize, size_t unit);

/* CRC-32C (Castagnoli), continued from `crc` (0 to begin). */
uint32_t rgpu_crc32c(uint32_t crc, const void *data, size_t size);
int rgpu_crc32c_hardware(void);

/* Keeps large blocks in the heap instead of giving them back to the system after each use.
 * Returns 1 when the C library took both settings, 0 when it has no such settings. */
int rgpu_tune_malloc(int mmap_threshold, int trim_threshold);

/* Divisions by zero, and of the least integer by -1, in the code of the loaded shared object of this path give a number
 * instead of SIGFPE, as on a GPU. Returns 1 when they do, 0 when there is no such object, or the processor needs no help. */
int rgpu_divide_as_gpu(const char *path);
