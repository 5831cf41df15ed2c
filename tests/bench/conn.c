/* SPDX-License-Identifier: BSD-3-Clause */
/* The request loop of one connection.
 *
 * One thread, no locks.  Requests that became ready are sent with one
 * sendmsg, all replies that arrived are read with one recv; payload that
 * nobody checks is thrown away where it lies.  The loop never blocks in
 * a send, as a server that blocks in sending replies would then wait for
 * us for ever.
 *
 * Invariant: each slot is either in free_slots, or in send_ring, or in
 * flight.
 */

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "conn.h"

#define RX_SIZE (1 << 20)
#define MAX_IOV 64

struct slot {
  uint8_t header[WIRE_REQUEST_SIZE];
  bool is_flush;                /* the request in flight is a flush */
  uint32_t payload_size;
  const uint8_t *payload;
  uint8_t *buf;                 /* verify: block_size bytes */
  uint64_t offset, start_ns, received;
};

static uint64_t
now_ns (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_MONOTONIC, &ts);
  return ts.tv_sec * UINT64_C (1000000000) + ts.tv_nsec;
}

static void
queue_request (struct conn *c, unsigned slot_idx, uint16_t cmd,
               uint16_t flags, uint64_t offset, uint32_t count)
{
  struct slot *s = &c->slots[slot_idx];

  wire_put_request (s->header, flags, cmd, slot_idx, offset, count);
  s->is_flush = cmd == WIRE_CMD_FLUSH;
  s->payload_size = cmd == WIRE_CMD_WRITE ? count : 0;
  s->received = 0;
  c->send_ring[(c->send_head + c->nr_send++) % (c->job->depth + 1)] = slot_idx;
}

/* Issue as many requests as there are free slots. */
static void
refill (struct conn *c)
{
  const struct job *job = c->job;
  uint64_t now;

  if (c->nr_free == 0 || c->quota == 0)
    return;
  now = now_ns ();
  if (now - c->start_ns >= job->duration) {
    c->quota = 0;
    return;
  }
  while (c->nr_free > 0 && c->quota > 0) {
    unsigned idx = c->free_slots[--c->nr_free];
    struct slot *s = &c->slots[idx];

    c->quota--;
    s->start_ns = now;
    if (job->flush_every && c->since_flush >= job->flush_every) {
      c->since_flush = 0;
      c->quota++;               /* a flush does not count */
      queue_request (c, idx, WIRE_CMD_FLUSH, 0, 0, 0);
      continue;
    }
    c->since_flush++;
    s->offset = plan_offset (&c->plan, c->next_idx) + job->align_offset;
    c->next_idx += c->idx_step;
    s->payload = c->payload;
    if (job->verify && job->cmd == WIRE_CMD_WRITE) {
      plan_fill (job->seed, s->offset, s->buf, job->block_size);
      s->payload = s->buf;
    }
    queue_request (c, idx, job->cmd, job->flags, s->offset, job->block_size);
  }
}

