/* SPDX-License-Identifier: BSD-3-Clause */
/* Grow or shrink the disk.
 *
 * Invariant: the size in the header changes in one write, after everything
 * that a larger disk needs is stable, and before anything that only a larger
 * disk needed is freed (I1, I5).  What is beyond the end of the disk is
 * never seen, so it may be prepared, or be left over.
 *
 * Locks: LOCK_META for each change; the image is not served.
 *
 * It does not make the refcount table smaller; the file is cut at the end
 * (admin_end).
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "admin.h"
#include "bitmaps-resize.h"
#include "l1-walk.h"
#include "ondisk.h"
#include "resize.h"

#define SECTOR 512

static uint64_t
l1_clusters (const struct core *core, uint64_t nr_l1)
{
  return geometry_clusters (&core->geo, nr_l1 * 8);
}

static int
check (const struct core *core, uint64_t size, bool shrink)
{
  const char *name = core->name;

  if (size > INT64_MAX || geometry_l1_entries (&core->geo, size) < 0) {
    nbdkit_error ("%s: cannot resize: a disk of %" PRIu64 " bytes is too "
                  "large for clusters of %" PRIu64 " bytes", name, size,
                  core->geo.cluster_size);
    return -EFBIG;
  }
  if (core->header.version < 3 && core->header.nb_snapshots > 0) {
    nbdkit_error ("%s: cannot resize: version 2 images with snapshots do not "
                  "record the size of each; delete the snapshots, or convert "
                  "the image (qemu-img amend -o compat=1.1)", name);
    return -ENOTSUP;
  }
  if (size < core->header.size && !shrink) {
    nbdkit_error ("%s: cannot resize: %" PRIu64 " bytes are less than the "
                  "%" PRIu64 " that the disk has, and shrink=true was not "
                  "given: everything beyond the new end would be lost",
                  name, size, core->header.size);
    return -EINVAL;
  }
  return 0;
}

/* --- grow --- */

/* A longer L1 table, stable and in use on return; the size of the disk
 * stays.
 */
static int
grow_l1 (struct core *core, uint64_t nr_l1)
{
  uint64_t old_off = core->map.l1_off, old_nr = core->map.nr_l1, off;
  uint64_t nr = l1_clusters (core, nr_l1);
  struct l1_entry *l1;
  int r;

  l1 = calloc (nr_l1, sizeof *l1);
  if (l1 == NULL)
    return -ENOMEM;
  if (old_nr > 0)
    memcpy (l1, core->map.l1, old_nr * sizeof *l1);
  r = admin_alloc (core, nr, OVERLAP_L1, &off);
  if (r < 0)
    goto out;
  r = l1_walk_write (core, off, l1, nr_l1);
  if (r == 0)
    r = commit_flush (&core->commit);
  if (r == 0)
    r = admin_switch_l1 (core, core->header.size, off, nr_l1);
  if (r == 0)
    admin_free (core, old_off, l1_clusters (core, old_nr), true);
  else if (!commit_has_failed (&core->commit))
    admin_free (core, off, nr, false);
 out:
  free (l1);
  return r;
}

static int
set_data_file_length (struct core *core, uint64_t size)
{
  struct backend *data = core->data_file;
  int64_t len;
  int r;

  if (data == NULL)
    return 0;
  len = backend_size (data);
  if (len < 0)
    return len;
  if ((uint64_t) len == size || (data->fixed_size && (uint64_t) len > size))
    return 0;
  r = backend_truncate (data, size, false);
  if (r == -ENOTSUP || r == -EFBIG)
    r = -ENOSPC;
  if (r < 0)
    nbdkit_error ("%s: cannot resize: the data file cannot have %" PRIu64
                  " bytes", data->name, size);
  return r;
}

/* Make [OFF, SIZE), beyond what was the end, read as zeroes. */
static int
clear_new_space (struct core *core, uint64_t off, uint64_t size)
{
  struct io *io = &core->io;
  uint64_t end;

  /* Clusters from before a shrink, the state of a virtual machine. */
  end = core->map.nr_l1 << geometry_l2_span_bits (&core->geo);
  if (io->backing && end < io->backing->size)
    end = io->backing->size;
  /* A raw data file may have been longer than the disk. */
  if (core->geo.data_file_raw || end > size)
    end = size;
  if (end <= off)
    return 0;
  return io_zero (io, end - off, off, IO_MAY_TRIM, NULL);
}

