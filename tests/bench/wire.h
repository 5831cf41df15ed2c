/* SPDX-License-Identifier: BSD-3-Clause */
/* The NBD protocol as a load generator needs it: newstyle negotiation on
 * a Unix socket, then requests and replies as bytes.
 */

#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <endian.h>

#define WIRE_CMD_READ 0
#define WIRE_CMD_WRITE 1
#define WIRE_CMD_DISC 2
#define WIRE_CMD_FLUSH 3
#define WIRE_CMD_TRIM 4
#define WIRE_CMD_ZERO 6
#define WIRE_CMD_BLOCK_STATUS 7

#define WIRE_FLAG_FUA 1
#define WIRE_FLAG_NO_HOLE 2
#define WIRE_FLAG_FAST_ZERO 16

#define WIRE_REQUEST_SIZE 28
#define WIRE_SIMPLE_REPLY_SIZE 16
#define WIRE_CHUNK_SIZE 20
#define WIRE_SIMPLE_REPLY_MAGIC UINT32_C (0x67446698)
#define WIRE_CHUNK_MAGIC UINT32_C (0x668e33ef)
#define WIRE_CHUNK_DONE 1
#define WIRE_CHUNK_IS_ERROR 0x8000

struct wire {
  int fd;
  uint64_t export_size;         /* bytes */
  uint16_t eflags;              /* transmission flags of the export */
};

/* Connect to the Unix socket at PATH and negotiate EXPORT.  With
 * BLOCK_STATUS, structured replies and base:allocation are negotiated
 * too.  Tries again for WAIT_MS milliseconds while there is no server.
 * Returns 0, or -1 after a message on stderr.  On success the caller
 * closes W->fd.
 */
extern int wire_connect (struct wire *w, const char *path,
                         const char *export, bool block_status,
                         unsigned wait_ms)
  __attribute__ ((warn_unused_result));

/* Write all LEN bytes.  Returns 0 or -errno. */
extern int wire_send (int fd, const void *buf, size_t len)
  __attribute__ ((warn_unused_result));

static inline void
wire_put16 (uint8_t *p, uint16_t v)
{
  v = htobe16 (v);
  memcpy (p, &v, sizeof v);
}

static inline void
wire_put32 (uint8_t *p, uint32_t v)
{
  v = htobe32 (v);
  memcpy (p, &v, sizeof v);
}

static inline void
wire_put64 (uint8_t *p, uint64_t v)
{
  v = htobe64 (v);
  memcpy (p, &v, sizeof v);
}

static inline uint16_t
wire_get16 (const uint8_t *p)
{
  uint16_t v;

  memcpy (&v, p, sizeof v);
  return be16toh (v);
}

static inline uint32_t
wire_get32 (const uint8_t *p)
{
  uint32_t v;

  memcpy (&v, p, sizeof v);
  return be32toh (v);
}

static inline uint64_t
wire_get64 (const uint8_t *p)
{
  uint64_t v;

  memcpy (&v, p, sizeof v);
  return be64toh (v);
}

/* Fill in the 28 bytes of a request. */
static inline void
wire_put_request (uint8_t *p, uint16_t flags, uint16_t cmd, uint64_t cookie,
                  uint64_t offset, uint32_t count)
{
  wire_put32 (p, UINT32_C (0x25609513));
  wire_put16 (p + 4, flags);
  wire_put16 (p + 6, cmd);
  wire_put64 (p + 8, cookie);
  wire_put64 (p + 16, offset);
  wire_put32 (p + 24, count);
}

#endif /* BENCH_WIRE_H */
