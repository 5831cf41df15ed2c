/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss at every moment of a workload: see the header. */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend-crash.h"
#include "crash-model.h"
#include "crash-power.h"
#include "crash-run.h"
#include "crash-verify.h"

/* Seeds.  Sanitizers make it many times slower. */
#ifdef LOCK_RANK_CHECK
#define DEFAULT_FACTOR 1
#else
#define DEFAULT_FACTOR 3
#endif

/* Per moment: at most so many of the choices that concern one call each,
 * and so many seeds of the random ones.
 */
#define MAX_SINGLES 10
#define RANDOM_SEEDS 2
#define TORN_SEEDS 4

static void
check_choice (struct crash_run *run, uint64_t t,
              const struct crash_choice *choice, uint64_t *nr)
{
  struct crash_image image;

  crash_run_image (run, t, choice, &image);
  if (!crash_verify_image (run, &image, UINT64_MAX, (*nr)++)) {
    crash_run_image_free (&image);
    crash_run_image (run, t, choice, &image);
    crash_run_image_save (&image);
    crash_model_dump (run->model, t);
    backend_crash_dump (run->disk, t);
    if (run->data)
      backend_crash_dump (run->data, t);
    fprintf (stderr, "%s, seed %" PRIu64 ": power loss at %" PRIu64 ", keep "
             "%d, %" PRIu64 ": see crash-failed.qcow2\n", run->setup->name,
             run->first_seed, t, choice->keep, choice->arg);
    abort ();
  }
  crash_run_image_free (&image);
}

static void
check_moment (struct crash_run *run, uint64_t t, uint64_t *nr)
{
  size_t n = crash_run_unsynced (run, t), i;
  size_t step = n / MAX_SINGLES + 1;
  struct crash_choice choice = { .keep = CRASH_KEEP_NONE };

  crash_model_at (run->model, t);
  check_choice (run, t, &choice, nr);
  if (n == 0)
    return;
  choice.keep = CRASH_KEEP_ALL;
  check_choice (run, t, &choice, nr);
  /* Another start each time, so that all are met. */
  for (i = n > 1 ? t % step : n; i < n; i += step) {
    choice = (struct crash_choice) { CRASH_KEEP_ONLY, i };
    check_choice (run, t, &choice, nr);
    choice.keep = CRASH_LOSE_ONLY;
    if (n > 2)
      check_choice (run, t, &choice, nr);
  }
  for (i = 0; n > 2 && i < RANDOM_SEEDS; ++i) {
    choice = (struct crash_choice) { CRASH_KEEP_RANDOM, t * 100 + i };
    check_choice (run, t, &choice, nr);
  }
  for (i = 0; i < TORN_SEEDS; ++i) {
    choice = (struct crash_choice) { CRASH_KEEP_TORN, t * 100 + i };
    check_choice (run, t, &choice, nr);
  }
}

/* At the end nothing is open, and nothing leaks.  A raw data file can be
 * read without the image.
 */
static void
check_closed (struct crash_run *run)
{
  const struct crash_choice choice = { .keep = CRASH_KEEP_ALL };
  struct crash_check check;
  struct crash_image image;

  crash_run_image (run, run->clock->now, &choice, &image);
  assert (crash_verify_metadata (image.file, 0, &check) && !check.dirty);
  crash_verify_qemu (run, image.file, false, false);
  if (run->core->geo.data_file_raw) {
    assert (backend_pread_padded (image.data, run->buf, run->size, 0) == 0);
    crash_model_now (run->model);
    assert (crash_model_allows (run->model, run->buf));
  }
  crash_run_image_free (&image);
}

static int
compare_times (const void *a, const void *b)
{
  const uint64_t *x = a, *y = b;

  return *x < *y ? -1 : *x > *y;
}

/* The moments of both files, and the end; to be freed. */
static uint64_t *
all_times (struct crash_run *run, size_t *nr)
{
  uint64_t *times, *more = NULL;
  size_t nr_more = 0;

  assert (backend_crash_times (run->disk, &times, nr) == 0);
  if (run->data)
    assert (backend_crash_times (run->data, &more, &nr_more) == 0);
  times = realloc (times, (*nr + nr_more + 1) * sizeof *times);
  assert (times != NULL);
  if (nr_more)
    memcpy (times + *nr, more, nr_more * sizeof *more);
  *nr += nr_more;
  times[(*nr)++] = run->clock->now;
  free (more);
  qsort (times, *nr, sizeof *times, compare_times);
  return times;
}

size_t
crash_power_each (struct crash_run *run,
                  void (*fn) (const struct crash_image *image, void *opaque),
                  void *opaque)
{
  size_t nr_times, i, n, images = 0;
  uint64_t *times = all_times (run, &nr_times);
  struct crash_image image;

  for (i = 0; i < nr_times; ++i) {
    struct crash_choice choices[2 + 2 * TORN_SEEDS] = {
      { CRASH_KEEP_NONE, 0 }, { CRASH_KEEP_ALL, 0 },
    };
    size_t nr = crash_run_unsynced (run, times[i]) == 0 ? 1
      : sizeof choices / sizeof choices[0];

    for (n = 0; n < TORN_SEEDS; ++n) {
      choices[2 + n] = (struct crash_choice) { CRASH_KEEP_RANDOM, i * 9 + n };
      choices[2 + TORN_SEEDS + n] =
        (struct crash_choice) { CRASH_KEEP_TORN, i * 7 + n };
    }
    for (n = 0; n < nr; ++n, ++images) {
      crash_run_image (run, times[i], &choices[n], &image);
      fn (&image, opaque);
      crash_run_image_free (&image);
    }
  }
  free (times);
  return images;
}

static void
power_once (const struct crash_setup *setup, uint64_t seed)
{
  struct crash_run run;
  uint64_t *times, nr = 0;
  size_t nr_times, i;

  crash_run_start (&run, setup, seed);
  setup->workload (&run);
  crash_model_now (run.model);
  if (!crash_verify_content (&run, run.core)) {
    fprintf (stderr, "%s, seed %" PRIu64 ": wrong without power loss\n",
             setup->name, seed);
    abort ();
  }
  assert (crash_run_finish (&run) == 0);
  times = all_times (&run, &nr_times);
  for (i = 0; i < nr_times; ++i)
    check_moment (&run, times[i], &nr);
  check_closed (&run);
  fprintf (stderr, "%s, seed %" PRIu64 ": %" PRIu64 " calls, %zu moments, "
           "%" PRIu64 " images\n", setup->name, seed,
           backend_crash_calls (run.disk, CRASH_ALL_CALLS), nr_times, nr);
  free (times);
  crash_run_end (&run);
}

void
crash_power (const struct crash_setup *setup)
{
  uint64_t seed = crash_run_env ("CRASH_TEST_SEED", 1), i;

  for (i = 0; i < crash_run_env ("CRASH_TEST_FACTOR", DEFAULT_FACTOR); ++i)
    power_once (setup, seed + i);
}
