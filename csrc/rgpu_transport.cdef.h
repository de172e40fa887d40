/* What Python sees of the transports; see rgpu_transport.h. */

typedef struct rgpu_transport rgpu_transport;

int64_t rgpu_transport_read(rgpu_transport *, void *out, size_t size);
int64_t rgpu_transport_write(rgpu_transport *, const void *in, size_t size);
int rgpu_transport_doze(rgpu_transport *, int writing);
int rgpu_transport_ring(rgpu_transport *);
int rgpu_transport_busy(rgpu_transport *);
int rgpu_transport_fd(rgpu_transport *);
void rgpu_transport_close(rgpu_transport *);

/* Two rings, one each way, in memory that two processes share: rgpu_shm_size(capacity) zeroed bytes.
 * `side` is 0 on one end and 1 on the other. NULL: no memory, or capacity is not a power of two. */
size_t rgpu_shm_size(size_t capacity);
rgpu_transport *rgpu_shm_open(void *shared, size_t capacity, int side);

/* UCX. `load` finds the library once a process: 0, or -1 with the reason in `why`. `open` makes an end that
 * takes messages with this tag, `address` tells where it is (bytes written, or -1), `connect` gives it its peer;
 * before that nothing moves. */
int rgpu_ucx_load(const char *path, char *why, size_t size);
rgpu_transport *rgpu_ucx_open(uint64_t tag);
int64_t rgpu_ucx_address(rgpu_transport *, void *out, size_t size);
int rgpu_ucx_connect(rgpu_transport *, const void *address, uint64_t tag);
/* Lets what was written leave for so many seconds at most; then nothing arrives or leaves any more, others may still ask. */
void rgpu_ucx_shut(rgpu_transport *, double seconds);

/* A connected socket whose bytes are sealed by AES-256-GCM. `load` finds a libcrypto by this name (empty: in the process
 * itself): 0, or -1. A direction's key is 32 bytes and 12 of its first nonce; under it go so many records and no more. */
int rgpu_seal_load(const char *name);
rgpu_transport *rgpu_seal_open(int fd, const void *out_key, const void *in_key, uint64_t records);

/* A connected socket whose bytes have checksums, no keys. */
rgpu_transport *rgpu_check_open(int fd);
