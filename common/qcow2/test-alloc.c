/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit test of alloc.c and alloc-free.c.
 *
 * A random client allocates, releases and frees; the model knows who owns
 * each cluster, and which requests were under way when it was freed.
 * Checked: nothing is handed out twice, or too early; what is called virgin
 * is zero; nothing is lost; the file ends where it should.
 */

#include <config.h>

#include "alloc.h"
#include "epoch.h"
#include "test-image.h"
#include "test-mem.h"

#define CLUSTERS 60000
#define MAX_OWNED 400
#define MAX_FREED 10000
#define MAX_TOKENS 3

struct owned {
  uint64_t off, len;            /* bytes */
  bool compressed;
};

static struct test_image t;
static struct alloc a;
static struct epoch epoch;
static uint64_t seed;

static struct owned owned[MAX_OWNED];
static size_t nr_owned;
static struct {
  uint64_t off, len, since;
} freed[MAX_FREED];                     /* compressed bytes */
static size_t nr_freed;
static unsigned refs[CLUSTERS];         /* owners, by cluster */
static uint64_t freed_at[CLUSTERS];     /* time of the last free */

/* Reservations: what the last commit that succeeded made stable. */
static uint64_t frozen_refs[CLUSTERS], stable_refs[CLUSTERS];
static uint64_t stable_len;
static unsigned nr_settled;             /* runs that were */
static uint64_t now = 1, committed;     /* times */
static struct {
  bool held;
  unsigned token;
  uint64_t since;
} tokens[MAX_TOKENS];

static uint64_t
below (uint64_t n)
{
  return test_below (&seed, n);
}

/* What was freed then can be in nobody's hands. */
static bool
out_of_reach (uint64_t then)
{
  unsigned i;

  if (then > committed)
    return false;
  for (i = 0; i < MAX_TOKENS; ++i) {
    if (tokens[i].held && tokens[i].since <= then)
      return false;
  }
  return true;
}

static void
check_reusable (uint64_t c)
{
  CHECK (c < CLUSTERS);
  CHECK (overlap_find (t.overlap, c << t.geo.cluster_bits, 1) == 0);
  CHECK (freed_at[c] == 0 || out_of_reach (freed_at[c]));
}

/* Compressed bytes may be packed into a cluster that is not free yet, but
 * not over those that were freed.
 */
static void
check_bytes_reusable (uint64_t off, uint64_t len)
{
  size_t i;

  for (i = 0; i < nr_freed; ++i) {
    if (out_of_reach (freed[i].since))
      freed[i--] = freed[--nr_freed];
    else
      CHECK (freed[i].off >= off + len || off >= freed[i].off + freed[i].len);
  }
}

static void
own (uint64_t off, uint64_t len, bool compressed, bool virgin)
{
  uint64_t c, i;

  CHECK (off + len <= t.mem.len);
  for (c = off >> t.geo.cluster_bits;
       c <= (off + len - 1) >> t.geo.cluster_bits; ++c) {
    if (!compressed)
      CHECK (refs[c] == 0);
    if (!compressed)
      check_reusable (c);
    refs[c]++;
  }
  if (compressed) {
    check_bytes_reusable (off, len);
    for (i = 0; i < nr_owned; ++i)
      CHECK (owned[i].off >= off + len || off >= owned[i].off + owned[i].len);
  }
  for (i = 0; virgin && i < len; ++i)
    CHECK (t.mem.bytes[off + i] == 0);
  memset (t.mem.bytes + off, 0x55, len);
  owned[nr_owned].off = off;
  owned[nr_owned].len = len;
  owned[nr_owned++].compressed = compressed;
}

static struct owned
disown (size_t i, bool deferred)
{
  struct owned o = owned[i];
  uint64_t c;

  for (c = o.off >> t.geo.cluster_bits;
       c <= (o.off + o.len - 1) >> t.geo.cluster_bits; ++c) {
    CHECK (refs[c] > 0);
    refs[c]--;
    freed_at[c] = deferred ? now : freed_at[c];
  }
  if (deferred && o.compressed && nr_freed < MAX_FREED) {
    freed[nr_freed].off = o.off;
    freed[nr_freed].len = o.len;
    freed[nr_freed++].since = now;
  }
  owned[i] = owned[--nr_owned];
  return o;
}

