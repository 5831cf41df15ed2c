/* SPDX-License-Identifier: BSD-3-Clause */
/* Unit test of crypt*.c: headers that we make are opened by their passphrase
 * and no other; headers that lie are refused, whichever field it is; threads
 * share a cipher.  That QEMU agrees is for
 * tests/test-qcow2-encrypt-algorithms.sh.
 */

#include <config.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "crypt-luks-format.h"
#include "crypt.h"
#include "ondisk.h"
#include "test-mem.h"

#define NR_THREADS 4

static const struct crypt_luks_options fast = {
  .cipher_alg = "aes-128", .iter_time = 1,
};

/* A file with the header at offset 512. */
static void
make (struct test_mem *m, const struct crypt_luks_options *o, size_t *len)
{
  uint8_t *header;

  CHECK (crypt_create_luks ("test", o, "secret", &header, len) == 0);
  test_mem_init (m, 512 + *len);
  CHECK (backend_pwrite (&m->b, header, *len, 512, 0) == 0);
  free (header);
}

static int
unlock (struct test_mem *m, size_t len, const char *passphrase,
        struct crypt **c)
{
  return crypt_open_luks ("test", &m->b, 512, len, passphrase, c);
}

/* What was encrypted at one place comes back there, and only there. */
static void
round_trip (struct crypt *c)
{
  uint8_t data[3 * CRYPT_SECTOR], buf[sizeof data];
  size_t i;

  for (i = 0; i < sizeof data; ++i)
    data[i] = i % CRYPT_SECTOR * 7;
  memcpy (buf, data, sizeof data);
  CHECK (crypt_encrypt (c, buf, sizeof buf, 0, 1 << 20) == 0);
  CHECK (memcmp (buf, data, 64) != 0);
  CHECK (memcmp (buf, buf + CRYPT_SECTOR, CRYPT_SECTOR) != 0);
  CHECK (crypt_decrypt (c, buf + CRYPT_SECTOR, 2 * CRYPT_SECTOR, 99,
                         (1 << 20) + CRYPT_SECTOR) == 0);
  CHECK (memcmp (buf + CRYPT_SECTOR, data + CRYPT_SECTOR,
                  2 * CRYPT_SECTOR) == 0);
}

static void
test_passphrase (void)
{
  struct test_mem m;
  struct crypt *c;
  size_t len;

  make (&m, &fast, &len);
  CHECK (unlock (&m, len, "secret", &c) == 0);
  round_trip (c);
  crypt_close (c);
  CHECK (unlock (&m, len, "Secret", &c) == -EACCES);
  CHECK (unlock (&m, len, "", &c) == -EACCES);
  CHECK (unlock (&m, len, "secret\n", &c) == -EACCES);
  test_mem_close (&m.b);
}

