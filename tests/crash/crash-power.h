/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss at every moment of a workload, clean close included, with any
 * of the open calls lost, kept or torn.
 *
 * After each the image has no errors, every flushed byte is there, every
 * other sector is old or new, and snapshots are what they were; for some,
 * the image is used again, and qemu-img checks it.
 *
 * Environment:
 *   CRASH_TEST_FACTOR  so many seeds (default 3)
 *   CRASH_TEST_SEED    the first seed (default 1)
 */

#ifndef CRASH_POWER_H
#define CRASH_POWER_H

#include "crash-run.h"

/* Aborts after a report if something is wrong. */
extern void crash_power (const struct crash_setup *setup);

#endif /* CRASH_POWER_H */
