/* SPDX-License-Identifier: BSD-3-Clause */
/* The snapshot table: tables of qemu-img are read and written again byte
 * for byte; lies and cut-off tables are refused.
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "header.h"
#include "ondisk.h"
#include "snapshot-table.h"
#include "test-errors.h"

#define DISK_SIZE 123456

static struct snapshot_table
make_table (void)
{
  static struct snapshot_entry entries[] = {
    { .l1_table_offset = 0x50000, .l1_size = 1, .id = (char *) "1",
      .name = (char *) "first", .date_sec = 1700000000, .date_nsec = 5,
      .vm_clock_nsec = 77, .vm_state_size = 0, .disk_size = 1 << 20,
      .icount = UINT64_MAX },
    { .l1_table_offset = 0x90000, .l1_size = 4, .id = (char *) "17",
      .name = (char *) "", .vm_state_size = UINT64_C (5) << 32,
      .disk_size = 1 << 30, .icount = 42,
      .extra = (uint8_t *) "future", .extra_len = 6 },
    { .l1_table_offset = 0xa0000, .l1_size = 1, .id = (char *) "2",
      .name = (char *) "17", .disk_size = 512, .icount = UINT64_MAX },
  };

  return (struct snapshot_table) { .entries = entries, .nr = 3 };
}

static void
test_round_trip (void)
{
  struct snapshot_table t = make_table (), u;
  uint8_t *buf, *again;
  size_t len, len2, cut;
  int r;

  assert (snapshot_table_serialise (&t, &buf, &len) == 0);
  assert (len % 8 == 0);
  assert (snapshot_table_parse ("x", buf, len, 3, DISK_SIZE, &u) == 0);
  assert (u.nr == 3 && u.bytes == len);
  assert (u.entries[1].vm_state_size == UINT64_C (5) << 32);
  assert (u.entries[1].icount == 42 && u.entries[1].extra_len == 6);
  assert (memcmp (u.entries[1].extra, "future", 6) == 0);
  assert (strcmp (u.entries[0].name, "first") == 0);
  assert (u.entries[0].date_sec == 1700000000);
  assert (u.entries[2].disk_size == 512);

  /* An ID takes precedence over a name. */
  assert (snapshot_table_find (&u, "17") == &u.entries[1]);
  assert (snapshot_table_find (&u, "first") == &u.entries[0]);
  assert (snapshot_table_find (&u, "") == &u.entries[1]);
  assert (snapshot_table_find (&u, "absent") == NULL);

  assert (snapshot_table_serialise (&u, &again, &len2) == 0);
  assert (len2 == len && memcmp (buf, again, len) == 0);
  free (again);
  snapshot_table_free (&u);

  /* Cut off anywhere, only the last padding is not needed. */
  nr_errors = 0;
  for (cut = 0; cut < len; cut++) {
    uint8_t *exact = malloc (cut ? cut : 1);

    assert (exact);
    memcpy (exact, buf, cut);
    r = snapshot_table_parse ("x", exact, cut, 3, DISK_SIZE, &u);
    if (r == 0)
      snapshot_table_free (&u);
    assert (cut >= len - 5 ? r == 0 : r == -ENODATA);
    free (exact);
  }
  assert (nr_errors == 0);
  free (buf);
}

/* Entries as versions of QEMU before each extension wrote them. */
static void
test_short_extra (void)
{
  uint8_t buf[128];
  uint32_t extra;
  struct snapshot_table t;

  for (extra = 0; extra <= 24; extra += 4) {
    memset (buf, 0, sizeof buf);
    put_be32 (buf + SNAP_VM_STATE_SIZE, 7);
    put_be32 (buf + SNAP_EXTRA_LEN, extra);
    put_be64 (buf + SNAP_FIXED_LEN, 8);
    put_be64 (buf + SNAP_FIXED_LEN + 8, 9);
    put_be64 (buf + SNAP_FIXED_LEN + 16, 10);
    assert (snapshot_table_parse ("x", buf, sizeof buf, 1, DISK_SIZE,
                                  &t) == 0);
    assert (t.entries[0].vm_state_size == (extra >= 8 ? 8 : 7));
    assert (t.entries[0].disk_size == (extra >= 16 ? 9 : DISK_SIZE));
    assert (t.entries[0].icount == (extra >= 24 ? 10 : UINT64_MAX));
    assert (t.entries[0].extra_len == 0);
    snapshot_table_free (&t);
  }
}

static void
test_lies (void)
{
  uint8_t *buf;
  size_t len, i;
  struct snapshot_table t = make_table (), u;
  int r;

  assert (snapshot_table_serialise (&t, &buf, &len) == 0);

  nr_errors = 0;
  put_be32 (buf + SNAP_EXTRA_LEN, MAX_SNAPSHOT_EXTRA_DATA + 1);
  assert (snapshot_table_parse ("disk", buf, len, 3, 0, &u) == -EINVAL);
  assert (nr_errors == 1 && strstr (last_error, "disk: ") &&
          strstr (last_error, "entry 0"));
  put_be32 (buf + SNAP_EXTRA_LEN, 24);
  assert (snapshot_table_parse ("disk", buf, len, 65537, 0, &u) == -EINVAL);
  assert (nr_errors == 2);
  assert (snapshot_table_parse ("disk", buf, len, 65536, 0, &u) == -ENODATA);
  assert (snapshot_table_parse ("disk", NULL, 0, 0, 0, &u) == 0);
  assert (u.nr == 0 && u.bytes == 0);
  snapshot_table_free (&u);

  for (i = 0; i < len; i++) {
    uint8_t saved = buf[i];

    buf[i] = 0xff;
    nr_errors = 0;
    r = snapshot_table_parse ("x", buf, len, 3, 0, &u);
    assert (r == 0 || r == -ENODATA || (r == -EINVAL && nr_errors == 1));
    if (r == 0)
      snapshot_table_free (&u);
    buf[i] = saved;
  }
  free (buf);
}

