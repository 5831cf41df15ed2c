/* SPDX-License-Identifier: BSD-3-Clause */
/* The parameters of the filter; set before serving, then constant. */

#ifndef COWMERGE_H
#define COWMERGE_H

#include <stdint.h>

extern uint64_t cowmerge_max;           /* bytes for all blocks */
extern unsigned cowmerge_delay;         /* ms a block may wait */
extern uint32_t cowmerge_read_gap;      /* bytes read for nothing, rather
                                           than to read twice */

#endif /* COWMERGE_H */
