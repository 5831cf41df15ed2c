/* SPDX-License-Identifier: BSD-3-Clause */
/* What must be true of an image that is left, whatever happened: see the
 * header.
 */

#include <config.h>
#undef NDEBUG

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend-mem.h"
#include "crash-check.h"
#include "crash-model.h"
#include "crash-random.h"
#include "crash-run.h"
#include "crash-verify.h"

/* Of the crashed images, every so manyth is used further, and checked by
 * qemu-img.
 */
#define REUSE_EVERY 7
#define QEMU_EVERY 499

#define NO_DATA_FILE \
  "\"data-file\":{\"driver\":\"null-co\",\"size\":\"1T\"},"

#define SECRET "--object secret,id=s,data=" CRASH_PASSPHRASE
#define KEY_SECRET "\"encrypt.key-secret\":\"s\","

/* Exit codes of qemu-img check: 0 clean (or repaired), 3 leaks only. */
void
crash_verify_qemu (const struct crash_run *run, struct backend *image,
                   bool leaks_allowed, bool dirty)
{
  static int have_qemu = -1;
  char path[128], cmd[512];
  int r;

  if (have_qemu == -1) {
    have_qemu = system ("qemu-img --version >/dev/null 2>&1") == 0;
    if (!have_qemu)
      fprintf (stderr, "note: no qemu-img here: only our own checks\n");
  }
  if (!have_qemu)
    return;
  snprintf (path, sizeof path, "crash-%s.%d.tmp", run->setup->name,
            (int) getpid ());
  assert (backend_mem_save (image, path) == 0);
  /* Backing and data file exist in memory only. */
  snprintf (cmd, sizeof cmd, "qemu-img check -q %s %s 'json:{\"driver\":"
            "\"qcow2\",\"backing\":null,%s%s\"file\":{\"driver\":\"file\","
            "\"filename\":\"%s\"}}' >/dev/null 2>%s.err",
            dirty ? "-r all" : "", run->setup->crypt ? SECRET : "",
            run->setup->crypt ? KEY_SECRET : "",
            run->data ? NO_DATA_FILE : "", path, path);
  r = system (cmd);
  if (!WIFEXITED (r) || (WEXITSTATUS (r) != 0 &&
                         !(WEXITSTATUS (r) == 3 && leaks_allowed))) {
    fprintf (stderr, "qemu-img check of %s: status %d, see %s.err\n",
             path, r, path);
    abort ();
  }
  unlink (path);
  snprintf (cmd, sizeof cmd, "%s.err", path);
  unlink (cmd);
}

bool
crash_verify_content (struct crash_run *run, struct core *core)
{
  uint8_t *snapshot;
  bool ok = true;
  size_t i;

  if (core->snapshots.nr != 0 && run->snapshots[0] == NULL)
    return false;
  if (crash_run_read (&core->io, run->buf) < 0) {
    fprintf (stderr, "the disk cannot be read\n");
    return false;
  }
  if (!crash_model_allows (run->model, run->buf))
    return false;
  for (i = 0; ok && run->snapshots[i]; ++i) {
    snapshot = crash_run_read_snapshot (core, i);
    ok = snapshot && memcmp (snapshot, run->snapshots[i],
                             core->snapshots.entries[i].disk_size) == 0;
    free (snapshot);
    if (!ok)
      fprintf (stderr, "snapshot %zu changed\n", i);
  }
  return ok;
}

bool
crash_verify_metadata (struct backend *image, uint64_t max_leaks,
                       struct crash_check *check)
{
  if (crash_check (image, false, check) < 0) {
    fprintf (stderr, "no image is left\n");
    return false;
  }
  if (check->corrupt || (!check->dirty && check->errors) ||
      check->leaks > max_leaks) {
    if (crash_check (image, true, check) < 0)
      return false;
    fprintf (stderr, "%" PRIu64 " errors, %" PRIu64 " leaks%s\n",
             check->errors, check->leaks,
             check->corrupt ? ", marked corrupt" : "");
    return false;
  }
  return true;
}

/* Life goes on: write to what is left, close it, look again. */
static bool
can_be_used (struct crash_run *run, const struct crash_image *image,
             uint64_t leaks)
{
  uint64_t seed = leaks + run->clock->now, off, len;
  struct crash_check check;
  struct core *core = crash_run_open (run, image->file, image->data, true);
  uint8_t data[5000], back[5000];
  int i, r = 0;

  if (core == NULL)
    return false;
  for (i = 0; r == 0 && i < 4; ++i) {
    len = crash_random_next (&seed) % sizeof data + 1;
    if (len > run->size)
      len = run->size;
    off = crash_random_next (&seed) % (run->size - len + 1);
    crash_random_bytes (&seed, data, len);
    r = io_pwrite (&core->io, data, len, off, 0, NULL);
    if (r == 0)
      r = io_pread (&core->io, back, len, off);
    if (r == 0 && memcmp (data, back, len) != 0)
      r = -EILSEQ;
  }
  if (r == 0)
    r = crash_run_read (&core->io, run->buf);
  if (r == 0)
    r = core_finish (core);
  core_close (core);
  if (r < 0) {
    fprintf (stderr, "it cannot be used any more: %s\n", strerror (-r));
    return false;
  }
  return crash_verify_metadata (image->file, leaks, &check) &&
    (run->setup->verify == NULL ||
     run->setup->verify (run, image->file, run->buf));
}

bool
crash_verify_image (struct crash_run *run, const struct crash_image *image,
                    uint64_t max_leaks, uint64_t nr)
{
  struct crash_check check;
  struct core *core;
  bool ok;

  if (!crash_verify_metadata (image->file, max_leaks, &check))
    return false;
  core = crash_run_open (run, image->file, image->data, false);
  if (core == NULL) {
    fprintf (stderr, "it cannot be opened\n");
    return false;
  }
  ok = crash_verify_content (run, core);
  core_close (core);
  if (ok && run->setup->verify)
    ok = run->setup->verify (run, image->file, run->buf);
  if (ok && nr % QEMU_EVERY == 0)
    crash_verify_qemu (run, image->file, max_leaks > 0, check.dirty);
  /* One that is marked dirty has to be repaired first. */
  if (ok && nr % REUSE_EVERY == 0 && !check.dirty)
    ok = can_be_used (run, image, check.leaks);
  return ok;
}