static int
take_clusters (uint64_t max_nr, const struct alloc_growth *growth,
               uint64_t *off, uint64_t *nr, bool *virgin)
{
  unsigned flags = 0;
  int r = alloc_clusters_locked (&a, max_nr, growth, off, nr, &flags);
  uint64_t i;

  *virgin = flags & ALLOC_VIRGIN;
  if (r < 0 || !(flags & ALLOC_SETTLED))
    return r;
  CHECK (*virgin && *off + (*nr << t.geo.cluster_bits) <= stable_len);
  for (i = 0; i < *nr; ++i)
    CHECK (stable_refs[(*off >> t.geo.cluster_bits) + i] == 1);
  nr_settled++;
  return r;
}

static void
grow_table (void)
{
  uint64_t off, clusters;

  test_image_grow_locked (&t, refcount_table_span (&t.rc), &off, &clusters);
  alloc_defer_free_locked (&a, off, clusters);
}

static int
try_allocate (unsigned how)
{
  const struct alloc_growth growth = { .size = 300000, .align = 4096 };
  uint64_t off, nr = 1 + below (a.reserved.allowed ? 3 : 30), len;
  bool virgin = false;
  int r;

  switch (how) {
  case 0:
    r = take_clusters (nr, below (2) ? &growth : NULL, &off, &nr, &virgin);
    break;
  case 1:
    r = alloc_exactly_locked (&a, nr, &off, &virgin);
    break;
  case 2:
    off = below (a.cursor_idx + 20) << t.geo.cluster_bits;
    r = alloc_at_locked (&a, off, nr, NULL, &nr, &virgin);
    if (r == 0 && nr == 0)
      return 0;
    break;
  default:
    len = 1 + below (t.geo.cluster_size);
    r = alloc_bytes_locked (&a, len, NULL, &off);
    if (r == 0)
      own (off, len, true, false);
    return r;
  }
  if (r == 0)
    own (off, nr << t.geo.cluster_bits, false, virgin);
  return r;
}

static void
allocate (void)
{
  unsigned how = below (4);
  int r;

  if (nr_owned == MAX_OWNED)
    return;
  WRITE_SCOPE (&t.meta);
  while ((r = try_allocate (how)) == -EAGAIN)
    grow_table ();
  CHECK (r == 0);
}

static void
give_back (void)
{
  struct owned o;
  bool deferred = below (4) > 0;

  if (nr_owned == 0)
    return;
  WRITE_SCOPE (&t.meta);
  now++;
  o = disown (below (nr_owned), deferred);
  if (o.compressed && deferred)
    alloc_defer_free_bytes_locked (&a, o.off, o.len);
  else if (o.compressed)
    alloc_release_bytes_locked (&a, o.off, o.len);
  else if (deferred)
    alloc_defer_free_locked (&a, o.off, o.len >> t.geo.cluster_bits);
  else
    alloc_release_locked (&a, o.off, o.len >> t.geo.cluster_bits);
}

static void
commit (bool ok, bool all)
{
  uint64_t frozen_at, frozen_len, c;

  {
    WRITE_SCOPE (&t.meta);
    alloc_freeze_locked (&a);
    frozen_at = now;
    frozen_len = t.mem.len;
    for (c = 0; a.reserved.allowed && c < CLUSTERS; ++c)
      CHECK_OK (refcount_get_locked (&t.rc, c, &frozen_refs[c]));
  }
  if (!all)
    give_back ();                       /* meanwhile */
  {
    WRITE_SCOPE (&t.meta);
    test_image_commit_locked (&t);
    alloc_retire_locked (&a, ok);
    if (ok) {
      committed = frozen_at;
      stable_len = frozen_len;
      memcpy (stable_refs, frozen_refs, sizeof stable_refs);
      alloc_reserved_stable_locked (&a);
    }
  }
  alloc_reclaim (&a, all);
}

static void
request (void)
{
  unsigned i = below (MAX_TOKENS);

  now++;
  if (tokens[i].held)
    epoch_leave (&epoch, tokens[i].token);
  else {
    tokens[i].token = epoch_enter (&epoch);
    tokens[i].since = now;
  }
  tokens[i].held = !tokens[i].held;
}

/* Refcounts of everything that is owned, and of nothing else. */
static void
compare_refcounts (void)
{
  uint64_t c, value;

  WRITE_SCOPE (&t.meta);
  for (c = 0; c < CLUSTERS; ++c) {
    CHECK_OK (refcount_get_locked (&t.rc, c, &value));
    if (overlap_find (t.overlap, c << t.geo.cluster_bits, 1))
      CHECK (value == 1 && refs[c] == 0);
    else
      CHECK (value == refs[c]);
  }
}

