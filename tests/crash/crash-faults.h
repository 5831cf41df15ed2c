/* SPDX-License-Identifier: BSD-3-Clause */
/* Faults: each call to the backend that a workload makes, from opening the
 * image to closing it, fails in turn, with EIO and with ENOSPC, once and for
 * ever.
 *
 * After each: nothing hangs or crashes, no flush or close that succeeded
 * lost anything, and the image has no errors, neither as it is nor after a
 * power loss.  Where the close succeeded, nothing leaks.
 */

#ifndef CRASH_FAULTS_H
#define CRASH_FAULTS_H

#include "crash-run.h"

/* Aborts after a report if something is wrong. */
extern void crash_faults (const struct crash_setup *setup);

#endif /* CRASH_FAULTS_H */
