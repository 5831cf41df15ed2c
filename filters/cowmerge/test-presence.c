/* SPDX-License-Identifier: BSD-3-Clause */
/* Random ranges set in the presence map, against an array; and ranges that
 * want the same place.
 */

#undef NDEBUG
#include <config.h>

#include <assert.h>
#include <stdlib.h>

#include "presence.h"

#define NR 20000
#define FIRST (UINT64_C (1) << 50)

static uint8_t model[NR];
static uint64_t seed = 1;

static uint64_t
rnd (uint64_t n)
{
  seed = seed * UINT64_C (6364136223846793005) + 1442695040888963407;
  return (seed >> 33) % n;
}

int
main (void)
{
  static struct presence p;
  uint64_t far;

  presence_init (&p);
  for (unsigned round = 0; round < 2000; ++round) {
    uint64_t first = rnd (NR);
    uint64_t last = first + rnd (rnd (3) ? 40 : NR);
    enum presence_state s = rnd (4);

    if (last >= NR)
      last = NR - 1;
    presence_set_locked (&p, FIRST + first, FIRST + last, s);
    for (uint64_t i = first; i <= last; ++i)
      model[i] = s;
    for (uint64_t i = 0; i < NR; i += 1 + rnd (5))
      assert (presence_get_locked (&p, FIRST + i) == model[i]);
  }
  assert (presence_get_locked (&p, FIRST - 1) == PRESENCE_UNKNOWN);
  assert (presence_get_locked (&p, 0) == PRESENCE_UNKNOWN);

  /* The same slot: the later one knows, the earlier one forgot. */
  far = FIRST + (UINT64_C (4096) * PRESENCE_SLOTS);
  presence_set_locked (&p, FIRST, FIRST, PRESENCE_ABSENT);
  assert (presence_get_locked (&p, far) == PRESENCE_UNKNOWN);
  /* To forget does not displace anything. */
  presence_set_locked (&p, far, far, PRESENCE_UNKNOWN);
  assert (presence_get_locked (&p, FIRST) == PRESENCE_ABSENT);
  presence_set_locked (&p, far + 1, far + 1, PRESENCE_PRESENT);
  assert (presence_get_locked (&p, far) == PRESENCE_UNKNOWN);
  assert (presence_get_locked (&p, far + 1) == PRESENCE_PRESENT);
  assert (presence_get_locked (&p, FIRST) == PRESENCE_UNKNOWN);
  presence_destroy (&p);
  return EXIT_SUCCESS;
}
