/* SPDX-License-Identifier: BSD-3-Clause */
/* Unlocking a LUKS1 header, after the LUKS On-Disk Format Specification
 * version 1.2.  Every field is bounded before use: the header belongs to the
 * image, and the image may be hostile.  That includes the time: a header says
 * itself how long opening it takes.  No locks.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "crypt-luks-format.h"
#include "crypt-luks.h"
#include "ondisk.h"

#ifdef HAVE_GNUTLS

#include <gnutls/gnutls.h>

/* What headers in the wild stay below. */
#define MAX_STRIPES LUKS_STRIPES

/* CPU time for all key slots together.  Headers are made to take about two
 * seconds a slot, on the machine and by the program that make them.
 */
#define MAX_SECONDS 60

/* Rounds of the hash that take no time worth measuring. */
#define FREE_ROUNDS 500000

struct luks {
  const char *name;             /* image, for messages */
  struct backend *file;
  uint64_t off, len;
  uint8_t phdr[LUKS_PHDR_LEN];
  char cipher[LUKS_STRING_LEN + 1];
  char mode[LUKS_STRING_LEN + 1];
  const struct crypt_hash *hash;
  uint32_t key_bytes;
  uint64_t rounds;              /* of the hash, so far */
  double rate;                  /* rounds a second; 0 = not measured */
};

static int
malformed (const struct luks *l, const char *field)
{
  nbdkit_error ("%s: LUKS header at offset %" PRIu64 ": the field %s is "
                "malformed", l->name, l->off, field);
  return -EINVAL;
}

static void
get_string (char *dest, const uint8_t *src)
{
  memcpy (dest, src, LUKS_STRING_LEN);
  dest[LUKS_STRING_LEN] = '\0';
}

static int
parse_hash (struct luks *l)
{
  char hash[LUKS_STRING_LEN + 1];

  get_string (hash, l->phdr + LUKS_HASH_SPEC);
  l->hash = crypt_hash_find (hash);
  if (l->hash)
    return 0;
  nbdkit_error ("%s: LUKS hash \"%s\" is not supported" CRYPT_CIPHER_HINT,
                l->name, hash);
  return -ENOTSUP;
}

static int
read_phdr (struct luks *l)
{
  int r;

  if (l->len < LUKS_PHDR_LEN)
    return malformed (l, "length");
  r = backend_pread (l->file, l->phdr, LUKS_PHDR_LEN, l->off);
  if (r == -ENODATA)
    return malformed (l, "offset (beyond the end of the file)");
  if (r < 0)
    return r;
  if (memcmp (l->phdr, LUKS_MAGIC, LUKS_MAGIC_LEN) != 0)
    return malformed (l, "magic");
  if (get_be16 (l->phdr + LUKS_VERSION) != 1)
    return malformed (l, "version (must be 1)");
  get_string (l->cipher, l->phdr + LUKS_CIPHER_NAME);
  get_string (l->mode, l->phdr + LUKS_CIPHER_MODE);
  l->key_bytes = get_be32 (l->phdr + LUKS_KEY_BYTES);
  if (l->key_bytes == 0 || l->key_bytes > LUKS_MAX_KEY)
    return malformed (l, "key-bytes");
  return parse_hash (l);
}

/* Is there time for so many iterations, for LEN bytes of key? */
static int
check_time (struct luks *l, uint32_t iterations, size_t len)
{
  size_t digest = crypt_hash_len (l->hash);
  int r;

  l->rounds += (uint64_t) iterations * ((len + digest - 1) / digest);
  if (l->rounds <= FREE_ROUNDS)
    return 0;
  if (l->rate == 0) {
    r = crypt_hash_rate (l->hash, digest, &l->rate);
    if (r < 0)
      return r;
  }
  if (l->rounds <= l->rate * MAX_SECONDS)
    return 0;
  nbdkit_error ("%s: LUKS header at offset %" PRIu64 ": a key slot asks for "
                "%" PRIu32 " iterations: to try it would take about %.0f "
                "seconds, and the limit is %d for all slots together",
                l->name, l->off, iterations, l->rounds / l->rate,
                MAX_SECONDS);
  return -EINVAL;
}

static int
pbkdf2 (struct luks *l, const struct crypt_hash_secret *secret,
        uint32_t iterations, uint8_t *out, size_t len)
{
  int r;

  if (iterations == 0)
    return malformed (l, "iterations");
  r = check_time (l, iterations, len);
  if (r < 0)
    return r;
  return crypt_hash_pbkdf2 (l->hash, secret, iterations, out, len);
}

int
crypt_luks_diffuse (const struct crypt_hash *hash, uint8_t *block, size_t len)
{
  const size_t size = crypt_hash_len (hash);
  uint8_t in[4 + CRYPT_HASH_MAX], out[CRYPT_HASH_MAX];
  size_t pos, n;
  uint32_t i;
  int r = 0;

  for (pos = 0, i = 0; r == 0 && pos < len; pos += n, ++i) {
    n = len - pos < size ? len - pos : size;
    put_be32 (in, i);
    memcpy (in + 4, block + pos, n);
    r = crypt_hash_digest (hash, in, 4 + n, out);
    memcpy (block + pos, out, n);
  }
  gnutls_memset (in, 0, sizeof in);
  gnutls_memset (out, 0, sizeof out);
  return r;
}

