/* SPDX-License-Identifier: BSD-3-Clause */
/* A new LUKS1 header, laid out as QEMU's: the header, from 4096 on the key
 * material of eight slots, each aligned to 4096, of which the first is used.
 * Everything is made in memory; the caller writes it.  No locks.
 *
 * Salts and key are random, so encrypted images are the one kind that does
 * not come out the same each time.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "crypt-luks-format.h"
#include "crypt-luks.h"
#include "ondisk.h"

#ifdef HAVE_GNUTLS

#include <gnutls/gnutls.h>
#include <gnutls/crypto.h>

#define ALIGNMENT 4096          /* of each slot's key material */
#define DEFAULT_ITER_TIME 2000  /* milliseconds */
#define MIN_ITERATIONS 1000

/* The digest of the master key: so much less than a slot. */
#define DIGEST_DIVISOR 8

struct maker {
  const char *name;             /* image, for messages */
  const struct crypt_luks_options *o;
  const char *cipher;           /* "aes" */
  char mode[LUKS_STRING_LEN];   /* "xts-plain64" */
  const char *hash_name;
  const struct crypt_hash *hash;
  size_t key_len;               /* bytes */
  uint64_t slot_len;            /* bytes of a slot's key material */
  uint8_t *header;
  uint8_t key[LUKS_MAX_KEY];
};

static int
set_cipher (struct maker *m)
{
  static const struct {
    const char *alg, *cipher;
    size_t key_len;
  } table[] = {
    { "aes-128",     "aes",     16 },
    { "aes-192",     "aes",     24 },
    { "aes-256",     "aes",     32 },
    { "cast5-128",   "cast5",   16 },
    { "serpent-128", "serpent", 16 },
    { "serpent-192", "serpent", 24 },
    { "serpent-256", "serpent", 32 },
    { "twofish-128", "twofish", 16 },
    { "twofish-192", "twofish", 24 },
    { "twofish-256", "twofish", 32 },
  };
  const char *alg = m->o->cipher_alg ? m->o->cipher_alg : "aes-256";
  const char *mode = m->o->cipher_mode ? m->o->cipher_mode : "xts";
  const char *iv = m->o->ivgen_alg ? m->o->ivgen_alg : "plain64";
  const char *iv_hash = m->o->ivgen_hash_alg ? m->o->ivgen_hash_alg : "sha256";
  const bool essiv = strcmp (iv, "essiv") == 0;
  size_t i;
  int n;

  for (i = 0; i < sizeof table / sizeof table[0]; ++i)
    if (strcmp (table[i].alg, alg) == 0)
      break;
  if (i == sizeof table / sizeof table[0]) {
    nbdkit_error ("%s: cannot create: there is no cipher \"%s\"",
                  m->name, alg);
    return -EINVAL;
  }
  m->cipher = table[i].cipher;
  m->key_len = table[i].key_len * (strcmp (mode, "xts") == 0 ? 2 : 1);
  n = snprintf (m->mode, sizeof m->mode, "%s-%s%s%s", mode, iv,
                essiv ? ":" : "", essiv ? iv_hash : "");
  if (n < 0 || (size_t) n >= sizeof m->mode) {
    nbdkit_error ("%s: cannot create: there is no encryption \"%s-%s\"",
                  m->name, mode, iv);
    return -EINVAL;
  }
  return 0;
}

