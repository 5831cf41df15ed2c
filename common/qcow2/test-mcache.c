/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit test of mcache.c.
 *
 * Alone: random changes, commits, failed writes and forgotten blocks
 * against two flat copies, of what memory must show and of what the file
 * must hold after a commit.
 * With threads: readers, writers and a committer at once (for TSan), where
 * every block always holds one value throughout.
 */

#include <config.h>

#include "mcache.h"
#include "ondisk.h"
#include "test-mem.h"

#define BITS 9
#define SLICE (1U << BITS)
#define BLOCKS 2000

static struct test_mem mem;
static struct ranked_rwlock meta;
static struct mcache *mc;
static uint8_t model[BLOCKS][SLICE];

static void
start (uint64_t max_bytes)
{
  test_mem_init (&mem, BLOCKS * SLICE);
  ranked_rwlock_init (&meta, LOCK_META);
  CHECK_OK (mcache_create (&mem.b, BITS, max_bytes, &meta, &mc));
  memset (model, 0, sizeof model);
}

static void
end (void)
{
  mcache_free (mc);
  ranked_rwlock_destroy (&meta);
  backend_close (&mem.b);
}

static void
load_and_compare (uint64_t i)
{
  const uint8_t *p = NULL;

  while (p == NULL) {
    CHECK_OK (mcache_load (mc, i * SLICE));
    READ_SCOPE (&meta);
    p = mcache_peek (mc, i * SLICE);
    CHECK (p == NULL || memcmp (p, model[i], SLICE) == 0);
  }
}

static void
change (uint64_t i, uint64_t *seed)
{
  struct mcache_block *b;
  uint64_t pos = test_below (seed, SLICE);
  uint8_t value = test_random (seed), *p;

  WRITE_SCOPE (&meta);
  CHECK_OK (mcache_get_locked (mc, i * SLICE, &b));
  CHECK (memcmp (mcache_data (b), model[i], SLICE) == 0);
  p = mcache_dirty_locked (mc, b, i & 1 ? MCACHE_L2 : MCACHE_REFBLOCK, i);
  CHECK (p != NULL);
  p[pos] = value;
  model[i][pos] = value;
}

/* The space becomes data, then a new table. */
static void
forget_and_renew (uint64_t i)
{
  uint8_t junk[SLICE];
  struct mcache_block *b;

  {
    WRITE_SCOPE (&meta);
    mcache_forget_locked (mc, i * SLICE, SLICE);
    CHECK (mcache_peek (mc, i * SLICE) == NULL);
  }
  memset (junk, 0xaa, sizeof junk);
  CHECK_OK (backend_pwrite (&mem.b, junk, SLICE, i * SLICE, 0));
  /* A lookup with an old table entry. */
  CHECK_OK (mcache_load (mc, i * SLICE));
  memset (junk, 0, sizeof junk);
  CHECK_OK (backend_pwrite (&mem.b, junk, SLICE, i * SLICE, 0));
  {
    WRITE_SCOPE (&meta);
    CHECK_OK (mcache_new_locked (mc, i * SLICE, &b));
    memset (model[i], 0, SLICE);
  }
  load_and_compare (i);
}

static bool
is_third (uint64_t owner, void *opaque)
{
  return owner % *(unsigned *) opaque == 0;
}

/* Freeze, let changes happen, write, thaw.  FAIL: some write fails. */
static void
commit (uint64_t *seed, bool fail)
{
  static uint8_t frozen[BLOCKS][SLICE];
  unsigned three = 3;
  int i, r;

  {
    WRITE_SCOPE (&meta);
    mcache_freeze_locked (mc);
  }
  memcpy (frozen, model, sizeof frozen);
  for (i = 0; i < 20; ++i)
    change (test_below (seed, BLOCKS), seed);
  if (fail) {
    mem.fail_write = -EIO;
    mem.fail_writes_after = test_below (seed, 4);
  }
  r = mcache_write_frozen (mc, MCACHE_REFBLOCK, NULL, NULL);
  if (r == 0)
    r = mcache_write_frozen (mc, MCACHE_L2, is_third, &three);
  change (test_below (seed, BLOCKS), seed);
  if (r == 0)
    r = mcache_write_frozen (mc, MCACHE_L2, NULL, NULL);
  mem.fail_write = 0;
  CHECK (fail || r == 0);
  if (r == 0)
    CHECK (memcmp (mem.bytes, frozen, sizeof frozen) == 0);
  {
    WRITE_SCOPE (&meta);
    mcache_thaw_locked (mc);
  }
}

