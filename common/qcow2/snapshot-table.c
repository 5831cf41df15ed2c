/* SPDX-License-Identifier: BSD-3-Clause */
/* The snapshot table: bytes to structs and back.
 *
 * Invariant: what was parsed keeps the limits of ondisk.h, and an entry
 * that is written again keeps its extra data.  Locks: none.
 *
 * It does not look at the L1 tables, except for their place and size in
 * snapshot_table_check: one snapshot that is broken must not make the rest
 * of the image unreadable.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "ondisk.h"
#include "snapshot-table.h"

/* The extra data that we know, and always write. */
#define SNAP_EXTRA_KNOWN 24

static uint64_t
round_up_8 (uint64_t n)
{
  return (n + 7) & ~UINT64_C (7);
}

static void
entry_free (struct snapshot_entry *e)
{
  free (e->id);
  free (e->name);
  free (e->extra);
}

void
snapshot_table_free (struct snapshot_table *t)
{
  size_t i;

  for (i = 0; i < t->nr; i++)
    entry_free (&t->entries[i]);
  free (t->entries);
  memset (t, 0, sizeof *t);
}

/* The defined fields of the extra data at P, as far as LEN reaches; the
 * rest is kept.
 */
static int
parse_extra (const uint8_t *p, uint32_t len, uint64_t disk_size,
             struct snapshot_entry *e)
{
  if (len >= SNAP_EXTRA_VM_STATE_SIZE + 8)
    e->vm_state_size = get_be64 (p + SNAP_EXTRA_VM_STATE_SIZE);
  e->disk_size = len >= SNAP_EXTRA_DISK_SIZE + 8
    ? get_be64 (p + SNAP_EXTRA_DISK_SIZE) : disk_size;
  e->icount = len >= SNAP_EXTRA_ICOUNT + 8
    ? get_be64 (p + SNAP_EXTRA_ICOUNT) : UINT64_MAX;
  if (len > SNAP_EXTRA_KNOWN) {
    e->extra_len = len - SNAP_EXTRA_KNOWN;
    e->extra = malloc (e->extra_len);
    if (e->extra == NULL)
      return -ENOMEM;
    memcpy (e->extra, p + SNAP_EXTRA_KNOWN, e->extra_len);
  }
  return 0;
}

/* Parse the entry at P, of which LEN bytes are there, into E, which is all
 * zero.  *BYTES: how many it takes on disk, padding included.
 */
static int
parse_entry (const char *name, uint32_t idx, const uint8_t *p, uint64_t len,
             uint64_t disk_size, struct snapshot_entry *e, uint64_t *bytes)
{
  uint32_t extra_len;
  uint64_t id_len, name_len, id_off;

  if (len < SNAP_FIXED_LEN)
    return -ENODATA;
  extra_len = get_be32 (p + SNAP_EXTRA_LEN);
  if (extra_len > MAX_SNAPSHOT_EXTRA_DATA) {
    nbdkit_error ("%s: snapshot table: entry %" PRIu32 " has %" PRIu32
                  " bytes of extra data, the limit is %d",
                  name, idx, extra_len, MAX_SNAPSHOT_EXTRA_DATA);
    return -EINVAL;
  }
  id_len = get_be16 (p + SNAP_ID_LEN);
  name_len = get_be16 (p + SNAP_NAME_LEN);
  id_off = SNAP_FIXED_LEN + extra_len;
  *bytes = round_up_8 (id_off + id_len + name_len);
  if (len < id_off + id_len + name_len)
    return -ENODATA;

  e->l1_table_offset = get_be64 (p + SNAP_L1_OFFSET);
  e->l1_size = get_be32 (p + SNAP_L1_SIZE);
  e->date_sec = get_be32 (p + SNAP_DATE_SEC);
  e->date_nsec = get_be32 (p + SNAP_DATE_NSEC);
  e->vm_clock_nsec = get_be64 (p + SNAP_VM_CLOCK_NSEC);
  e->vm_state_size = get_be32 (p + SNAP_VM_STATE_SIZE);
  e->id = strndup ((const char *) p + id_off, id_len);
  e->name = strndup ((const char *) p + id_off + id_len, name_len);
  if (e->id == NULL || e->name == NULL)
    return -ENOMEM;
  return parse_extra (p + SNAP_FIXED_LEN, extra_len, disk_size, e);
}

int
snapshot_table_parse (const char *name, const uint8_t *buf, size_t len,
                      uint32_t nr, uint64_t disk_size,
                      struct snapshot_table *t)
{
  uint64_t off = 0, bytes = 0;
  uint32_t i;
  int r = 0;

  memset (t, 0, sizeof *t);
  if (nr > MAX_SNAPSHOTS) {
    nbdkit_error ("%s: snapshot table: %" PRIu32 " entries, the limit is %d",
                  name, nr, MAX_SNAPSHOTS);
    return -EINVAL;
  }
  if (len < nr * (uint64_t) SNAP_FIXED_LEN)
    return -ENODATA;
  t->entries = calloc (nr ? nr : 1, sizeof *t->entries);
  if (t->entries == NULL)
    r = -ENOMEM;
  for (i = 0; i < nr && r == 0; i++) {
    t->nr = i + 1;              /* so that a half filled entry is freed */
    r = parse_entry (name, i, buf + off, len - off, disk_size,
                     &t->entries[i], &bytes);
    if (r < 0)
      break;
    off += bytes;
    if (off > MAX_SNAPSHOT_TABLE_SIZE) {
      nbdkit_error ("%s: snapshot table: entry %" PRIu32 " ends at byte"
                    " %" PRIu64 ", the limit is %" PRIu64,
                    name, i, off, MAX_SNAPSHOT_TABLE_SIZE);
      r = -EINVAL;
    }
    else if (off > len && i + 1 < nr)
      r = -ENODATA;             /* the table ends in the padding */
  }
  t->bytes = off;
  if (r == -ENOMEM)
    nbdkit_error ("%s: no memory to read the snapshot table", name);
  if (r < 0)
    snapshot_table_free (t);
  return r;
}