/* Everything that can be wrong is found here. */
static int
check_options (struct maker *m)
{
  struct crypt_cipher *c;
  int r;

  r = set_cipher (m);
  if (r < 0)
    return r;
  m->hash_name = m->o->hash_alg ? m->o->hash_alg : "sha256";
  m->hash = crypt_hash_find (m->hash_name);
  if (m->hash == NULL) {
    nbdkit_error ("%s: cannot create: the hash \"%s\" is not supported"
                  CRYPT_CIPHER_HINT, m->name, m->hash_name);
    return -EINVAL;
  }
  if (gnutls_rnd (GNUTLS_RND_KEY, m->key, m->key_len) < 0)
    return -EIO;
  r = crypt_cipher_open (m->cipher, m->mode, m->key, m->key_len, &c);
  if (r == -ENOTSUP) {
    nbdkit_error ("%s: cannot create: the encryption %s-%s with a key of %zu "
                  "bits is not supported" CRYPT_CIPHER_HINT, m->name,
                  m->cipher, m->mode, m->key_len * 8);
    return -EINVAL;
  }
  if (r < 0)
    return r;
  crypt_cipher_close (c);
  if (m->key_len * LUKS_STRIPES % LUKS_SECTOR != 0) {
    nbdkit_error ("%s: cannot create: QEMU cannot open images encrypted by "
                  "%s-%s with a key of %zu bits", m->name, m->cipher, m->mode,
                  m->key_len * 8);
    return -EINVAL;
  }
  return 0;
}

/* Iterations for LEN bytes of key that take the wanted time, divided by
 * DIVISOR.
 */
static int
count_iterations (struct maker *m, size_t len, unsigned divisor, uint32_t *n)
{
  double ms = m->o->iter_time ? m->o->iter_time : DEFAULT_ITER_TIME;
  double rate, count;
  int r;

  r = crypt_hash_rate (m->hash, len, &rate);
  if (r < 0)
    return r;
  count = rate * ms / 1000 / divisor;
  if (count < MIN_ITERATIONS)
    count = MIN_ITERATIONS;
  *n = count > UINT32_MAX ? UINT32_MAX : (uint32_t) count;
  return 0;
}

/* Split KEY, so that each bit of STRIPES pieces is needed to get it back. */
static int
split (const struct maker *m, uint8_t *material)
{
  const size_t len = m->key_len;
  uint8_t block[LUKS_MAX_KEY] = { 0 };
  uint8_t *last = material + (LUKS_STRIPES - 1) * len;
  size_t i, j;
  int r = 0;

  if (gnutls_rnd (GNUTLS_RND_RANDOM, material, last - material) < 0)
    return -EIO;
  for (i = 0; r == 0 && i < LUKS_STRIPES - 1; ++i) {
    for (j = 0; j < len; ++j)
      block[j] ^= material[i * len + j];
    r = crypt_luks_diffuse (m->hash, block, len);
  }
  for (j = 0; j < len; ++j)
    last[j] = block[j] ^ m->key[j];
  gnutls_memset (block, 0, sizeof block);
  return r;
}

/* The first slot: the master key, under a key from the passphrase. */
static int
fill_slot (struct maker *m, const char *passphrase)
{
  uint8_t *slot = m->header + LUKS_KEY_SLOTS;
  uint8_t *material = m->header + ALIGNMENT;
  struct crypt_hash_secret secret = {
    .data = passphrase, .len = strlen (passphrase),
    .salt = slot + LUKS_SLOT_SALT, .salt_len = LUKS_SALT_LEN,
  };
  uint8_t key[LUKS_MAX_KEY];
  struct crypt_cipher *c;
  uint32_t iterations;
  int r;

  r = count_iterations (m, m->key_len, 1, &iterations);
  if (r < 0)
    return r;
  if (gnutls_rnd (GNUTLS_RND_NONCE, slot + LUKS_SLOT_SALT, LUKS_SALT_LEN) < 0)
    return -EIO;
  put_be32 (slot + LUKS_SLOT_ACTIVE, LUKS_ENABLED);
  put_be32 (slot + LUKS_SLOT_ITERATIONS, iterations);
  r = crypt_hash_pbkdf2 (m->hash, &secret, iterations, key, m->key_len);
  if (r == 0)
    r = split (m, material);
  if (r == 0)
    r = crypt_cipher_open (m->cipher, m->mode, key, m->key_len, &c);
  gnutls_memset (key, 0, sizeof key);
  if (r < 0)
    return r;
  r = crypt_cipher_run (c, true, material, m->key_len * LUKS_STRIPES, 0);
  crypt_cipher_close (c);
  return r;
}