static void
test_alone (void)
{
  uint64_t seed = 7, i, j;

  start (1);                    /* the minimum */
  for (i = 0; i < 3000; ++i) {
    for (j = 0; j < 5; ++j)
      load_and_compare (test_below (&seed, BLOCKS));
    for (j = test_below (&seed, 6); j > 0; --j)
      change (test_below (&seed, BLOCKS), &seed);
    if (mcache_pressure (mc) || test_below (&seed, 10) == 0)
      commit (&seed, test_below (&seed, 4) == 0);
    if (test_below (&seed, 50) == 0) {
      commit (&seed, false);
      forget_and_renew (test_below (&seed, BLOCKS));
    }
    CHECK (mcache_memory (mc) < 1024 * 1024);
  }
  while (mcache_is_dirty (mc)) {
    WRITE_SCOPE (&meta);
    mcache_freeze_locked (mc);
    CHECK_OK (mcache_write_frozen (mc, MCACHE_REFBLOCK, NULL, NULL));
    CHECK_OK (mcache_write_frozen (mc, MCACHE_L2, NULL, NULL));
    mcache_thaw_locked (mc);
  }
  CHECK (memcmp (mem.bytes, model, sizeof model) == 0);
  end ();
}

/* Neighbours go out in one call, however they became dirty. */
static void
test_runs (void)
{
  uint64_t seed = 3, i;

  start (1);
  for (i = 0; i < 32; ++i)
    change (2 * ((i * 7) % 32), &seed); /* even: refcount blocks */
  for (i = 0; i < 32; ++i)
    change (100 + 2 * (31 - i) + 1, &seed);
  WRITE_SCOPE (&meta);
  mcache_freeze_locked (mc);
  CHECK_OK (mcache_write_frozen (mc, MCACHE_L2, NULL, NULL));
  CHECK (mem.writes == 32);
  CHECK_OK (mcache_write_frozen (mc, MCACHE_L2, NULL, NULL));
  CHECK (mem.writes == 32);     /* not again */
  mcache_thaw_locked (mc);
  CHECK (mcache_is_dirty (mc));
}

static void
test_one_call (void)
{
  struct mcache_block *b;
  uint64_t i;

  start (1);
  WRITE_SCOPE (&meta);
  for (i = 64; i > 0; --i) {
    CHECK_OK (mcache_get_locked (mc, i * SLICE, &b));
    CHECK (mcache_dirty_locked (mc, b, MCACHE_L2, 0) != NULL);
  }
  mcache_freeze_locked (mc);
  CHECK_OK (mcache_write_frozen (mc, MCACHE_L2, NULL, NULL));
  CHECK (mem.writes == 1);
  mcache_thaw_locked (mc);
  CHECK (!mcache_is_dirty (mc));
}

static void
test_beyond_end (void)
{
  struct mcache_block *b;

  start (1);
  CHECK (mcache_load (mc, BLOCKS * SLICE) == -EIO);
  WRITE_SCOPE (&meta);
  CHECK (mcache_get_locked (mc, (BLOCKS + 5) * SLICE, &b) == -EIO);
  CHECK (mcache_peek (mc, BLOCKS * SLICE) == NULL);
}

