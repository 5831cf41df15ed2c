/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss at every moment of a workload, clean close included, with any
 * of the open calls lost, kept or torn.
 *
 * After each the image has no errors, every flushed byte is there, every
 * other sector is old or new, and snapshots are what they were; for some,
 * the image is used again, and qemu-img checks it.
 *
 * Environment:
 *   CRASH_TEST_FACTOR  so many seeds (default 3, with sanitizers 1)
 *   CRASH_TEST_SEED    the first seed (default 1)
 */

#ifndef CRASH_POWER_H
#define CRASH_POWER_H

#include "crash-run.h"

/* Aborts after a report if something is wrong. */
extern void crash_power (const struct crash_setup *setup);

/* For operations that are no workload: call FN with what may be left after a
 * power loss at every moment that RUN's log has.  Of RUN only clock, disk and
 * data are used.  Returns the number of images.
 */
extern size_t crash_power_each (struct crash_run *run,
                                void (*fn) (const struct crash_image *image,
                                            void *opaque),
                                void *opaque);

#endif /* CRASH_POWER_H */