/* By which one sees whether a key is the master key. */
static int
fill_digest (struct maker *m)
{
  uint8_t *salt = m->header + LUKS_MK_SALT;
  const struct crypt_hash_secret secret = {
    .data = m->key, .len = m->key_len,
    .salt = salt, .salt_len = LUKS_SALT_LEN,
  };
  uint32_t iterations;
  int r;

  r = count_iterations (m, LUKS_DIGEST_LEN, DIGEST_DIVISOR, &iterations);
  if (r < 0)
    return r;
  if (gnutls_rnd (GNUTLS_RND_NONCE, salt, LUKS_SALT_LEN) < 0)
    return -EIO;
  put_be32 (m->header + LUKS_MK_ITERATIONS, iterations);
  return crypt_hash_pbkdf2 (m->hash, &secret, iterations,
                            m->header + LUKS_MK_DIGEST, LUKS_DIGEST_LEN);
}

/* A random (version 4) UUID. */
static int
fill_uuid (struct maker *m)
{
  uint8_t u[16];
  char *p = (char *) m->header + LUKS_UUID;
  size_t i;

  if (gnutls_rnd (GNUTLS_RND_NONCE, u, sizeof u) < 0)
    return -EIO;
  u[6] = (u[6] & 0x0f) | 0x40;
  u[8] = (u[8] & 0x3f) | 0x80;
  for (i = 0; i < sizeof u; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10)
      *p++ = '-';
    p += sprintf (p, "%02x", u[i]);
  }
  return 0;
}

static void
fill_rest (struct maker *m)
{
  uint8_t *h = m->header, *slot;
  unsigned i;

  memcpy (h, LUKS_MAGIC, LUKS_MAGIC_LEN);
  put_be16 (h + LUKS_VERSION, 1);
  memcpy (h + LUKS_CIPHER_NAME, m->cipher, strlen (m->cipher));
  memcpy (h + LUKS_CIPHER_MODE, m->mode, strlen (m->mode));
  memcpy (h + LUKS_HASH_SPEC, m->hash_name, strlen (m->hash_name));
  put_be32 (h + LUKS_PAYLOAD_OFFSET,
            (ALIGNMENT + LUKS_NR_SLOTS * m->slot_len) / LUKS_SECTOR);
  put_be32 (h + LUKS_KEY_BYTES, m->key_len);
  for (i = 0; i < LUKS_NR_SLOTS; ++i) {
    slot = h + LUKS_KEY_SLOTS + i * LUKS_SLOT_LEN;
    if (i > 0)
      put_be32 (slot + LUKS_SLOT_ACTIVE, LUKS_DISABLED);
    put_be32 (slot + LUKS_SLOT_OFFSET,
              (ALIGNMENT + i * m->slot_len) / LUKS_SECTOR);
    put_be32 (slot + LUKS_SLOT_STRIPES, LUKS_STRIPES);
  }
}

int
crypt_luks_create (const char *name, const struct crypt_luks_options *o,
                   const char *passphrase, uint8_t **header, size_t *len)
{
  struct maker m = { .name = name, .o = o };
  int r;

  r = check_options (&m);
  if (r == -EINVAL)             /* with a message of its own */
    return r;
  m.slot_len = (m.key_len * LUKS_STRIPES + ALIGNMENT - 1) / ALIGNMENT *
    ALIGNMENT;
  *len = ALIGNMENT + LUKS_NR_SLOTS * m.slot_len;
  m.header = r == 0 ? calloc (1, *len) : NULL;
  if (r == 0 && m.header == NULL)
    r = -ENOMEM;
  if (r == 0) {
    fill_rest (&m);
    r = fill_uuid (&m);
  }
  if (r == 0)
    r = fill_slot (&m, passphrase);
  if (r == 0)
    r = fill_digest (&m);
  gnutls_memset (m.key, 0, sizeof m.key);
  if (r < 0) {
    nbdkit_error ("%s: cannot create: making the LUKS header failed: %s",
                  name, strerror (-r));
    free (m.header);
    return r;
  }
  *header = m.header;
  return 0;
}

#endif /* HAVE_GNUTLS */
