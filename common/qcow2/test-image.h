/* SPDX-License-Identifier: BSD-3-Clause */
/* The smallest image that has refcounts, in memory: header, refcount table
 * and one refcount block, each in a cluster of its own.  And a commit that
 * writes without any order.
 */

#ifndef TEST_IMAGE_H
#define TEST_IMAGE_H

#include "geometry.h"
#include "header.h"
#include "ondisk.h"
#include "refcount.h"
#include "test-mem.h"

struct test_image {
  struct test_mem mem;
  struct ranked_rwlock meta;
  struct header header;
  struct geometry geo;
  struct mcache *mcache;
  struct overlap *overlap;
  struct refcount rc;
};

static inline void
test_image_open (struct test_image *t)
{
  CHECK_OK (overlap_create (t->geo.cluster_bits, &t->overlap));
  CHECK_OK (overlap_add_locked (t->overlap, 0, 1, OVERLAP_HEADER));
  CHECK_OK (mcache_create (&t->mem.b, t->geo.slice_bits, 1, &t->meta,
                           &t->mcache));
  CHECK_OK (refcount_open (&t->rc, &t->geo, &t->header, &t->mem.b,
                           t->mcache, t->overlap));
}

static inline void
test_image_close (struct test_image *t)
{
  refcount_close (&t->rc);
  mcache_free (t->mcache);
  overlap_free (t->overlap);
}

static inline void
test_image_make (struct test_image *t, unsigned cluster_bits, unsigned order)
{
  const uint64_t cluster = UINT64_C (1) << cluster_bits;
  unsigned i;

  memset (t, 0, sizeof *t);
  t->header.version = 3;
  t->header.cluster_bits = cluster_bits;
  t->header.refcount_order = order;
  t->header.refcount_table_offset = cluster;
  t->header.refcount_table_clusters = 1;
  geometry_init (&t->geo, &t->header);
  ranked_rwlock_init (&t->meta, LOCK_META);
  test_mem_init (&t->mem, 3 * cluster);
  put_be64 (t->mem.bytes + cluster, 2 * cluster);
  for (i = 0; i < 3; ++i)
    refcount_entry_set (t->mem.bytes + 2 * cluster, i, order, 1);
  test_image_open (t);
}

static inline void
test_image_free (struct test_image *t)
{
  test_image_close (t);
  backend_close (&t->mem.b);
  ranked_rwlock_destroy (&t->meta);
}

/* META is held exclusively. */
static inline void
test_image_commit_locked (struct test_image *t)
{
  uint8_t *buf;
  uint64_t lo, hi;

  CHECK_OK (refcount_take_dirty_locked (&t->rc, &buf, &lo, &hi));
  mcache_freeze_locked (t->mcache);
  CHECK_OK (mcache_write_frozen (t->mcache, MCACHE_REFBLOCK, NULL, NULL));
  mcache_thaw_locked (t->mcache);
  if (buf) {
    CHECK_OK (backend_pwrite (&t->mem.b, buf, (hi - lo) * 8,
                              t->rc.table_off + lo * 8, 0));
    free (buf);
  }
}

/* A larger table.  The old one is returned, in bytes and clusters. */
static inline void
test_image_grow_locked (struct test_image *t, uint64_t need_idx,
                        uint64_t *old_off, uint64_t *old_clusters)
{
  struct refcount_growth g;

  test_image_commit_locked (t);
  CHECK_OK (refcount_prepare_grow_locked (&t->rc, need_idx, &g));
  t->header.refcount_table_offset = g.table_off;
  t->header.refcount_table_clusters = g.nr_clusters;
  refcount_switch_locked (&t->rc, &g, old_off, old_clusters);
}

#endif /* TEST_IMAGE_H */