static void
finish (void)
{
  unsigned i;

  for (i = 0; i < MAX_TOKENS; ++i) {
    if (tokens[i].held)
      epoch_leave (&epoch, tokens[i].token);
    tokens[i].held = false;
  }
  {
    WRITE_SCOPE (&t.meta);
    alloc_reserved_give_back_locked (&a);
  }
  do {
    commit (true, true);
  } while (alloc_has_deferred (&a));
}

static void
test_random_client (unsigned cluster_bits, unsigned order, bool discard,
                    bool reserve)
{
  uint64_t i, end;

  seed = 77 + cluster_bits + order;
  nr_owned = nr_freed = 0;
  now = 1;
  committed = 0;
  memset (refs, 0, sizeof refs);
  memset (freed_at, 0, sizeof freed_at);
  epoch_init (&epoch);
  test_image_make (&t, cluster_bits, order);
  CHECK_OK (alloc_open (&a, &t.geo, &t.mem.b, &t.rc, &epoch, &t.meta,
                        discard));
  a.reserved.allowed = reserve;
  stable_len = nr_settled = 0;
  memset (stable_refs, 0, sizeof stable_refs);
  for (i = 0; i < 8000; ++i) {
    switch (below (8)) {
    case 0: case 1: case 2: allocate (); break;
    case 3: give_back (); break;
    case 4: if (reserve) allocate (); else give_back (); break;
    case 5: request (); break;
    case 6:
      if (reserve || below (4) == 0)
        commit (below (4) > 0, false);
      break;
    default: if (below (200) == 0) { finish (); compare_refcounts (); }
    }
  }
  finish ();
  compare_refcounts ();
  CHECK (!discard || t.mem.punches > 0);
  CHECK (reserve ? nr_settled > 0 : nr_settled == 0);

  while (nr_owned > 0)
    give_back ();
  finish ();
  compare_refcounts ();
  alloc_trim_file (&a, false);
  {
    WRITE_SCOPE (&t.meta);
    CHECK_OK (refcount_end_locked (&t.rc, &end));
  }
  CHECK (t.mem.len == end << t.geo.cluster_bits);
  alloc_close (&a);
  test_image_free (&t);
}

/* Limits of the file. */
static void
test_full (void)
{
  const struct alloc_growth huge = { .size = 1 << 30, .align = 1 << 20 };
  uint64_t off, nr;
  bool virgin;

  epoch_init (&epoch);
  test_image_make (&t, 12, 4);
  CHECK_OK (alloc_open (&a, &t.geo, &t.mem.b, &t.rc, &epoch, &t.meta, true));
  {
    WRITE_SCOPE (&t.meta);
    /* No room for the hint, nor for the step, but for what is needed. */
    t.mem.max_len = 20 << 12;
    CHECK_OK (take_clusters (10, &huge, &off, &nr, &virgin));
    CHECK (off == 3 << 12 && nr == 10 && virgin);
    CHECK (t.mem.len == 13 << 12);
    CHECK (alloc_exactly_locked (&a, 8, &off, &virgin) == -ENOSPC);
    CHECK_OK (alloc_exactly_locked (&a, 7, &off, &virgin));
    CHECK (take_clusters (1, NULL, &off, &nr, &virgin) == -ENOSPC);
    CHECK (alloc_bytes_locked (&a, 1, NULL, &off) == -ENOSPC);
    CHECK_OK (alloc_at_locked (&a, 5 << 12, 3, NULL, &nr, &virgin));
    CHECK (nr == 0);                    /* in use */
    CHECK_OK (alloc_at_locked (&a, (5 << 12) + 1, 3, NULL, &nr, &virgin));
    CHECK (nr == 0);                    /* not a cluster */

    /* A block device: what fits. */
    alloc_release_locked (&a, 10 << 12, 10);
    t.mem.max_len = 0;
    t.mem.b.fixed_size = true;
    CHECK_OK (take_clusters (100, NULL, &off, &nr, &virgin));
    CHECK (off == 10 << 12 && nr == 10 && !virgin);
    CHECK (take_clusters (1, NULL, &off, &nr, &virgin) == -ENOSPC);
    CHECK (alloc_exactly_locked (&a, 1, &off, &virgin) == -ENOSPC);
  }
  alloc_close (&a);
  test_image_free (&t);
}