/* Send what the socket takes.  Returns 0 or -errno. */
static int
send_some (struct conn *c)
{
  const unsigned ring = c->job->depth + 1;

  while (c->nr_send > 0) {
    struct iovec iov[MAX_IOV];
    struct msghdr msg = { .msg_iov = iov };
    unsigned i, n = 0;
    ssize_t r;

    for (i = 0; i < c->nr_send && n + 2 <= MAX_IOV; ++i) {
      struct slot *s = &c->slots[c->send_ring[(c->send_head + i) % ring]];
      size_t skip = i == 0 ? c->send_done : 0;

      if (skip < WIRE_REQUEST_SIZE)
        iov[n++] = (struct iovec) { s->header + skip,
                                    WIRE_REQUEST_SIZE - skip };
      skip = skip > WIRE_REQUEST_SIZE ? skip - WIRE_REQUEST_SIZE : 0;
      if (s->payload_size > skip)
        iov[n++] = (struct iovec) { (void *) (s->payload + skip),
                                    s->payload_size - skip };
    }
    msg.msg_iovlen = n;
    r = sendmsg (c->wire.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (r == -1)
      return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    for (c->send_done += r; c->nr_send > 0;
         c->send_head = (c->send_head + 1) % ring, c->nr_send--) {
      size_t size = WIRE_REQUEST_SIZE +
        c->slots[c->send_ring[c->send_head]].payload_size;

      if (c->send_done < size)
        break;
      c->send_done -= size;
    }
  }
  return 0;
}

static void
note_error (struct conn *c, uint32_t error)
{
  if (c->errors++ == 0)
    c->first_error = error;
}

/* The reply for S is complete. */
static void
request_done (struct conn *c, struct slot *s)
{
  const unsigned idx = s - c->slots;

  c->rx_slot = NULL;
  if (s->is_flush) {
    c->flushes++;
    if (!c->job->flush_each) {
      c->free_slots[c->nr_free++] = idx;
      return;
    }
  }
  else if (c->job->flush_each) {
    queue_request (c, idx, WIRE_CMD_FLUSH, 0, 0, 0);
    return;
  }
  else if (c->job->verify && c->job->cmd == WIRE_CMD_READ &&
           !plan_matches (c->job->seed, s->offset, s->buf, s->received))
    c->mismatches++;
  histogram_add (&c->hist, now_ns () - s->start_ns);
  c->done++;
  c->free_slots[c->nr_free++] = idx;
}

/* Take payload that has arrived. */
static void
take_payload (struct conn *c)
{
  size_t n = c->rx_end - c->rx_start;
  struct slot *s = c->rx_slot;

  if (n > c->rx_skip)
    n = c->rx_skip;
  if (s->buf && c->job->cmd == WIRE_CMD_READ &&
      s->received + n <= c->job->block_size)
    memcpy (s->buf + s->received, c->rx + c->rx_start, n);
  s->received += n;
  c->rx_start += n;
  c->rx_skip -= n;
}

/* Parse a reply header if it is complete.  Returns 1 if it was, 0 if more
 * bytes are needed, or -EPROTO.
 */
static int
parse_header (struct conn *c)
{
  const uint8_t *p = c->rx + c->rx_start;
  const size_t have = c->rx_end - c->rx_start;
  uint64_t cookie;
  uint32_t magic;

  if (have < WIRE_SIMPLE_REPLY_SIZE)
    return 0;
  magic = wire_get32 (p);
  if (magic == WIRE_SIMPLE_REPLY_MAGIC) {
    uint32_t error = wire_get32 (p + 4);

    cookie = wire_get64 (p + 8);
    if (cookie > c->job->depth)
      return -EPROTO;
    c->rx_slot = &c->slots[cookie];
    if (error)
      note_error (c, error);
    c->rx_skip = c->job->cmd == WIRE_CMD_READ && !error &&
      !c->rx_slot->is_flush ? c->job->block_size : 0;
    c->rx_more = false;
    c->rx_start += WIRE_SIMPLE_REPLY_SIZE;
    return 1;
  }
  if (magic != WIRE_CHUNK_MAGIC)
    return -EPROTO;
  if (have < WIRE_CHUNK_SIZE)
    return 0;
  cookie = wire_get64 (p + 8);
  if (cookie > c->job->depth)
    return -EPROTO;
  c->rx_slot = &c->slots[cookie];
  if (wire_get16 (p + 6) & WIRE_CHUNK_IS_ERROR)
    note_error (c, EIO);
  c->rx_skip = wire_get32 (p + 16);
  c->rx_more = (wire_get16 (p + 4) & WIRE_CHUNK_DONE) == 0;
  c->rx_start += WIRE_CHUNK_SIZE;
  return 1;
}

/* Receive once and handle what came.  Returns 0 or -errno. */
static int
receive_some (struct conn *c, int flags)
{
  ssize_t r;

  if (c->rx_start == c->rx_end)
    c->rx_start = c->rx_end = 0;
  else if (RX_SIZE - c->rx_end < WIRE_CHUNK_SIZE) {
    memmove (c->rx, c->rx + c->rx_start, c->rx_end - c->rx_start);
    c->rx_end -= c->rx_start;
    c->rx_start = 0;
  }
  r = recv (c->wire.fd, c->rx + c->rx_end, RX_SIZE - c->rx_end, flags);
  if (r == -1)
    return errno == EAGAIN || errno == EINTR ? 0 : -errno;
  if (r == 0)
    return -ECONNRESET;
  c->rx_end += r;
  for (;;) {
    if (c->rx_slot == NULL) {
      int h = parse_header (c);

      if (h <= 0)
        return h;
    }
    take_payload (c);
    if (c->rx_skip > 0)
      return 0;
    if (c->rx_more)
      c->rx_slot = NULL;
    else
      request_done (c, c->rx_slot);
  }
}

static int
run_requests (struct conn *c)
{
  int r;

  for (;;) {
    refill (c);
    r = send_some (c);
    if (r < 0)
      return r;
    if (c->nr_free == c->job->depth && c->quota == 0)
      return 0;
    if (c->nr_send > 0) {
      struct pollfd pfd = { .fd = c->wire.fd, .events = POLLIN | POLLOUT };

      if (poll (&pfd, 1, -1) == -1 && errno != EINTR)
        return -errno;
      if ((pfd.revents & ~POLLOUT) == 0)
        continue;
      r = receive_some (c, MSG_DONTWAIT);
    }
    else
      r = receive_some (c, 0);
    if (r < 0)
      return r;
  }
}

/* Give this connection its share of the range and of the requests: a
 * contiguous part for sequential walks, every n-th step of one common
 * permutation for random ones.
 */
static int
make_plan (struct conn *c)
{
  const struct job *job = c->job;
  uint64_t size = job->range_size, nr_blocks;

  if (size == 0 && c->wire.export_size > job->range_start + job->align_offset)
    size = c->wire.export_size - job->range_start - job->align_offset;
  nr_blocks = size / job->block_size;
  c->plan = (struct plan) {
    .start = job->range_start, .nr_blocks = nr_blocks,
    .block_size = job->block_size, .seed = job->seed, .random = job->random,
  };
  if (job->random) {
    c->next_idx = c->id;
    c->idx_step = job->connections;
  }
  else {
    c->plan.nr_blocks /= job->connections;
    c->plan.start += c->id * c->plan.nr_blocks * job->block_size;
    c->idx_step = 1;
  }
  if (c->plan.nr_blocks == 0) {
    fprintf (stderr, "nbdload: the range has no block of %" PRIu32 " bytes"
             " for each connection\n", job->block_size);
    return -1;
  }
  c->quota = job->nr_requests ? job->nr_requests : nr_blocks;
  if (c->quota != UINT64_MAX)
    c->quota = c->quota / job->connections +
      (c->id < c->quota % job->connections);
  return 0;
}

static int
allocate (struct conn *c)
{
  const struct job *job = c->job;
  const unsigned nr = job->depth + 1;
  const bool has_data = job->cmd == WIRE_CMD_WRITE ||
    job->cmd == WIRE_CMD_READ;

  c->slots = calloc (nr, sizeof c->slots[0]);
  c->free_slots = calloc (nr, sizeof c->free_slots[0]);
  c->send_ring = calloc (nr, sizeof c->send_ring[0]);
  c->payload = malloc (has_data ? job->block_size : 1);
  c->rx = malloc (RX_SIZE);
  if (!c->slots || !c->free_slots || !c->send_ring || !c->payload || !c->rx)
    return -1;
  for (unsigned i = 0; i < job->depth; ++i) {
    c->free_slots[c->nr_free++] = i;
    if (job->verify && has_data &&
        (c->slots[i].buf = malloc (job->block_size)) == NULL)
      return -1;
  }
  if (has_data && job->fill >= 0)
    memset (c->payload, job->fill, job->block_size);
  else if (has_data)
    plan_fill (job->seed, (uint64_t) c->id << 40, c->payload,
               job->block_size);
  return 0;
}

static void
release (struct conn *c)
{
  for (unsigned i = 0; c->slots && i < c->job->depth; ++i)
    free (c->slots[i].buf);
  free (c->slots);
  free (c->free_slots);
  free (c->send_ring);
  free (c->payload);
  free (c->rx);
}

static void
disconnect (struct conn *c)
{
  uint8_t header[WIRE_REQUEST_SIZE];

  wire_put_request (header, 0, WIRE_CMD_DISC, 0, 0, 0);
  if (c->result == 0)
    c->result = wire_send (c->wire.fd, header, sizeof header) < 0 ? -1 : 0;
  close (c->wire.fd);
}

void *
conn_run (void *arg)
{
  struct conn *c = arg;
  const struct job *job = c->job;
  int r;

  c->result = wire_connect (&c->wire, job->socket, job->export,
                            job->cmd == WIRE_CMD_BLOCK_STATUS, job->wait_ms);
  if (c->result == 0) {
    if (allocate (c) == -1) {
      fprintf (stderr, "nbdload: out of memory\n");
      c->result = -1;
    }
    else
      c->result = make_plan (c);
    if (c->result == -1)
      disconnect (c);
  }
  pthread_barrier_wait (c->barrier);
  c->start_ns = now_ns ();
  if (c->result == 0) {
    r = run_requests (c);
    if (r < 0) {
      fprintf (stderr, "nbdload: connection lost: %s\n", strerror (-r));
      c->result = -1;
    }
    c->end_ns = now_ns ();
    disconnect (c);
  }
  else
    c->end_ns = c->start_ns;
  release (c);
  return NULL;
}
