/* SPDX-License-Identifier: BSD-3-Clause */
/* One connection of the load generator: keeps a number of requests in
 * flight until its share of the work is done.
 */

#ifndef BENCH_CONN_H
#define BENCH_CONN_H

#include <stdbool.h>
#include <stdint.h>
#include <pthread.h>

#include "histogram.h"
#include "plan.h"
#include "wire.h"

/* What to do; shared by all connections, read-only while they run. */
struct job {
  const char *socket, *export;
  uint16_t cmd, flags;          /* WIRE_CMD_*, WIRE_FLAG_* */
  bool flush_each;              /* each request is followed by a flush */
  uint64_t flush_every;         /* a flush after so many requests, or 0 */
  bool verify;                  /* write, or check, the pattern of plan.h */
  int fill;                     /* byte value to write, or -1: random bytes */
  uint32_t block_size;
  unsigned connections, depth;
  uint64_t nr_requests;         /* of all connections; 0: each block once,
                                   UINT64_MAX: no limit */
  uint64_t duration;            /* nanoseconds; UINT64_MAX: no limit */
  uint64_t range_start, range_size; /* bytes */
  uint64_t align_offset;        /* added to each block's offset */
  bool random;
  uint64_t seed;
  unsigned wait_ms;             /* for the server to appear */
};

struct slot;

struct conn {
  const struct job *job;
  unsigned id;
  pthread_barrier_t *barrier;   /* all connections start together */
  struct wire wire;
  struct plan plan;
  uint64_t next_idx, idx_step;  /* position in the plan */
  uint64_t quota;               /* requests still to be issued */
  uint64_t since_flush;         /* requests since the last flush */

  struct slot *slots;           /* job->depth of them */
  unsigned *free_slots, nr_free;
  unsigned *send_ring, send_head, nr_send; /* slots whose request waits */
  size_t send_done;             /* bytes of the first that are sent */
  uint8_t *payload;             /* random bytes, block_size of them */
  uint8_t *rx;                  /* receive buffer */
  size_t rx_start, rx_end;
  struct slot *rx_slot;         /* whose reply payload is being read */
  uint64_t rx_skip;             /* bytes of payload still to come */
  bool rx_more;                 /* chunks follow for the same request */

  uint64_t start_ns, end_ns;
  uint64_t done, errors, flushes, mismatches;
  uint32_t first_error;         /* NBD errno of the first error */
  struct histogram hist;
  int result;                   /* 0, or -1 after a message */
};

/* Thread function; ARG is a struct conn whose job, id and barrier are set
 * and whose other fields are zero.  Results are left in it.
 */
extern void *conn_run (void *arg);

#endif /* BENCH_CONN_H */
