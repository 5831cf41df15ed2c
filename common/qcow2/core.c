/* SPDX-License-Identifier: BSD-3-Clause */
/* Opening one qcow2 file: header, tables, and the objects on top of them,
 * in the order of the layers.  Only the header, the L1 table, the refcount
 * table and the snapshot table are read: opening does not get slower with
 * the size of the data.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "bitmaps.h"
#include "core.h"
#include "ondisk.h"

/* The header area is in the first cluster, and seldom has more than a few
 * hundred bytes.  Memory that is touched for the first time costs more time
 * than the reading.
 */
#define FIRST_HEADER_READ UINT64_C (4096)
#define MAX_HEADER_READ (UINT64_C (1) << MAX_CLUSTER_BITS)

/* Of L1 tables of snapshots that are registered as metadata, 16 bytes each
 * at most.  65536 snapshots with 16 clusters each.
 */
#define MAX_SNAPSHOT_L1_CLUSTERS (UINT64_C (1) << 20)

/* What ENTRY_* of which layer: unique for the life of the process. */
static _Atomic uint64_t next_owner = 1;

int
core_read_header (struct backend *file, struct header *h)
{
  const int64_t size = backend_size (file);
  uint64_t len = FIRST_HEADER_READ;
  uint8_t *buf;
  int r;

  if (size < 0) {
    nbdkit_error ("%s: cannot find out its size: %s", file->name,
                  strerror (-size));
    return size;
  }
  for (;;) {
    if (len > (uint64_t) size)
      len = size;
    buf = malloc (len + 1);
    if (buf == NULL)
      return -ENOMEM;
    r = backend_pread (file, buf, len, 0);
    if (r == 0)
      r = header_parse (file->name, buf, len, size, h);
    free (buf);
    if (r != -ENODATA || len == (uint64_t) size || len == MAX_HEADER_READ)
      return r;
    len = MAX_HEADER_READ;
  }
}

/* The length of the table is known only after parsing it: read more and
 * more of it.
 */
static int
read_snapshots (struct core *core)
{
  const struct header *h = &core->header;
  int64_t size = backend_size (core->file);
  uint64_t len = 65536, room;
  uint8_t *buf;
  int r = 0;

  if (h->nb_snapshots == 0)
    return 0;
  if (size < 0)
    return size;
  room = h->snapshots_offset < (uint64_t) size
    ? size - h->snapshots_offset : 0;
  for (;;) {
    if (len > room)
      len = room;
    if (len > MAX_SNAPSHOT_TABLE_SIZE)
      len = MAX_SNAPSHOT_TABLE_SIZE;
    buf = malloc (len + 1);
    if (buf == NULL)
      return -ENOMEM;
    r = backend_pread (core->file, buf, len, h->snapshots_offset);
    if (r == 0)
      r = snapshot_table_parse (core->name, buf, len, h->nb_snapshots,
                                h->size, &core->snapshots);
    free (buf);
    if (r != -ENODATA)
      return r;
    if (len == room || len == MAX_SNAPSHOT_TABLE_SIZE)
      break;
    len *= 4;
  }
  nbdkit_error ("%s: the snapshot table at offset %" PRIu64 " ends beyond "
                "the end of the file: the image is truncated",
                core->name, h->snapshots_offset);
  return -EINVAL;
}

/* The L1 tables of snapshots.  They are in the file, and there are at most
 * MAX_SNAPSHOT_L1_CLUSTERS of them: an image that lies about that, in a
 * sparse file, must not cost more time and memory.  What is left out is not
 * protected against writes that overlap it, but nothing else needs it.
 */
static int
register_snapshots (struct core *core)
{
  int64_t size = backend_size (core->file);
  uint64_t left = MAX_SNAPSHOT_L1_CLUSTERS, bytes, clusters;
  size_t i;
  int r = 0;

  if (size < 0)
    return size;
  for (i = 0; r == 0 && i < core->snapshots.nr; ++i) {
    const struct snapshot_entry *e = &core->snapshots.entries[i];

    bytes = e->l1_size * UINT64_C (8);
    clusters = geometry_clusters (&core->geo, bytes);
    if (bytes > (uint64_t) size ||
        e->l1_table_offset > (uint64_t) size - bytes || clusters > left) {
      nbdkit_debug ("%s: the L1 table of snapshot \"%s\" is not in the file, "
                    "or too much: it is not protected", core->name, e->id);
      continue;
    }
    left -= clusters;
    r = overlap_add_locked (core->overlap, e->l1_table_offset, bytes,
                            OVERLAP_SNAPSHOT_L1);
  }
  return r;
}

