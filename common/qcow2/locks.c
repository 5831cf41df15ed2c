/* SPDX-License-Identifier: BSD-3-Clause */
/* The per-thread mask of held lock ranks (debug builds). */

#include <config.h>

#include "locks.h"

#ifdef LOCK_RANK_CHECK
_Thread_local unsigned locks_held;
#endif