static int
grow (struct core *core, uint64_t size)
{
  const uint64_t old_size = core->header.size;
  uint64_t old_nr = core->map.nr_l1;
  int64_t nr_l1 = geometry_l1_entries (&core->geo, size);
  int r = 0;

  if (nr_l1 < 0)
    return nr_l1;
  r = set_data_file_length (core, size);
  if (r == 0 && (uint64_t) nr_l1 > old_nr)
    r = grow_l1 (core, nr_l1);
  if (r < 0)
    return r;

  core->map.size = core->io.size = size;
  r = clear_new_space (core, old_size, size);
  if (r == 0)
    r = commit_flush (&core->commit);
  if (r == 0) {
    core->header.size = size;
    r = commit_header (&core->commit, false);
  }
  if (r < 0) {
    core->header.size = old_size;
    core->map.size = core->io.size = old_size;
  }
  return r;
}

/* --- shrink --- */

struct range {
  uint64_t off, len;
};

static int
unmap_range (struct io *io, void *opaque)
{
  struct range *range = opaque;
  uint64_t done;
  int r;

  r = map_prepare_locked (io->map, range->off, range->len);
  if (r < 0)
    return r;
  return map_unmap_locked (io->map, range->off, range->len, &done);
}

/* What the last L2 table that stays maps beyond the end. */
static int
unmap_tail (struct core *core, uint64_t size)
{
  const struct geometry *g = &core->geo;
  uint64_t nr_l1 = core->map.nr_l1, end;
  struct range range;

  if (nr_l1 == 0 || l1_entry_off (core->map.l1[nr_l1 - 1]) == 0)
    return 0;
  end = nr_l1 << geometry_l2_span_bits (g);
  range.off = geometry_cluster_end (g, size);
  range.len = end - range.off;
  if (range.len == 0)
    return 0;
  return io_with_alloc (&core->io, unmap_range, &range);
}

/* Only the first KEEP entries of the L1 table count from now on. */
static int
switch_to_smaller (struct core *core, uint64_t size, uint64_t keep)
{
  struct header *h = &core->header;
  int r;

  h->size = size;
  h->l1_size = keep;
  if (keep == 0)
    h->l1_table_offset = 0;
  r = commit_header (&core->commit, false);
  if (r < 0)
    return r;

  WRITE_SCOPE (&core->meta);

  core->map.nr_l1 = keep;
  core->map.size = core->io.size = size;
  if (keep == 0)
    core->map.l1_off = 0;
  return 0;
}

static int
shrink (struct core *core, uint64_t size)
{
  int64_t keep = geometry_l1_entries (&core->geo, size);
  uint64_t l1_off = core->map.l1_off, old_nr = core->map.nr_l1;
  uint64_t keep_nr, nr;
  struct l1_entry *old;
  int r, r2;

  if (keep < 0)
    return keep;
  keep_nr = l1_clusters (core, keep);
  nr = l1_clusters (core, old_nr);
  old = malloc (old_nr * sizeof *old + 1);
  if (old == NULL)
    return -ENOMEM;
  if (old_nr > 0)
    memcpy (old, core->map.l1, old_nr * sizeof *old);

  r = l1_walk_check (core, old + keep, old_nr - keep);
  if (r == 0)
    r = switch_to_smaller (core, size, keep);
  if (r < 0)
    goto out;

  /* The disk has its new size: from here on only space can be lost. */
  r = l1_walk_free (core, old + keep, old_nr - keep);
  r2 = admin_register_tables (core);
  if (r == 0)
    r = r2;
  if (r == 0) {
    admin_free (core, l1_off + (keep_nr << core->geo.cluster_bits),
                nr - keep_nr, true);
    r = unmap_tail (core, size);
  }
  if (r == 0)
    r = commit_flush (&core->commit);
  if (r == 0)
    r = set_data_file_length (core, size);
 out:
  free (old);
  return r;
}

int
resize_image (struct core *core, uint64_t size, bool may_shrink)
{
  struct bitmaps_resize bitmaps;
  struct admin a;
  uint64_t rounded = (size + SECTOR - 1) & ~(uint64_t) (SECTOR - 1);
  int r, r2;

  r = check (core, size > INT64_MAX ? size : rounded, may_shrink);
  if (r < 0 || rounded == core->header.size)
    return r;
  r = admin_begin (&a, core, false);
  if (r == 0)
    r = bitmaps_resize_begin (&bitmaps, core, rounded);
  if (r == 0) {
    r = rounded < core->header.size ? shrink (core, rounded)
      : grow (core, rounded);
    r2 = bitmaps_resize_end (&bitmaps, false);
    if (r == 0)
      r = r2;
  }
  return admin_end (&a, r, false);
}
