/* SPDX-License-Identifier: BSD-3-Clause */
/* Latencies in buckets that are at most 1/32 of their value wide. */

#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_SUB_BITS 5
#define HISTOGRAM_SUB (1 << HISTOGRAM_SUB_BITS)
#define HISTOGRAM_BUCKETS ((65 - HISTOGRAM_SUB_BITS) * HISTOGRAM_SUB)

struct histogram {
  uint64_t count[HISTOGRAM_BUCKETS];
  uint64_t total;               /* number of values */
  uint64_t sum, max;            /* nanoseconds */
};

static inline void
histogram_add (struct histogram *h, uint64_t ns)
{
  unsigned idx = ns, shift;

  if (ns >= HISTOGRAM_SUB) {
    shift = 63 - __builtin_clzll (ns) - HISTOGRAM_SUB_BITS;
    idx = (shift + 1) * HISTOGRAM_SUB + (ns >> shift) - HISTOGRAM_SUB;
  }
  h->count[idx]++;
  h->total++;
  h->sum += ns;
  if (ns > h->max)
    h->max = ns;
}

static inline void
histogram_merge (struct histogram *to, const struct histogram *from)
{
  for (unsigned i = 0; i < HISTOGRAM_BUCKETS; ++i)
    to->count[i] += from->count[i];
  to->total += from->total;
  to->sum += from->sum;
  if (from->max > to->max)
    to->max = from->max;
}

/* The value in nanoseconds that FRACTION (0..1) of all are not above. */
static inline uint64_t
histogram_quantile (const struct histogram *h, double fraction)
{
  uint64_t seen = 0, wanted = (uint64_t) (fraction * h->total);

  for (unsigned i = 0; i < HISTOGRAM_BUCKETS; ++i) {
    seen += h->count[i];
    if (seen > wanted) {
      unsigned shift = i / HISTOGRAM_SUB;

      if (shift == 0)
        return i;
      return (uint64_t) (i % HISTOGRAM_SUB + HISTOGRAM_SUB) << (shift - 1);
    }
  }
  return h->max;
}

#endif /* BENCH_HISTOGRAM_H */