static void
test_growth_steps (void)
{
  const struct alloc_growth hint = { .size = 5 << 20, .align = 1 << 20 };
  uint64_t off, nr;
  bool virgin;

  epoch_init (&epoch);
  test_image_make (&t, 16, 4);
  CHECK_OK (alloc_open (&a, &t.geo, &t.mem.b, &t.rc, &epoch, &t.meta, true));
  {
    WRITE_SCOPE (&t.meta);
    CHECK_OK (take_clusters (1, NULL, &off, &nr, &virgin));
    CHECK (t.mem.len == (3 << 16) + (1 << 20));
    CHECK_OK (alloc_exactly_locked (&a, 15, &off, &virgin));
    CHECK (virgin);
    CHECK_OK (take_clusters (1, &hint, &off, &nr, &virgin));
    CHECK (t.mem.len == 4 << 20);       /* 1.2 + 2, rounded up */
    /* Given back unused, but somebody may have written to it. */
    alloc_release_locked (&a, off, 1);
    CHECK_OK (take_clusters (1, NULL, &off, &nr, &virgin));
    CHECK (!virgin);
    CHECK_OK (take_clusters (100, &hint, &off, &nr, &virgin));
    CHECK (nr == 100 && virgin && t.mem.len == 9 << 20);
  }
  alloc_trim_file (&a, false);
  CHECK (t.mem.len == 120 << 16);
  alloc_close (&a);
  test_image_free (&t);
}

/* Refcounts say free, the registry says metadata. */
static void
test_overlap (void)
{
  uint64_t off, nr;
  bool virgin;

  epoch_init (&epoch);
  test_image_make (&t, 16, 4);
  CHECK_OK (overlap_add_locked (t.overlap, 3 << 16, 1, OVERLAP_L2));
  CHECK_OK (alloc_open (&a, &t.geo, &t.mem.b, &t.rc, &epoch, &t.meta, true));
  {
    WRITE_SCOPE (&t.meta);
    CHECK (take_clusters (1, NULL, &off, &nr, &virgin) == -EUCLEAN);
    CHECK (alloc_exactly_locked (&a, 2, &off, &virgin) == -EUCLEAN);
  }
  alloc_close (&a);
  test_image_free (&t);
}

/* Compressed clusters are packed end to end. */
static void
test_packing (void)
{
  uint64_t off, nr, value;
  bool virgin;

  epoch_init (&epoch);
  test_image_make (&t, 16, 4);
  CHECK_OK (alloc_open (&a, &t.geo, &t.mem.b, &t.rc, &epoch, &t.meta, true));
  {
    WRITE_SCOPE (&t.meta);
    CHECK_OK (alloc_bytes_locked (&a, 40000, NULL, &off));
    CHECK (off == 3 << 16);
    CHECK_OK (alloc_bytes_locked (&a, 40000, NULL, &off));
    CHECK (off == (3 << 16) + 40000);
    CHECK_OK (refcount_get_locked (&t.rc, 3, &value));
    CHECK (value == 2);
    CHECK_OK (refcount_get_locked (&t.rc, 4, &value));
    CHECK (value == 1);
    /* Undone: the next one takes its place. */
    alloc_release_bytes_locked (&a, off, 40000);
    CHECK_OK (alloc_bytes_locked (&a, 100, NULL, &off));
    CHECK (off == (3 << 16) + 40000);
    /* The next cluster is taken: a new one. */
    CHECK_OK (take_clusters (1, NULL, &off, &nr, &virgin));
    CHECK (off == 4 << 16);
    CHECK_OK (alloc_bytes_locked (&a, 40000, NULL, &off));
    CHECK (off == 5 << 16);
  }
  alloc_close (&a);
  test_image_free (&t);
}

/* Space that a former refcount table had is not zero. */
static void
test_old_table (void)
{
  uint64_t off, nr, first, i;
  bool virgin;

  epoch_init (&epoch);
  test_image_make (&t, 9, 6);
  CHECK_OK (alloc_open (&a, &t.geo, &t.mem.b, &t.rc, &epoch, &t.meta,
                        false));
  {
    WRITE_SCOPE (&t.meta);
    grow_table ();
    first = t.rc.table_off;
    grow_table ();
  }
  commit (true, true);
  {
    WRITE_SCOPE (&t.meta);
    do {
      CHECK_OK (take_clusters (100, NULL, &off, &nr, &virgin));
      for (i = 0; virgin && i < nr * 512; ++i)
        CHECK (t.mem.bytes[off + i] == 0);
    } while (off < first);
  }
  alloc_close (&a);
  test_image_free (&t);
}

int
main (void)
{
  unsigned order;

  for (order = 0; order <= 6; order += 2) {
    test_random_client (9, order, true, false);
    test_random_client (12, order, order < 4, false);
    test_random_client (12, order, true, true);
  }
  test_random_client (16, 4, true, false);
  test_random_client (16, 4, false, true);
  test_full ();
  test_growth_steps ();
  test_overlap ();
  test_packing ();
  test_old_table ();
  return 0;
}
