/* SPDX-License-Identifier: BSD-3-Clause */
/* A sparse file in memory for fuzzers: a hash table of pages, so that a
 * file of terabytes costs what its content costs.
 *
 * Invariant: bytes at and beyond the length are zero.
 * Locks: none; fuzzers have one thread.
 */

#include <config.h>

#include <errno.h>
#include <string.h>

#include "fuzz.h"

#define PAGE            4096
#define MAX_PAGES       (FUZZ_MEM_MAX_BYTES / PAGE)
#define NR_SLOTS        (2 * MAX_PAGES)
#define MAX_LEN         (UINT64_C (1) << 62)

struct page {
  uint64_t idx;
  uint8_t data[PAGE];
};

struct mem {
  struct backend b;
  uint64_t len;
  uint64_t changes, bytes_read, budget;
  size_t nr_pages;
  struct page *pages[MAX_PAGES];        /* in order of birth */
  uint16_t slots[NR_SLOTS];             /* number in pages + 1; 0 = empty */
};

_Static_assert (MAX_PAGES < UINT16_MAX, "page numbers fit");

static struct mem *
to_mem (struct backend *b)
{
  return (struct mem *) b;
}

static void *
must (void *p)
{
  if (p == NULL) {
    fprintf (stderr, "out of memory\n");
    exit (2);
  }
  return p;
}

static uint16_t *
find_slot (struct mem *m, uint64_t idx)
{
  size_t i = (idx * UINT64_C (0x9e3779b97f4a7c15) >> 32) % NR_SLOTS;

  while (m->slots[i] != 0 && m->pages[m->slots[i] - 1]->idx != idx)
    i = (i + 1) % NR_SLOTS;
  return &m->slots[i];
}

static struct page *
get_page (struct mem *m, uint64_t idx, bool make)
{
  uint16_t *slot = find_slot (m, idx);
  struct page *p;

  if (*slot != 0)
    return m->pages[*slot - 1];
  if (!make || m->nr_pages >= MAX_PAGES)
    return NULL;
  p = must (calloc (1, sizeof *p));
  p->idx = idx;
  m->pages[m->nr_pages++] = p;
  *slot = m->nr_pages;
  return p;
}

static size_t
page_part (uint64_t off, uint64_t len)
{
  uint64_t n = PAGE - off % PAGE;

  return n < len ? n : len;
}

static int
mem_pread (struct backend *b, void *buf, size_t len, uint64_t off)
{
  struct mem *m = to_mem (b);
  uint8_t *p = buf;
  struct page *page;
  size_t n;

  if (off > m->len || len > m->len - off)
    return -ENODATA;
  if (len > m->budget)
    return -EIO;
  m->budget -= len;
  m->bytes_read += len;
  for (; len > 0; p += n, off += n, len -= n) {
    n = page_part (off, len);
    page = get_page (m, off / PAGE, false);
    if (page)
      memcpy (p, page->data + off % PAGE, n);
    else
      memset (p, 0, n);
  }
  return 0;
}

static int
write_bytes (struct mem *m, const uint8_t *p, size_t len, uint64_t off)
{
  struct page *page;
  size_t n;

  if (off > MAX_LEN || len > MAX_LEN - off)
    return -ENOSPC;
  for (; len > 0; p += n, off += n, len -= n) {
    n = page_part (off, len);
    page = get_page (m, off / PAGE, true);
    if (page == NULL)
      return -ENOSPC;
    memcpy (page->data + off % PAGE, p, n);
    if (off + n > m->len)
      m->len = off + n;
  }
  return 0;
}

static int
mem_pwritev (struct backend *b, struct iovec *iov, int iovcnt,
             uint64_t off, unsigned flags)
{
  struct mem *m = to_mem (b);
  int i, r = 0;

  (void) flags;
  FUZZ_CHECK (b->writable);
  m->changes++;
  for (i = 0; r == 0 && i < iovcnt; ++i) {
    r = write_bytes (m, iov[i].iov_base, iov[i].iov_len, off);
    off += iov[i].iov_len;
  }
  return r;
}