static void
test_lies (void)
{
  static const struct {
    size_t off;
    uint32_t value;
    int result;
  } lies[] = {
    { 0, 0, -EINVAL },
    { LUKS_CIPHER_NAME, 0x64657300, -ENOTSUP },
    { LUKS_CIPHER_MODE, 0x6f666200, -ENOTSUP },
    { LUKS_HASH_SPEC, 0x63726300, -ENOTSUP },
    { LUKS_KEY_BYTES, 0, -EINVAL },
    { LUKS_KEY_BYTES, 65, -EINVAL },
    { LUKS_KEY_BYTES, UINT32_MAX, -EINVAL },
    { LUKS_KEY_BYTES, 31, -ENOTSUP },
    { LUKS_MK_ITERATIONS, 0, -EINVAL },
    { LUKS_MK_ITERATIONS, UINT32_MAX, -EINVAL },
    { LUKS_KEY_SLOTS + LUKS_SLOT_ACTIVE, LUKS_DISABLED, -EACCES },
    { LUKS_KEY_SLOTS + LUKS_SLOT_ITERATIONS, 0, -EINVAL },
    { LUKS_KEY_SLOTS + LUKS_SLOT_ITERATIONS, UINT32_MAX, -EINVAL },
    { LUKS_KEY_SLOTS + LUKS_SLOT_OFFSET, 0, -EINVAL },
    { LUKS_KEY_SLOTS + LUKS_SLOT_OFFSET, UINT32_MAX, -EINVAL },
    { LUKS_KEY_SLOTS + LUKS_SLOT_STRIPES, 0, -EINVAL },
    { LUKS_KEY_SLOTS + LUKS_SLOT_STRIPES, UINT32_MAX, -EINVAL },
    { LUKS_KEY_SLOTS + LUKS_SLOT_STRIPES, 2000, -EACCES },
  };
  struct test_mem m;
  uint8_t old[4], p[4];
  struct crypt *c;
  size_t len, i;

  make (&m, &fast, &len);
  for (i = 0; i < sizeof lies / sizeof lies[0]; ++i) {
    uint64_t off = 512 + lies[i].off;
    int r;

    CHECK (backend_pread (&m.b, old, 4, off) == 0);
    put_be32 (p, lies[i].value);
    CHECK (backend_pwrite (&m.b, p, 4, off, 0) == 0);
    r = unlock (&m, len, "secret", &c);
    if (r != lies[i].result) {
      fprintf (stderr, "%zu = %u: %d, not %d\n", lies[i].off, lies[i].value,
               r, lies[i].result);
      abort ();
    }
    CHECK (backend_pwrite (&m.b, old, 4, off, 0) == 0);
  }
  CHECK (unlock (&m, LUKS_PHDR_LEN - 1, "secret", &c) == -EINVAL);
  CHECK (unlock (&m, LUKS_PHDR_LEN, "secret", &c) == -EINVAL);
  CHECK (unlock (&m, len, "secret", &c) == 0);
  crypt_close (c);
  test_mem_close (&m.b);
}

/* Eight slots that take long: the limit is for all together. */
static void
test_time (void)
{
  struct timespec start, end;
  uint8_t slot[LUKS_SLOT_LEN];
  struct test_mem m;
  struct crypt *c;
  size_t len;
  int i;

  make (&m, &fast, &len);
  CHECK (backend_pread (&m.b, slot, sizeof slot,
                         512 + LUKS_KEY_SLOTS) == 0);
  put_be32 (slot + LUKS_SLOT_ITERATIONS, 400000);
  for (i = 0; i < LUKS_NR_SLOTS; ++i) {
    if (i == 1)
      put_be32 (slot + LUKS_SLOT_ITERATIONS, 2000000000);
    CHECK (backend_pwrite (&m.b, slot, sizeof slot,
                            512 + LUKS_KEY_SLOTS + i * LUKS_SLOT_LEN, 0) == 0);
  }
  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &start);
  CHECK (unlock (&m, len, "other", &c) == -EINVAL);
  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &end);
  CHECK (end.tv_sec - start.tv_sec < 60);
  test_mem_close (&m.b);
}

static void *
worker (void *arg)
{
  int i;

  for (i = 0; i < 100; ++i)
    round_trip (arg);
  return NULL;
}

static void
test_threads (const char *cipher, const char *mode)
{
  const struct crypt_luks_options o = {
    .cipher_alg = cipher, .cipher_mode = mode, .iter_time = 1,
    .ivgen_alg = strcmp (mode, "cbc") == 0 ? "essiv" : NULL,
  };
  pthread_t threads[NR_THREADS];
  struct test_mem m;
  struct crypt *c;
  size_t len;
  int i;

  make (&m, &o, &len);
  CHECK (unlock (&m, len, "secret", &c) == 0);
  for (i = 0; i < NR_THREADS; ++i)
    CHECK (pthread_create (&threads[i], NULL, worker, c) == 0);
  for (i = 0; i < NR_THREADS; ++i)
    pthread_join (threads[i], NULL);
  crypt_close (c);
  test_mem_close (&m.b);
}

int
main (void)
{
  if (crypt_ciphers ()[0] == '\0') {
    fprintf (stderr, "test-crypt: skipped: no gnutls\n");
    return 77;
  }
  test_passphrase ();
  test_lies ();
  test_time ();
  test_threads ("aes-256", "xts");
  test_threads ("aes-256", "cbc");
  if (strstr (crypt_ciphers (), "serpent")) {
    test_threads ("serpent-256", "cbc");
    test_threads ("twofish-256", "xts");
  }
  return 0;
}
