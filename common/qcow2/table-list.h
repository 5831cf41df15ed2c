/* SPDX-License-Identifier: BSD-3-Clause */
/* Which tables are named, and how often: each once, in order of offset.
 *
 * An L1 table that lies may name the same L2 table four million times.  Who
 * walks a list of this kind reads each table once, so that the time it takes
 * follows the size of the file.
 */

#ifndef TABLE_LIST_H
#define TABLE_LIST_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed: empty. */
struct table_list {
  struct table_name {
    uint64_t off, times;
  } *names;
  size_t nr, room;
};

/* OFF is named TIMES more.  Memory: 16 bytes for each offset that is named,
 * at least 64k.  -ENOMEM with a message, also beyond 1 GiB.
 */
extern int table_list_add (struct table_list *l, uint64_t off, uint64_t times)
  __attribute__ ((__warn_unused_result__));

/* Sort, and name each offset once: afterwards NAMES is what it is about. */
extern void table_list_settle (struct table_list *l);

extern void table_list_free (struct table_list *l);

#endif /* TABLE_LIST_H */