/* Metadata that does not move while the image is served. */
static int
register_metadata (struct core *core)
{
  const struct header *h = &core->header;
  struct overlap *o = core->overlap;
  int r;

  WRITE_SCOPE (&core->meta);

  r = overlap_add_locked (o, 0, core->geo.cluster_size, OVERLAP_HEADER);
  if (r == 0 && h->nb_snapshots)
    r = overlap_add_locked (o, h->snapshots_offset, core->snapshots.bytes,
                            OVERLAP_SNAPSHOT_TABLE);
  if (r == 0)
    r = register_snapshots (core);
  if (r == 0 && h->has_bitmaps)
    r = overlap_add_locked (o, h->bitmap_directory_offset,
                            h->bitmap_directory_size, OVERLAP_BITMAPS);
  if (r == 0 && h->has_crypto)
    r = overlap_add_locked (o, h->crypto_offset, h->crypto_length,
                            OVERLAP_CRYPTO);
  return r;
}

/* The L1 table must map the whole disk. */
static int
check_l1_size (const struct core *core)
{
  int64_t need = geometry_l1_entries (&core->geo, core->header.size);

  if (need >= 0 && (uint64_t) need <= core->header.l1_size)
    return 0;
  nbdkit_error ("%s: header field l1_size: the L1 table has %" PRIu32
                " entries, too few for a virtual size of %" PRIu64 " bytes",
                core->name, core->header.l1_size, core->header.size);
  return -EINVAL;
}

/* Persistent bitmaps, if the image vouches for them.  A broken directory is
 * no reason not to serve the image: then it no longer vouches.
 */
static int
open_bitmaps (struct core *core, const struct core_options *opts)
{
  struct bitmaps *bitmaps;
  int r;

  if (!core->header.has_bitmaps ||
      (core->header.autoclear & AUTOCLEAR_BITMAPS) == 0)
    return 0;
  r = bitmaps_open (core->name, &core->geo, &core->header, core->file,
                    &core->alloc, core->overlap, &core->commit,
                    opts->metadata_cache, &bitmaps);
  if (r == -EINVAL)
    return 0;
  if (r < 0)
    return r;
  core->bitmaps = bitmaps;
  core->commit.bitmaps = bitmaps;
  core->commit.announce_bitmaps = bitmaps_announce;
  core->commit.autoclear_kept |= AUTOCLEAR_BITMAPS;
  return 0;
}

/* The metadata layer. */
static int
open_tables (struct core *core, const struct core_options *opts)
{
  const struct header *h = &core->header;
  bool rw = core->writable;
  int r;

  r = mcache_create (core->file, core->geo.slice_bits, opts->metadata_cache,
                     &core->meta, &core->mcache);
  if (r == 0 && rw)
    r = overlap_create (core->geo.cluster_bits, &core->overlap);
  if (r == 0)
    r = map_open (&core->map, core->name, &core->geo, core->file,
                  core->mcache, rw ? &core->alloc : NULL, core->overlap,
                  &core->meta, h->size, h->l1_table_offset, h->l1_size);
  if (r < 0 || !rw)
    return r;

  /* After the L1 table, so that an L1 entry that points to one of these
   * does not hide it.
   */
  r = refcount_open (&core->refcount, &core->geo, h, core->file,
                     core->mcache, core->overlap);
  if (r == 0)
    r = register_metadata (core);
  if (r == 0)
    r = alloc_open (&core->alloc, &core->geo, core->file, &core->refcount,
                    &core->epoch, &core->meta, opts->discard);
  if (r < 0)
    return r;

  core->commit = (struct commit) {
    .name = core->name, .file = core->file, .header = &core->header,
    .mcache = core->mcache, .refcount = &core->refcount,
    .alloc = &core->alloc, .map = &core->map, .epoch = &core->epoch,
    .meta = &core->meta,
    .lazy = h->version >= 3 && (h->compatible & COMPAT_LAZY_REFCOUNTS),
    .autoclear_kept = AUTOCLEAR_DATA_FILE_RAW,
  };
  core->alloc.lazy = core->commit.lazy;
  r = commit_open (&core->commit);
  return r < 0 ? r : open_bitmaps (core, opts);
}