static void
test_large (void)
{
  static struct snapshot_entry many[MAX_SNAPSHOTS + 1];
  struct snapshot_table t = { .entries = many, .nr = MAX_SNAPSHOTS + 1 }, u;
  static char long_id[UINT16_MAX + 2];
  uint8_t *buf;
  size_t len, i;

  for (i = 0; i <= MAX_SNAPSHOTS; i++)
    many[i].id = many[i].name = (char *) "";
  assert (snapshot_table_serialise (&t, &buf, &len) == -EFBIG);
  t.nr = MAX_SNAPSHOTS;
  assert (snapshot_table_serialise (&t, &buf, &len) == 0);
  assert (snapshot_table_parse ("x", buf, len, t.nr, 0, &u) == 0);
  snapshot_table_free (&u);
  free (buf);

  /* 64 MiB are the limit. */
  memset (long_id, 'i', UINT16_MAX);
  for (i = 0; i < 1100; i++)
    many[i].id = long_id;
  assert (snapshot_table_serialise (&t, &buf, &len) == -EFBIG);
  long_id[UINT16_MAX] = 'i';
  t.nr = 1;
  assert (snapshot_table_serialise (&t, &buf, &len) == -EFBIG);
}

static void
test_check (void)
{
  struct header h = { .version = 3, .cluster_bits = 16, .refcount_order = 4 };
  struct snapshot_table t = make_table ();
  struct snapshot_entry e = t.entries[0];
  struct geometry g;

  geometry_init (&g, &h);
  assert (snapshot_table_check ("x", &g, &e) == 0);
  nr_errors = 0;
  e.l1_table_offset = 0x50200;
  assert (snapshot_table_check ("x", &g, &e) == -EINVAL);
  e.l1_table_offset = UINT64_C (0xffffffffffff0000);
  assert (snapshot_table_check ("x", &g, &e) == -EINVAL);
  e.l1_table_offset = 0;
  assert (snapshot_table_check ("x", &g, &e) == -EINVAL);
  e = t.entries[0];
  e.l1_size = (4 << 20) + 1;
  assert (snapshot_table_check ("x", &g, &e) == -EINVAL);
  e.l1_size = 0;
  assert (snapshot_table_check ("x", &g, &e) == -EINVAL);
  e.disk_size = UINT64_MAX;
  assert (snapshot_table_check ("x", &g, &e) == -EINVAL);
  assert (nr_errors == 6);
  e.disk_size = 0;
  assert (snapshot_table_check ("x", &g, &e) == 0);
}

/* COMMAND makes DIR/image with NR snapshots. */
static void
check_image (const char *dir, const char *command, uint32_t nr)
{
  char file[256], line[1024];
  struct snapshot_table t;
  struct header h;
  struct stat st;
  uint8_t *buf, *again;
  size_t len;
  int fd;

  snprintf (line, sizeof line, "cd %s && rm -f image && %s", dir, command);
  assert (system (line) == 0);
  snprintf (file, sizeof file, "%s/image", dir);
  fd = open (file, O_RDONLY | O_CLOEXEC);
  assert (fd >= 0 && fstat (fd, &st) == 0);
  /* QEMU lets the file end without the padding of the last entry. */
  buf = calloc (1, st.st_size + 8);
  assert (buf && pread (fd, buf, st.st_size, 0) == st.st_size);
  close (fd);
  assert (header_parse (file, buf, st.st_size, st.st_size, &h) == 0);
  assert (h.nb_snapshots == nr);
  assert (snapshot_table_parse (file, buf + h.snapshots_offset,
                                st.st_size - h.snapshots_offset,
                                h.nb_snapshots, h.size, &t) == 0);
  assert (t.nr == nr);
  assert (strcmp (t.entries[0].id, "1") == 0);
  assert (snapshot_table_find (&t, "second")->disk_size == 2 << 20);
  assert (snapshot_table_serialise (&t, &again, &len) == 0);
  assert (len == t.bytes);
  assert (memcmp (again, buf + h.snapshots_offset, len) == 0);
  snapshot_table_free (&t);
  header_free (&h);
  free (again);
  free (buf);
}

int
main (void)
{
  char dir[] = "/tmp/test-snapshot-table-XXXXXX", command[64];

  test_round_trip ();
  test_short_extra ();
  test_lies ();
  test_large ();
  test_check ();

  if (system ("qemu-img --version >/dev/null 2>&1") != 0) {
    fprintf (stderr,
             "test-snapshot-table: skipped: qemu-img is not installed\n");
    return 77;
  }
  assert (mkdtemp (dir) != NULL);
  check_image (dir, "qemu-img create -q -f qcow2 image 1M && "
               "qemu-img snapshot -c first image && "
               "qemu-img resize -q image 2M && "
               "qemu-img snapshot -c second image && "
               "qemu-img snapshot -c '' image", 3);
  check_image (dir, "qemu-img create -q -f qcow2 -o compat=0.10 image 2M && "
               "qemu-img snapshot -c second image", 1);
  snprintf (command, sizeof command, "rm -rf %s", dir);
  assert (system (command) == 0);
  return 0;
}
