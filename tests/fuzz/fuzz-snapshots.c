/* SPDX-License-Identifier: BSD-3-Clause */
/* The snapshot table, on its own: u16 number of entries, u8 log2 of the
 * cluster size, u8 nothing, u64 size of the disk, then the table.
 *
 * A table that can be read must be the same after it was written and read.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "ondisk.h"
#include "snapshot-table.h"

#define HEAD_LEN 12

static void
check_same (const struct snapshot_entry *a, const struct snapshot_entry *b)
{
  FUZZ_CHECK (a->l1_table_offset == b->l1_table_offset &&
              a->l1_size == b->l1_size);
  FUZZ_CHECK (strcmp (a->id, b->id) == 0 && strcmp (a->name, b->name) == 0);
  FUZZ_CHECK (a->date_sec == b->date_sec && a->date_nsec == b->date_nsec &&
              a->vm_clock_nsec == b->vm_clock_nsec &&
              a->vm_state_size == b->vm_state_size &&
              a->disk_size == b->disk_size && a->icount == b->icount);
  FUZZ_CHECK (a->extra_len == b->extra_len &&
              (a->extra_len == 0 ||
               memcmp (a->extra, b->extra, a->extra_len) == 0));
}

static void
check_table (const struct snapshot_table *t, const struct geometry *geo,
             uint64_t disk_size)
{
  struct snapshot_table again;
  uint8_t *buf;
  size_t len, i;
  int r;

  for (i = 0; i < t->nr; ++i) {
    FUZZ_CHECK (snapshot_table_find (t, t->entries[i].id) != NULL);
    r = snapshot_table_check ("fuzz", geo, &t->entries[i]);
    FUZZ_CHECK (r == 0 || r == -EINVAL);
  }
  if (snapshot_table_serialise (t, &buf, &len) < 0)
    return;
  r = snapshot_table_parse ("fuzz", buf, len, t->nr, disk_size, &again);
  FUZZ_CHECK (r == 0);
  FUZZ_CHECK (again.nr == t->nr && again.bytes == len);
  for (i = 0; i < t->nr; ++i)
    check_same (&t->entries[i], &again.entries[i]);
  snapshot_table_free (&again);
  free (buf);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  struct header h = { .version = 3, .refcount_order = 4 };
  struct snapshot_table t;
  struct geometry geo;
  uint64_t disk_size;
  uint8_t *copy;
  int r;

  if (size < HEAD_LEN)
    return 0;
  h.cluster_bits = MIN_CLUSTER_BITS +
    data[2] % (MAX_CLUSTER_BITS - MIN_CLUSTER_BITS + 1);
  h.size = disk_size = get_be64 (data + 4) >> 1;
  geometry_init (&geo, &h);
  /* A buffer of its own, so that reading beyond it is seen. */
  copy = malloc (size - HEAD_LEN + 1);
  if (copy == NULL)
    return 0;
  memcpy (copy, data + HEAD_LEN, size - HEAD_LEN);
  copy = realloc (copy, size - HEAD_LEN + (size == HEAD_LEN));
  if (copy == NULL)
    return 0;
  fuzz_log_errors ();
  r = snapshot_table_parse ("fuzz", copy, size - HEAD_LEN, get_be16 (data),
                            disk_size, &t);
  FUZZ_CHECK (r == 0 || r == -EINVAL || r == -ENODATA);
  FUZZ_CHECK (fuzz_log_errors () == (r == -EINVAL));
  if (r == 0) {
    check_table (&t, &geo, disk_size);
    snapshot_table_free (&t);
  }
  free (copy);
  return 0;
}