static int
mem_flush (struct backend *b)
{
  (void) b;
  return 0;
}

/* Zero what pages have of [OFF, END). */
static void
clear (struct mem *m, uint64_t off, uint64_t end)
{
  size_t i;

  for (i = 0; i < m->nr_pages; ++i) {
    struct page *page = m->pages[i];
    uint64_t lo = page->idx * PAGE, hi = lo + PAGE;

    if (lo < off)
      lo = off;
    if (hi > end)
      hi = end;
    if (lo < hi)
      memset (page->data + lo % PAGE, 0, hi - lo);
  }
}

static int
mem_zero (struct backend *b, uint64_t off, uint64_t len)
{
  struct mem *m = to_mem (b);

  FUZZ_CHECK (b->writable);
  if (off > MAX_LEN || len > MAX_LEN - off)
    return -ENOSPC;
  m->changes++;
  clear (m, off, off + len);
  if (off + len > m->len)
    m->len = off + len;
  return 0;
}

static int
mem_punch (struct backend *b, uint64_t off, uint64_t len)
{
  struct mem *m = to_mem (b);

  FUZZ_CHECK (b->writable);
  m->changes++;
  if (off < m->len)
    clear (m, off, len < m->len - off ? off + len : m->len);
  return 0;
}

static int
mem_truncate (struct backend *b, uint64_t len, bool allocate)
{
  struct mem *m = to_mem (b);

  (void) allocate;
  FUZZ_CHECK (b->writable);
  if (len > MAX_LEN)
    return -EFBIG;
  m->changes++;
  if (len < m->len)
    clear (m, len, m->len);
  m->len = len;
  return 0;
}

static int64_t
mem_size (struct backend *b)
{
  return to_mem (b)->len;
}

static int
mem_extent (struct backend *b, uint64_t off, uint64_t len,
            enum backend_extent_type *type, uint64_t *extent_len)
{
  struct mem *m = to_mem (b);
  uint64_t end = off + len;
  size_t i;

  if (get_page (m, off / PAGE, false)) {
    *type = BACKEND_DATA;
    *extent_len = page_part (off, len);
    return 0;
  }
  for (i = 0; i < m->nr_pages; ++i) {
    uint64_t start = m->pages[i]->idx * PAGE;

    if (start > off && start < end)
      end = start;
  }
  *type = BACKEND_HOLE;
  *extent_len = end - off;
  return 0;
}

static void
mem_close (struct backend *b)
{
  struct mem *m = to_mem (b);
  size_t i;

  for (i = 0; i < m->nr_pages; ++i)
    free (m->pages[i]);
  free (m->b.name);
  free (m);
}

struct backend *
fuzz_mem_create (const char *name)
{
  static const struct backend_ops ops = {
    .pread = mem_pread,
    .pwritev = mem_pwritev,
    .flush = mem_flush,
    .zero = mem_zero,
    .punch = mem_punch,
    .truncate = mem_truncate,
    .size = mem_size,
    .extent = mem_extent,
    .close = mem_close,
  };
  struct mem *m = must (calloc (1, sizeof *m));

  m->b.ops = &ops;
  m->b.name = must (strdup (name));
  m->b.writable = true;
  m->b.min_io = 1;
  m->budget = UINT64_MAX;
  return &m->b;
}

struct backend *
fuzz_mem_clone (struct backend *b)
{
  struct mem *from = to_mem (b), *to;
  size_t i;

  to = to_mem (fuzz_mem_create (b->name));
  for (i = 0; i < from->nr_pages; ++i)
    memcpy (get_page (to, from->pages[i]->idx, true)->data,
            from->pages[i]->data, PAGE);
  to->len = from->len;
  return &to->b;
}

uint64_t
fuzz_mem_changes (struct backend *b)
{
  return to_mem (b)->changes;
}

uint64_t
fuzz_mem_bytes_read (struct backend *b)
{
  return to_mem (b)->bytes_read;
}

void
fuzz_mem_read_budget (struct backend *b, uint64_t bytes)
{
  to_mem (b)->budget = bytes;
}
