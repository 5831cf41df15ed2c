/* SPDX-License-Identifier: BSD-3-Clause */
/* What the fuzzers share.
 *
 * Each fuzz-TARGET.c has the one function LLVMFuzzerTestOneInput.  It is
 * linked with libFuzzer (configure --enable-fuzzers), or with fuzz-main.c,
 * which feeds it with seeds and with mutations of them.
 *
 * An image as input: "container" below.  Sparse, so that images with large
 * clusters are short inputs, in which each byte matters.
 */

#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend.h"
#include "test-random.h"

extern int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size);

/* libFuzzer's own mutations; in the other build, those of fuzz-main.c. */
extern size_t LLVMFuzzerMutate (uint8_t *data, size_t size, size_t max_size);

/* A finding, whatever NDEBUG says. */
#define FUZZ_CHECK(cond)                                                \
  do {                                                                  \
    if (!(cond)) {                                                      \
      fprintf (stderr, "%s:%d: finding: %s\n",                          \
               __FILE__, __LINE__, #cond);                              \
      abort ();                                                         \
    }                                                                   \
  } while (0)

/* ------------------------------------------------------------------
 * Messages of the engine (fuzz-log.c): formatted, not shown unless the
 * environment has QCOW2_TEST_DEBUG.
 */

/* How many errors were logged since the last call. */
extern unsigned fuzz_log_errors (void);

/* ------------------------------------------------------------------
 * A file in memory (fuzz-mem.c).  Sparse; at most FUZZ_MEM_MAX_BYTES of
 * content, then -ENOSPC.  One thread.
 */

#define FUZZ_MEM_MAX_BYTES (UINT64_C (32) << 20)

extern struct backend *fuzz_mem_create (const char *name);
extern struct backend *fuzz_mem_clone (struct backend *b);

/* Number of calls that changed something; bytes that were read. */
extern uint64_t fuzz_mem_changes (struct backend *b);
extern uint64_t fuzz_mem_bytes_read (struct backend *b);

/* From now on reads fail with -EIO after BYTES more: an end to work that
 * is allowed to be long.
 */
extern void fuzz_mem_read_budget (struct backend *b, uint64_t bytes);

/* ------------------------------------------------------------------
 * Containers (fuzz-image.c): big-endian,
 *   u32 length of the file in sectors
 *   u16 number of records
 *   u16 options, for the target
 *   records: u32 sector, 512 bytes; what has no record is zero
 *   the rest: the script, for the target
 */

#define FUZZ_HEAD_LEN   8
#define FUZZ_SECTOR     512
#define FUZZ_RECORD_LEN (4 + FUZZ_SECTOR)

struct fuzz_image {
  struct backend *file;
  unsigned options;
  const uint8_t *script;
  size_t script_len;
};

/* Make a file of the input.  False: too short to be one. */
extern bool fuzz_image_load (const uint8_t *data, size_t size,
                             struct fuzz_image *image);

/* The other way, into a buffer that the caller frees. */
extern uint8_t *fuzz_image_save (struct backend *file, unsigned options,
                                 const uint8_t *script, size_t script_len,
                                 size_t *len);

/* A custom mutator that knows containers: re-aims offsets, toggles flags,
 * moves records.  (fuzz-mutate.c)
 */
extern size_t fuzz_mutate_image (uint8_t *data, size_t size, size_t max_size,
                                 unsigned seed);

static inline uint64_t
fuzz_below (uint64_t *state, uint64_t n)
{
  return (test_random (state) >> 16) % n;
}

/* The start of a generator that is the same for the same number. */
static inline uint64_t
fuzz_random_start (uint64_t n)
{
  return (n + 1) * UINT64_C (0x9e3779b97f4a7c15) | 1;
}

#endif /* FUZZ_H */