int
snapshot_table_check (const char *name, const struct geometry *g,
                      const struct snapshot_entry *e)
{
  int64_t need = geometry_l1_entries (g, e->disk_size);

  if (e->l1_size > MAX_L1_SIZE / 8) {
    nbdkit_error ("%s: snapshot \"%s\": l1_size %" PRIu32 " is larger than"
                  " %" PRIu64, name, e->id, e->l1_size, MAX_L1_SIZE / 8);
    return -EINVAL;
  }
  if (need < 0 || (uint64_t) need > e->l1_size) {
    nbdkit_error ("%s: snapshot \"%s\": l1_size %" PRIu32 " is too small for"
                  " a disk of %" PRIu64 " bytes",
                  name, e->id, e->l1_size, e->disk_size);
    return -EINVAL;
  }
  if ((e->l1_table_offset & (g->cluster_size - 1)) ||
      e->l1_table_offset > MAX_HOST_OFFSET - MAX_L1_SIZE ||
      (e->l1_table_offset == 0 && e->l1_size > 0)) {
    nbdkit_error ("%s: snapshot \"%s\": l1_table_offset 0x%" PRIx64 " is"
                  " unaligned or out of range",
                  name, e->id, e->l1_table_offset);
    return -EINVAL;
  }
  return 0;
}

static uint64_t
entry_bytes (const struct snapshot_entry *e)
{
  return round_up_8 (SNAP_FIXED_LEN + SNAP_EXTRA_KNOWN + e->extra_len +
                     strlen (e->id) + strlen (e->name));
}

static void
put_entry (const struct snapshot_entry *e, uint8_t *p)
{
  size_t id_len = strlen (e->id), name_len = strlen (e->name);
  uint8_t *extra = p + SNAP_FIXED_LEN;
  uint8_t *id = extra + SNAP_EXTRA_KNOWN + e->extra_len;

  put_be64 (p + SNAP_L1_OFFSET, e->l1_table_offset);
  put_be32 (p + SNAP_L1_SIZE, e->l1_size);
  put_be16 (p + SNAP_ID_LEN, id_len);
  put_be16 (p + SNAP_NAME_LEN, name_len);
  put_be32 (p + SNAP_DATE_SEC, e->date_sec);
  put_be32 (p + SNAP_DATE_NSEC, e->date_nsec);
  put_be64 (p + SNAP_VM_CLOCK_NSEC, e->vm_clock_nsec);
  /* Too large for the old field: readers that know only that one must not
   * take a part for the whole.
   */
  put_be32 (p + SNAP_VM_STATE_SIZE,
            e->vm_state_size <= UINT32_MAX ? e->vm_state_size : 0);
  put_be32 (p + SNAP_EXTRA_LEN, SNAP_EXTRA_KNOWN + e->extra_len);
  put_be64 (extra + SNAP_EXTRA_VM_STATE_SIZE, e->vm_state_size);
  put_be64 (extra + SNAP_EXTRA_DISK_SIZE, e->disk_size);
  put_be64 (extra + SNAP_EXTRA_ICOUNT, e->icount);
  if (e->extra_len)
    memcpy (extra + SNAP_EXTRA_KNOWN, e->extra, e->extra_len);
  memcpy (id, e->id, id_len);
  memcpy (id + id_len, e->name, name_len);
}

int
snapshot_table_serialise (const struct snapshot_table *t,
                          uint8_t **buf, size_t *len)
{
  uint64_t bytes = 0, off = 0;
  size_t i;

  if (t->nr > MAX_SNAPSHOTS)
    return -EFBIG;
  for (i = 0; i < t->nr; i++) {
    if (strlen (t->entries[i].id) > UINT16_MAX ||
        strlen (t->entries[i].name) > UINT16_MAX)
      return -EFBIG;
    bytes += entry_bytes (&t->entries[i]);
    if (bytes > MAX_SNAPSHOT_TABLE_SIZE)
      return -EFBIG;
  }
  *buf = calloc (1, bytes ? bytes : 1);
  if (*buf == NULL)
    return -ENOMEM;
  for (i = 0; i < t->nr; i++) {
    put_entry (&t->entries[i], *buf + off);
    off += entry_bytes (&t->entries[i]);
  }
  *len = bytes;
  return 0;
}

struct snapshot_entry *
snapshot_table_find (const struct snapshot_table *t, const char *id_or_name)
{
  size_t i;

  for (i = 0; i < t->nr; i++)
    if (strcmp (t->entries[i].id, id_or_name) == 0)
      return &t->entries[i];
  for (i = 0; i < t->nr; i++)
    if (strcmp (t->entries[i].name, id_or_name) == 0)
      return &t->entries[i];
  return NULL;
}