static void
open_io (struct core *core, const struct core_options *opts)
{
  core->io = (struct io) {
    .name = core->name,
    .geo = &core->geo,
    .map = &core->map,
    .size = core->header.size,
    .file = core->file,
    .data = core->file,
    .ccache = opts->ccache,
    .ccache_owner = next_owner++,
    .codec = core->header.compression_type,
  };
  if (core->writable) {
    core->io.writable = true;
    core->io.detect_zeroes = opts->detect_zeroes;
    core->io.alloc = &core->alloc;
    core->io.commit = &core->commit;
    core->io.inflight = &core->inflight;
    core->io.epoch = &core->epoch;
    core->io.bitmaps = core->bitmaps;
  }
}

int
core_open_admin (struct backend *file, const struct core_options *opts,
                 struct core **ret)
{
  struct core *core;
  int r;

  core = calloc (1, sizeof *core);
  if (core == NULL)
    return -ENOMEM;
  core->file = file;
  core->writable = opts->writable;
  ranked_rwlock_init (&core->meta, LOCK_META);
  epoch_init (&core->epoch);
  inflight_init (&core->inflight);
  core->name = strdup (file->name);
  r = core->name ? 0 : -ENOMEM;
  if (r == 0)
    r = core_read_header (core->file, &core->header);
  if (r == 0) {
    geometry_init (&core->geo, &core->header);
    r = check_l1_size (core);
  }
  if (r == 0)
    r = read_snapshots (core);
  if (r == 0)
    r = open_tables (core, opts);
  if (r < 0) {
    core_close (core);
    return r;
  }
  open_io (core, opts);
  *ret = core;
  return 0;
}

int
core_open (struct backend *file, const struct core_options *opts,
           struct core **core)
{
  int r;

  r = core_open_admin (file, opts, core);
  if (r == 0 && opts->writable &&
      ((*core)->header.incompatible & INCOMPAT_CORRUPT)) {
    nbdkit_error ("%s: the image is marked corrupt and cannot be written: "
                  "repair it (repair=all), or serve it read-only (-r)",
                  file->name);
    core_close (*core);
    *core = NULL;
    r = -EROFS;
  }
  /* Reading as zeroes is what it is about, which nothing encrypted does. */
  if (r == 0 && opts->writable)
    (*core)->alloc.reserved.allowed = (*core)->header.crypt_method == 0;
  return r;
}

void
core_set_data_file (struct core *core, struct backend *data)
{
  core->data_file = data;
  core->io.data = data;
  core->commit.data_file = data;
}

int
core_open_snapshot (struct core *core, const struct snapshot_entry *s,
                    struct map *map, struct io *io)
{
  int r;

  r = snapshot_table_check (core->name, &core->geo, s);
  if (r < 0)
    return r;
  r = map_open (map, core->name, &core->geo, core->file, core->mcache, NULL,
                NULL, &core->meta, s->disk_size, s->l1_table_offset,
                s->l1_size);
  if (r < 0)
    return r;
  /* Not a copy: the disk may be written to meanwhile, which counts there. */
  *io = (struct io) {
    .name = core->io.name,
    .geo = core->io.geo,
    .map = map,
    .size = s->disk_size,
    .file = core->io.file,
    .data = core->io.data,
    .backing = core->io.backing,
    .ccache = core->io.ccache,
    .ccache_owner = core->io.ccache_owner,
    .codec = core->io.codec,
    .crypt = core->io.crypt,
    .epoch = core->io.epoch,
  };
  return 0;
}

int
core_finish (struct core *core)
{
  if (!core->writable)
    return 0;
  /* An image that was never changed is left as it is, but for the tail of a
   * server that grew the file ahead and crashed.  Not if somebody else may
   * use that tail by now.
   */
  if (!core->commit.announced) {
    if (core->file->exclusive)
      alloc_trim_file (&core->alloc, false);
    return 0;
  }
  if (core->bitmaps && !commit_has_failed (&core->commit)) {
    int r = bitmaps_store (core->bitmaps);

    if (r < 0)
      return r;
  }
  return commit_finish (&core->commit);
}

void
core_close (struct core *core)
{
  if (core == NULL)
    return;
  bitmaps_close (core->bitmaps);
  if (core->commit.file)
    commit_close (&core->commit);
  if (core->alloc.file)
    alloc_close (&core->alloc);
  if (core->refcount.file)
    refcount_close (&core->refcount);
  map_close (&core->map);
  mcache_free (core->mcache);
  overlap_free (core->overlap);
  snapshot_table_free (&core->snapshots);
  header_free (&core->header);
  inflight_destroy (&core->inflight);
  ranked_rwlock_destroy (&core->meta);
  free (core->name);
  free (core);
}
