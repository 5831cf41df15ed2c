/* SPDX-License-Identifier: BSD-3-Clause */
/* Every lock of the engine, in one total order, and the only macros that
 * take them.
 *
 * A thread may take a lock only while every lock that it holds has a
 * smaller rank.  Debug builds (-DLOCK_RANK_CHECK, set by
 * --enable-sanitizers) keep a mask of held ranks per thread and abort on
 * an inversion; release builds pay nothing.
 */

#ifndef LOCKS_H
#define LOCKS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/*                     protects                          across I/O? */
enum lock_rank {
  LOCK_REGISTRY = 1, /* list of open images (sharing)    yes: open, close */
  LOCK_COMMIT,       /* who commits, commit tickets      no */
  LOCK_INFLIGHT,     /* guest ranges being remapped      no */
  LOCK_META,         /* rwlock: L1, L2, refcounts, mcache,
                        allocator, pending frees; lookups
                        take it shared                   only a miss in a
                                                         change, rare growth */
  LOCK_CCACHE,       /* decompressed clusters            no */
  LOCK_HEADER,       /* feature bits, header sector      yes: header writes,
                                                         barriers */
  LOCK_BITMAPS,      /* in-memory dirty bitmaps          no */
  LOCK_CRYPT,        /* pool of cipher contexts          no */
  LOCK_GROWTH,       /* rwlock: the file gets longer;
                        writes beyond its end share it   yes */
  LOCK_BACKEND,      /* cached file length, connections  leaf */
};

struct ranked_mutex {
  pthread_mutex_t lock;
  enum lock_rank rank;
};

struct ranked_rwlock {
  pthread_rwlock_t lock;
  enum lock_rank rank;
};

#ifdef LOCK_RANK_CHECK
extern _Thread_local unsigned locks_held;
static inline void
locks_rank_enter (enum lock_rank rank)
{
  if (locks_held >> rank) {
    fprintf (stderr, "lock rank inversion: taking %d, holding mask 0x%x\n",
             (int) rank, locks_held);
    abort ();
  }
  locks_held |= 1U << rank;
}
static inline void
locks_rank_leave (enum lock_rank rank)
{
  locks_held &= ~(1U << rank);
}
#else
static inline void locks_rank_enter (enum lock_rank rank) { (void) rank; }
static inline void locks_rank_leave (enum lock_rank rank) { (void) rank; }
#endif

static inline void
ranked_mutex_init (struct ranked_mutex *m, enum lock_rank rank)
{
  pthread_mutex_init (&m->lock, NULL);
  m->rank = rank;
}

static inline void
ranked_mutex_destroy (struct ranked_mutex *m)
{
  pthread_mutex_destroy (&m->lock);
}

/* Writers are preferred: a stream of lookups must not starve an
 * allocation.  (So a thread never takes it shared twice.)
 */
static inline void
ranked_rwlock_init (struct ranked_rwlock *l, enum lock_rank rank)
{
  pthread_rwlockattr_t attr;

  pthread_rwlockattr_init (&attr);
#ifdef PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
  pthread_rwlockattr_setkind_np (&attr,
    PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
  pthread_rwlock_init (&l->lock, &attr);
  pthread_rwlockattr_destroy (&attr);
  l->rank = rank;
}

static inline void
ranked_rwlock_destroy (struct ranked_rwlock *l)
{
  pthread_rwlock_destroy (&l->lock);
}

static inline struct ranked_mutex *
locks_mutex_enter (struct ranked_mutex *m)
{
  locks_rank_enter (m->rank);
  pthread_mutex_lock (&m->lock);
  return m;
}

static inline void
locks_mutex_leave (struct ranked_mutex **m)
{
  pthread_mutex_unlock (&(*m)->lock);
  locks_rank_leave ((*m)->rank);
}

/* Holders mostly let go within a microsecond, and to sleep and be woken
 * costs several: look a few times first.
 */
#define LOCKS_SPINS 100

static inline void
locks_pause (void)
{
#if defined __x86_64__ || defined __i386__
  __builtin_ia32_pause ();
#elif defined __aarch64__
  __asm__ __volatile__ ("yield");
#endif
}

static inline struct ranked_rwlock *
locks_read_enter (struct ranked_rwlock *l)
{
  unsigned i;

  locks_rank_enter (l->rank);
  for (i = 0; i < LOCKS_SPINS; ++i) {
    if (pthread_rwlock_tryrdlock (&l->lock) == 0)
      return l;
    locks_pause ();
  }
  pthread_rwlock_rdlock (&l->lock);
  return l;
}

static inline struct ranked_rwlock *
locks_write_enter (struct ranked_rwlock *l)
{
  unsigned i;

  locks_rank_enter (l->rank);
  for (i = 0; i < LOCKS_SPINS; ++i) {
    if (pthread_rwlock_trywrlock (&l->lock) == 0)
      return l;
    locks_pause ();
  }
  pthread_rwlock_wrlock (&l->lock);
  return l;
}

static inline void
locks_rw_leave (struct ranked_rwlock **l)
{
  pthread_rwlock_unlock (&(*l)->lock);
  locks_rank_leave ((*l)->rank);
}

#define LOCKS_CAT2(a, b) a##b
#define LOCKS_CAT(a, b) LOCKS_CAT2 (a, b)

/* Hold the lock until the end of the enclosing block. */
#define MUTEX_SCOPE(m)                                          \
  __attribute__ ((__cleanup__ (locks_mutex_leave), __unused__)) \
  struct ranked_mutex *LOCKS_CAT (scope_, __COUNTER__) =        \
    locks_mutex_enter (m)
#define READ_SCOPE(l)                                           \
  __attribute__ ((__cleanup__ (locks_rw_leave), __unused__))    \
  struct ranked_rwlock *LOCKS_CAT (scope_, __COUNTER__) =       \
    locks_read_enter (l)
#define WRITE_SCOPE(l)                                          \
  __attribute__ ((__cleanup__ (locks_rw_leave), __unused__))    \
  struct ranked_rwlock *LOCKS_CAT (scope_, __COUNTER__) =       \
    locks_write_enter (l)

/* Inside MUTEX_SCOPE (M) only. */
static inline void
ranked_mutex_wait (pthread_cond_t *cond, struct ranked_mutex *m)
{
  pthread_cond_wait (cond, &m->lock);
}

#endif /* LOCKS_H */
