/* SPDX-License-Identifier: BSD-3-Clause */
/* The snapshot table: bytes to structs and back.  Pure: no I/O, no locks.
 * Spec: "Snapshots".
 */

#ifndef SNAPSHOT_TABLE_H
#define SNAPSHOT_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "geometry.h"

struct snapshot_entry {
  uint64_t l1_table_offset;
  uint32_t l1_size;             /* entries */
  char *id;                     /* unique, never NULL */
  char *name;                   /* never NULL, may be empty */
  uint32_t date_sec, date_nsec;
  uint64_t vm_clock_nsec;
  uint64_t vm_state_size;
  uint64_t disk_size;           /* virtual size, bytes */
  uint64_t icount;              /* UINT64_MAX = not recorded */
  uint8_t *extra;               /* extra data behind what we know, kept */
  size_t extra_len;
};

struct snapshot_table {
  struct snapshot_entry *entries;
  size_t nr;
  size_t bytes;                 /* length of the table that was parsed */
};

/* Parse NR entries from BUF.  DISK_SIZE: what entries without a disk size
 * of their own (version 2) have.  Strings end before their first zero
 * byte, as for QEMU.  -EINVAL with a message naming the image NAME, the
 * entry and the field; -ENOMEM (with a message).  -ENODATA, no message: the
 * table is longer than LEN (read more and try again, up to
 * MAX_SNAPSHOT_TABLE_SIZE; QEMU lets the file end where the last entry does,
 * without its padding, and that is enough here).  On failure T holds
 * nothing.
 */
extern int snapshot_table_parse (const char *name, const uint8_t *buf,
                                 size_t len, uint32_t nr,
                                 uint64_t disk_size,
                                 struct snapshot_table *t)
  __attribute__ ((__warn_unused_result__));

/* Can the snapshot be used: is its L1 table aligned, in range, and large
 * enough for its disk size?  snapshot_table_parse does not ask, so that a
 * broken snapshot does not make the image unreadable.  -EINVAL with a
 * message.
 */
extern int snapshot_table_check (const char *name, const struct geometry *g,
                                 const struct snapshot_entry *e)
  __attribute__ ((__warn_unused_result__));

/* The table as bytes, allocated: the caller frees *BUF.  Each entry gets
 * all extra data that is defined.  -ENOMEM, -EFBIG (too many entries, a
 * string or the table too long); no message.
 */
extern int snapshot_table_serialise (const struct snapshot_table *t,
                                     uint8_t **buf, size_t *len)
  __attribute__ ((__warn_unused_result__));

/* By ID, else by name (as qemu-img does). NULL = none. */
extern struct snapshot_entry *
snapshot_table_find (const struct snapshot_table *t, const char *id_or_name);

extern void snapshot_table_free (struct snapshot_table *t);

#endif /* SNAPSHOT_TABLE_H */