/* Merge STRIPES stripes of MATERIAL into KEY. */
static int
merge (const struct luks *l, const uint8_t *material, uint32_t stripes,
       uint8_t *key)
{
  uint32_t i, j;
  int r;

  memset (key, 0, l->key_bytes);
  for (i = 0; i < stripes; ++i) {
    for (j = 0; j < l->key_bytes; ++j)
      key[j] ^= material[(size_t) i * l->key_bytes + j];
    if (i + 1 < stripes) {
      r = crypt_luks_diffuse (l->hash, key, l->key_bytes);
      if (r < 0)
        return r;
    }
  }
  return 0;
}

/* Is KEY the master key? 1, 0, or -errno. */
static int
check_key (struct luks *l, const uint8_t *key)
{
  const struct crypt_hash_secret secret = {
    .data = key, .len = l->key_bytes,
    .salt = l->phdr + LUKS_MK_SALT, .salt_len = LUKS_SALT_LEN,
  };
  uint8_t digest[LUKS_DIGEST_LEN];
  int r;

  r = pbkdf2 (l, &secret, get_be32 (l->phdr + LUKS_MK_ITERATIONS),
              digest, sizeof digest);
  if (r < 0)
    return r;
  return gnutls_memcmp (digest, l->phdr + LUKS_MK_DIGEST,
                        sizeof digest) == 0;
}

/* Decrypt the key material of SLOT into MATERIAL, LEN bytes. */
static int
read_material (struct luks *l, const uint8_t *slot,
               const char *passphrase, uint8_t *material, size_t len)
{
  const struct crypt_hash_secret secret = {
    .data = passphrase, .len = strlen (passphrase),
    .salt = slot + LUKS_SLOT_SALT, .salt_len = LUKS_SALT_LEN,
  };
  uint64_t off = (uint64_t) get_be32 (slot + LUKS_SLOT_OFFSET) * LUKS_SECTOR;
  struct crypt_cipher *c;
  uint8_t key[LUKS_MAX_KEY];
  int r;

  if (off < LUKS_PHDR_LEN || off + len > l->len)
    return malformed (l, "key-material-offset");
  r = backend_pread (l->file, material, len, l->off + off);
  if (r == -ENODATA)
    return malformed (l, "key-material-offset");
  if (r == 0)
    r = pbkdf2 (l, &secret, get_be32 (slot + LUKS_SLOT_ITERATIONS),
                key, l->key_bytes);
  if (r == 0) {
    r = crypt_cipher_open (l->cipher, l->mode, key, l->key_bytes, &c);
    if (r == -ENOTSUP)
      nbdkit_error ("%s: LUKS cipher %s-%s with a key of %" PRIu32 " bits "
                    "is not supported" CRYPT_CIPHER_HINT, l->name, l->cipher,
                    l->mode, l->key_bytes * 8);
  }
  if (r == 0) {
    r = crypt_cipher_run (c, false, material, len, 0);
    crypt_cipher_close (c);
  }
  gnutls_memset (key, 0, sizeof key);
  return r;
}

/* Try one key slot: 1 = KEY is the master key, 0 = it does not match. */
static int
try_slot (struct luks *l, const uint8_t *slot, const char *passphrase,
          uint8_t *key)
{
  uint32_t stripes = get_be32 (slot + LUKS_SLOT_STRIPES);
  uint8_t *material;
  size_t len;
  int r;

  if (get_be32 (slot + LUKS_SLOT_ACTIVE) != LUKS_ENABLED)
    return 0;
  if (stripes == 0 || stripes > MAX_STRIPES)
    return malformed (l, "stripes");
  len = ((size_t) stripes * l->key_bytes + 511) & ~(size_t) 511;
  material = malloc (len);
  if (material == NULL)
    return -ENOMEM;
  r = read_material (l, slot, passphrase, material, len);
  if (r == 0)
    r = merge (l, material, stripes, key);
  if (r == 0)
    r = check_key (l, key);
  gnutls_memset (material, 0, len);
  free (material);
  return r;
}

int
crypt_luks_unlock (const char *name, struct backend *file,
                   uint64_t off, uint64_t len, const char *passphrase,
                   struct crypt_cipher **c)
{
  struct luks l = { .name = name, .file = file, .off = off, .len = len };
  uint8_t key[LUKS_MAX_KEY];
  int i, r;

  r = read_phdr (&l);
  if (r < 0)
    return r;
  for (i = 0; r == 0 && i < LUKS_NR_SLOTS; ++i)
    r = try_slot (&l, l.phdr + LUKS_KEY_SLOTS + i * LUKS_SLOT_LEN,
                  passphrase, key);
  if (r == 0) {
    nbdkit_error ("%s: the passphrase does not open any key slot", name);
    r = -EACCES;
  }
  if (r > 0)
    r = crypt_cipher_open (l.cipher, l.mode, key, l.key_bytes, c);
  gnutls_memset (key, 0, sizeof key);
  return r;
}

#endif /* HAVE_GNUTLS */
