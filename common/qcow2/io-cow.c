/* SPDX-License-Identifier: BSD-3-Clause */
/* Allocating writes: new host clusters, with what surrounds the client's
 * bytes copied from what was there before.
 *
 * The order is: own the guest range (inflight), allocate (refcounts in
 * memory), read head and tail, one pwritev of head + data + tail, change
 * the entries in memory.  A failure in between releases the clusters, to
 * which nothing ever pointed.
 *
 * Head and tail are not read where they are known to be zero, nor written
 * where the new clusters are known to read as zero.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "io.h"

/* Head and tail of one cluster are read together if the gap between them
 * is at most this.
 */
#define READ_GAP (16 * 1024)

/* Most bytes in one step when zeroes are written. */
#define MAX_ZERO_STEP (4 * IO_ZEROES)

/* Enough for head, tail and zeroes of the largest cluster. */
#define MAX_IOV 32

struct cow {
  struct io *io;
  const uint8_t *buf;           /* client's bytes, NULL = zeroes */
  uint64_t off, len;            /* guest range of them */
  uint64_t start, end;          /* guest range that becomes data: rounded
                                   out to (sub)clusters */
  const struct alloc_growth *growth;
  uint64_t host_off;            /* of the cluster that has START */
  uint64_t nr;                  /* clusters */
  bool fresh;                   /* allocated here, else reused */
  bool virgin;                  /* the clusters read as zeroes */
  bool settled;                 /* ALLOC_SETTLED; in the end, if the guest
                                   range read as zeroes, too */
};

/* Must a write to RUN allocate a new host cluster? */
static bool
needs_fresh (const struct map_run *run)
{
  switch (run->type) {
  case ENTRY_UNALLOCATED:
  case ENTRY_ZERO:
  case ENTRY_COMPRESSED:
    return true;
  case ENTRY_DATA:
  case ENTRY_ZERO_ALLOC:
  case ENTRY_UNALLOC_ALLOC:
    return !run->copied;
  case ENTRY_BROKEN:
    break;
  }
  return false;
}

/* What has to become data together with a byte in RUN: a subcluster, or
 * the whole cluster if its other subclusters have data elsewhere.
 */
static uint64_t
granule (const struct geometry *geo, const struct map_run *run)
{
  if (run->type == ENTRY_UNALLOCATED || run->type == ENTRY_ZERO ||
      !needs_fresh (run))
    return geo->subcluster_size;
  return geo->cluster_size;
}

/* Decide what is written in one step.  RUN is at C->off.  0, or -ENOMEM. */
static int
plan (struct cow *c, const struct map_run *run)
{
  const struct geometry *geo = c->io->geo;
  uint64_t n = run->len, unit = granule (geo, run);
  struct map_run next = *run;
  int r;

  c->fresh = needs_fresh (run);
  while (c->fresh && n < c->len) {
    struct map_run more;

    r = map_lookup (c->io->map, c->off + n, c->len - n, false, &more);
    if (r < 0)
      return r;
    if (!needs_fresh (&more))
      break;
    next = more;
    n += next.len;
  }
  if (n < c->len)
    c->len = n;
  c->start = c->off & ~(unit - 1);
  unit = granule (geo, &next);
  c->end = (c->off + c->len + unit - 1) & ~(unit - 1);
  c->nr = (geometry_cluster_end (geo, c->end) -
           geometry_cluster_start (geo, c->start)) >> geo->cluster_bits;
  c->host_off = run->host_off - geometry_in_cluster (geo, c->off);
  return 0;
}

/* io_alloc_fn: L2 tables and host clusters; may shorten the step. */
static int
allocate (struct io *io, void *opaque)
{
  struct cow *c = opaque;
  const struct geometry *geo = io->geo;
  uint64_t nr, end;
  unsigned flags;
  int r;

  r = map_prepare_locked (io->map, c->off, c->len);
  if (r < 0 || !c->fresh)
    return r;
  if (geo->has_data_file) {
    c->host_off = geometry_cluster_start (geo, c->start);
    c->fresh = false;
    return 0;
  }
  r = alloc_clusters_locked (io->alloc, c->nr, c->growth, &c->host_off, &nr,
                             &flags);
  if (r < 0)
    return r;
  c->virgin = flags & ALLOC_VIRGIN;
  c->settled = flags & ALLOC_SETTLED;
  if (nr < c->nr) {
    end = geometry_cluster_start (geo, c->start) + (nr << geo->cluster_bits);
    c->end = end;
    c->len = end - c->off;
    c->nr = nr;
  }
  return 0;
}

/* Old guest content; zeroes beyond the end of the disk. */
static int
read_old (struct io *io, uint8_t *buf, uint64_t len, uint64_t off)
{
  uint64_t n = 0;

  if (off < io->size)
    n = len < io->size - off ? len : io->size - off;
  memset (buf + n, 0, len - n);
  return n ? io_read_range (io, buf, n, off) : 0;
}

/* One side of the client's bytes, or both. */
struct side {
  uint64_t off, len;
  bool zero;
  uint8_t *buf;                 /* old content unless ZERO */
};

/* Read what is not zero of HEAD and TAIL into MEM, which has room for the
 * step's whole range where they are read together.
 */
static int
read_sides (struct cow *c, struct side *head, struct side *tail,
            uint8_t *mem)
{
  struct io *io = c->io;
  int r = 0;

  head->buf = mem;
  if (!head->zero && !tail->zero && c->nr == 1 && c->len <= READ_GAP) {
    tail->buf = mem + head->len + c->len;
    return read_old (io, mem, c->end - c->start, c->start);
  }
  tail->buf = mem + (head->zero ? 0 : head->len);
  if (!head->zero)
    r = read_old (io, head->buf, head->len, head->off);
  if (r == 0 && !tail->zero)
    r = read_old (io, tail->buf, tail->len, tail->off);
  return r;
}