/* A block that is held survives 64 others. */
static void
test_held (void)
{
  struct mcache_block *b, *other;
  uint64_t i;

  start (1);
  WRITE_SCOPE (&meta);
  CHECK_OK (mcache_get_locked (mc, 0, &b));
  for (i = 1; i < 1500; ++i) {
    if (i % 25 == 0)
      CHECK_OK (mcache_get_locked (mc, i * SLICE, &other));
    else
      CHECK_OK (mcache_visit_locked (mc, i * SLICE, &other));
  }
  CHECK (mcache_peek (mc, 0) == mcache_data (b));
}

/* While block 0 is being read without the lock, somebody else changes it,
 * writes it back, and it is evicted: what was read is outdated.
 */
static void
change_and_evict (void)
{
  struct mcache_block *b;
  uint64_t i;

  WRITE_SCOPE (&meta);
  CHECK_OK (mcache_get_locked (mc, 0, &b));
  memset (mcache_dirty_locked (mc, b, MCACHE_L2, 0), 0x77, SLICE);
  memset (model[0], 0x77, SLICE);
  mcache_freeze_locked (mc);
  CHECK_OK (mcache_write_frozen (mc, MCACHE_L2, NULL, NULL));
  mcache_thaw_locked (mc);
  for (i = 1; i < BLOCKS; ++i) {
    CHECK_OK (mcache_get_locked (mc, i * SLICE, &b));
  }
  CHECK (mcache_peek (mc, 0) == NULL);
}

static void
test_outdated_read (void)
{
  start (1);
  mem.after_read = change_and_evict;
  load_and_compare (0);
}

/* --- threads --- */

static _Atomic bool stop;

static void
check_uniform (const uint8_t *p)
{
  unsigned i;

  for (i = 1; i < SLICE; ++i)
    CHECK (p[i] == p[0]);
}

static void *
reader (void *arg)
{
  uint64_t seed = *(uint64_t *) arg, off;
  const uint8_t *p;

  while (!stop) {
    off = test_below (&seed, BLOCKS) * SLICE;
    {
      READ_SCOPE (&meta);
      p = mcache_peek (mc, off);
      if (p)
        check_uniform (p);
    }
    if (!p)
      CHECK_OK (mcache_load (mc, off));
  }
  return NULL;
}

static _Atomic uint8_t last_value[BLOCKS];

static void *
writer (void *arg)
{
  uint64_t seed = *(uint64_t *) arg, n;
  struct mcache_block *b;
  uint8_t *p;

  while (!stop) {
    n = test_below (&seed, BLOCKS);
    if (mcache_pressure (mc))
      continue;
    WRITE_SCOPE (&meta);
    CHECK_OK (mcache_get_locked (mc, n * SLICE, &b));
    CHECK (*mcache_data (b) == last_value[n]);
    p = mcache_dirty_locked (mc, b, MCACHE_L2, n);
    CHECK (p != NULL);
    last_value[n]++;
    memset (p, last_value[n], SLICE);
  }
  return NULL;
}

static void
test_threads (void)
{
  uint64_t seeds[6] = { 11, 12, 13, 14, 15, 16 };
  pthread_t threads[6];
  int i;

  start (1);
  for (i = 0; i < 6; ++i)
    CHECK_OK (pthread_create (&threads[i], NULL, i < 4 ? reader : writer,
                              &seeds[i]));
  for (i = 0; i < 300; ++i) {
    {
      WRITE_SCOPE (&meta);
      mcache_freeze_locked (mc);
    }
    CHECK_OK (mcache_write_frozen (mc, MCACHE_L2, NULL, NULL));
    {
      WRITE_SCOPE (&meta);
      mcache_thaw_locked (mc);
    }
  }
  stop = true;
  for (i = 0; i < 6; ++i)
    CHECK_OK (pthread_join (threads[i], NULL));
  end ();
}

int
main (void)
{
  test_alone ();
  test_runs ();
  end ();
  test_one_call ();
  end ();
  test_beyond_end ();
  end ();
  test_held ();
  end ();
  test_outdated_read ();
  end ();
  test_threads ();
  return 0;
}
