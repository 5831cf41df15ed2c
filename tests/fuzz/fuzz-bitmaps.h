/* SPDX-License-Identifier: BSD-3-Clause */
/* Where fuzz-bitmaps.c puts its input, as fuzz-seeds.c has to know. */

#ifndef FUZZ_BITMAPS_H
#define FUZZ_BITMAPS_H

#define FUZZ_BITMAPS_OFF 16384

#endif /* FUZZ_BITMAPS_H */