static int
add_side (const struct side *s, struct iovec *iov, int n)
{
  if (s->len == 0)
    return n;
  if (s->zero)
    return n + io_data_zero_iov (&iov[n], MAX_IOV - n, s->len);
  iov[n].iov_base = s->buf;
  iov[n].iov_len = s->len;
  return n + 1;
}

/* Write head, client's bytes and tail in one call. */
static int
write_sides (struct cow *c, struct side *head, struct side *tail)
{
  struct io *io = c->io;
  uint64_t start, end;
  struct iovec iov[MAX_IOV];
  int n = 0;

  if (c->virgin && head->zero)
    head->len = 0;
  if (c->virgin && tail->zero)
    tail->len = 0;
  start = c->off - head->len;
  end = c->off + c->len + tail->len;

  n = add_side (head, iov, n);
  if (c->buf) {
    iov[n].iov_base = (void *) c->buf;
    iov[n].iov_len = c->len;
    n++;
  }
  else if (c->virgin && head->len == 0 && tail->len == 0)
    return 0;
  else
    n += io_data_zero_iov (&iov[n], MAX_IOV - n, c->len);
  n = add_side (tail, iov, n);
  return io_data_pwritev (io, iov, n, end - start, start, c->host_off +
                          (start - geometry_cluster_start (io->geo,
                                                           c->start)), 0);
}

/* Read what is to be copied, and write all. */
static int
copy_and_write (struct cow *c)
{
  struct io *io = c->io;
  struct side head = { .off = c->start, .len = c->off - c->start };
  struct side tail = { .off = c->off + c->len,
                       .len = c->end - (c->off + c->len) };
  uint8_t *mem = NULL;
  int r = 0;

  head.zero = io_reads_zero (io, head.off, head.len);
  tail.zero = io_reads_zero (io, tail.off, tail.len);
  if (io->crypt)
    c->virgin = c->settled = false;
  /* Without a power loss, the client's bytes; after it, those or zeroes. */
  c->settled = c->settled && head.zero && tail.zero &&
    io_reads_zero (io, c->off, c->len);
  if (!head.zero || !tail.zero) {
    mem = malloc (head.len + tail.len + READ_GAP);
    if (mem == NULL)
      return -ENOMEM;
    r = read_sides (c, &head, &tail, mem);
  }
  if (r == 0)
    r = write_sides (c, &head, &tail);
  free (mem);
  return r;
}

/* Nothing points to these clusters.  -ENOSPC, as before. */
static int
give_back (struct cow *c)
{
  struct io *io = c->io;

  if (backend_punch (io->file, c->host_off,
                     c->nr << io->geo->cluster_bits) < 0)
    nbdkit_debug ("%s: cannot give back what was written to a full disk",
                  io->name);
  return -ENOSPC;
}

/* Let the entries point to what was written; R is how that went. */
static int
install (struct cow *c, int r)
{
  struct io *io = c->io;
  const struct geometry *geo = io->geo;
  uint64_t done = 0, first = geometry_cluster_start (geo, c->start);
  uint64_t used;

  /* What was written before the disk was full must not take the space that
   * the next commit needs.
   */
  if (r == -ENOSPC && c->fresh)
    r = give_back (c);

  WRITE_SCOPE (io->map->meta);

  /* A reused cluster may be the last one, and cut off by the end of the
   * file where nothing was in it.
   */
  used = c->host_off + (c->end - first);
  if (r == 0 && !io->geo->has_data_file && io->alloc->file_len < used) {
    io->alloc->file_len = used;
    if (io->alloc->lost_off < used)
      io->alloc->lost_off = used;
  }
  if (r == 0)
    r = map_set_data_locked (io->map, c->start, c->end - c->start,
                             c->host_off, c->settled, &done);
  if (r < 0 && c->fresh) {
    used = done ? (geometry_cluster_end (geo, c->start + done) - first)
      >> geo->cluster_bits : 0;
    alloc_release_locked (io->alloc,
                          c->host_off + (used << geo->cluster_bits),
                          c->nr - used);
  }
  return r;
}

/* The guest range is owned. */
static int
write_owned (struct cow *c)
{
  struct map_run run;
  int r;

  r = map_lookup (c->io->map, c->off, c->len, true, &run);
  if (r < 0)
    return r;
  if (run.type == ENTRY_BROKEN)
    return -EIO;
  if (run.type == ENTRY_DATA && run.copied) {
    c->len = 0;                 /* somebody else was first */
    return 0;
  }
  r = plan (c, &run);
  if (r == 0 && !c->fresh)
    r = io_check_overlap (c->io, c->off, &run);
  if (r == 0)
    r = io_with_alloc (c->io, allocate, c);
  if (r < 0)
    return r;
  return install (c, copy_and_write (c));
}

int
io_write_alloc (struct io *io, const uint8_t *buf, uint64_t len,
                uint64_t off, const struct io_hints *hints, uint64_t *done)
{
  struct inflight_range range;
  struct cow c = {
    .io = io, .buf = buf, .off = off, .len = len,
    .growth = hints && hints->growth.size ? &hints->growth : NULL,
  };
  int r;

  if (buf == NULL && c.len > MAX_ZERO_STEP)
    c.len = MAX_ZERO_STEP;
  inflight_begin (io->inflight, &range,
                  geometry_cluster_start (io->geo, off),
                  geometry_cluster_end (io->geo, off + c.len));
  r = write_owned (&c);
  inflight_end (io->inflight, &range);
  *done = c.len;
  return r;
}
