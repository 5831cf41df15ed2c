/* SPDX-License-Identifier: BSD-3-Clause */
/* Power loss while an encrypted image is written: what the host has as zeroes
 * is no zeroes to the guest, so head and tail of each new cluster are written
 * and are stable before the entry (I2).
 */

#include <config.h>

#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "crash-power.h"
#include "crash-run.h"
#include "ondisk.h"

static void
workload (struct crash_run *run)
{
  const uint64_t cluster = crash_run_cluster_size (run);
  uint64_t off, len;
  int i;

  for (i = 0; i < 25; ++i) {
    switch (crash_run_random (run, 8)) {
    case 0:
      crash_run_flush (run);
      break;
    case 1:
      crash_run_range (run, 1, 2 * cluster, &off, &len);
      crash_run_zero (run, off, len,
                      crash_run_random (run, 2) ? IO_MAY_TRIM : 0);
      break;
    case 2:
      crash_run_range (run, 512, 2 * cluster, &off, &len);
      crash_run_write (run, off, len, IO_FUA);
      break;
    case 3:
      crash_run_range (run, 512, 2 * cluster, &off, &len);
      crash_run_trim (run, off, len);
      break;
    default:
      crash_run_range (run, 512, cluster, &off, &len);
      crash_run_write (run, off, len, 0);
      break;
    }
  }
}

static struct crypt *
unlock (struct backend *image)
{
  const struct core_options opts = { .metadata_cache = 1 << 20 };
  struct crypt *crypt;
  struct core *core;

  assert (core_open (image, &opts, &core) == 0);
  assert (crypt_open_luks ("image", image, core->header.crypto_offset,
                           core->header.crypto_length, CRASH_PASSPHRASE,
                           &crypt) == 0);
  core_close (core);
  return crypt;
}

static void
test (const char *name, struct create_options *o, bool backing)
{
  const struct crypt_luks_options luks = {
    .cipher_alg = "aes-128", .iter_time = 1,
  };
  struct crash_setup setup = {
    .name = name, .workload = workload, .discard = true,
  };
  uint8_t *header;

  assert (crypt_create_luks (name, &luks, CRASH_PASSPHRASE, &header,
                             &o->crypto_len) == 0);
  o->crypto_header = header;
  if (backing) {
    o->backing_file = o->backing_format = "raw";
    setup.raw_backing = crash_run_raw (o->size * 2 / 3 - 100, 7);
  }
  if (o->data_file)
    setup.initial = crash_run_create_pair (o, &setup.initial_data);
  else
    setup.initial = crash_run_create (o);
  setup.crypt = unlock (setup.initial);
  crash_power (&setup);
  crypt_close (setup.crypt);
  backend_close (setup.initial);
  backend_close (setup.initial_data);
  backend_close (setup.raw_backing);
  o->backing_file = o->backing_format = NULL;
  free (header);
}

int
main (void)
{
  struct create_options o;

  if (crypt_ciphers ()[0] == '\0') {
    fprintf (stderr, "test-crash-I2-encrypted: skipped: no gnutls\n");
    return 77;
  }
  create_defaults (&o);
  o.size = 300 * 1024;
  o.cluster_size = 4096;
  test ("encrypted-4k", &o, false);
  test ("encrypted-4k-backing", &o, true);
  o.data_file = "data";
  test ("encrypted-4k-data-file", &o, false);
  o.data_file = NULL;
  o.size = 512 * 1024;
  o.cluster_size = 65536;
  o.extended_l2 = true;
  test ("encrypted-64k-subclusters", &o, true);
  return 0;
}
