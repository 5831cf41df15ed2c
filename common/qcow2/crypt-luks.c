/* SPDX-License-Identifier: BSD-3-Clause */
/* Unlocking a LUKS1 header, after the LUKS On-Disk Format Specification
 * version 1.2.  Every field is bounded before use: the header belongs to the
 * image, and the image may be hostile.
 */

#include <config.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "crypt-luks.h"
#include "ondisk.h"

#ifdef HAVE_GNUTLS

#include <gnutls/gnutls.h>
#include <gnutls/crypto.h>

#define LUKS_PHDR_LEN           592
#define LUKS_MAGIC              "LUKS\xba\xbe"
#define LUKS_VERSION            6       /* 16 */
#define LUKS_CIPHER_NAME        8       /* 32 bytes */
#define LUKS_CIPHER_MODE        40      /* 32 bytes */
#define LUKS_HASH_SPEC          72      /* 32 bytes */
#define LUKS_KEY_BYTES          108     /* 32 */
#define LUKS_MK_DIGEST          112     /* 20 bytes */
#define LUKS_MK_SALT            132     /* 32 bytes */
#define LUKS_MK_ITERATIONS      164     /* 32 */
#define LUKS_KEY_SLOTS          208
#define LUKS_NR_SLOTS           8
#define LUKS_SLOT_LEN           48
#define LUKS_SLOT_ACTIVE        0       /* 32 */
#define LUKS_SLOT_ITERATIONS    4       /* 32 */
#define LUKS_SLOT_SALT          8       /* 32 bytes */
#define LUKS_SLOT_OFFSET        40      /* 32, sectors from the header */
#define LUKS_SLOT_STRIPES       44      /* 32 */
#define LUKS_ENABLED            0x00ac71f3U

#define LUKS_SALT_LEN           32
#define LUKS_DIGEST_LEN         20
#define LUKS_STRING_LEN         32

/* What headers in the wild stay below.  Iterations cost time: 100 million
 * are about a minute.
 */
#define MAX_KEY_BYTES           64
#define MAX_STRIPES             4000
#define MAX_ITERATIONS          100000000

struct luks {
  const char *name;             /* image, for messages */
  struct backend *file;
  uint64_t off, len;
  uint8_t phdr[LUKS_PHDR_LEN];
  char cipher[LUKS_STRING_LEN + 1];
  char mode[LUKS_STRING_LEN + 1];
  gnutls_digest_algorithm_t digest;
  gnutls_mac_algorithm_t mac;
  uint32_t key_bytes;
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
  static const struct {
    const char *name;
    gnutls_digest_algorithm_t digest;
    gnutls_mac_algorithm_t mac;
  } table[] = {
    { "sha1",   GNUTLS_DIG_SHA1,   GNUTLS_MAC_SHA1 },
    { "sha224", GNUTLS_DIG_SHA224, GNUTLS_MAC_SHA224 },
    { "sha256", GNUTLS_DIG_SHA256, GNUTLS_MAC_SHA256 },
    { "sha384", GNUTLS_DIG_SHA384, GNUTLS_MAC_SHA384 },
    { "sha512", GNUTLS_DIG_SHA512, GNUTLS_MAC_SHA512 },
  };
  char hash[LUKS_STRING_LEN + 1];
  size_t i;

  get_string (hash, l->phdr + LUKS_HASH_SPEC);
  for (i = 0; i < sizeof table / sizeof table[0]; ++i) {
    if (strcmp (hash, table[i].name) == 0) {
      l->digest = table[i].digest;
      l->mac = table[i].mac;
      return 0;
    }
  }
  nbdkit_error ("%s: LUKS hash \"%s\" is not supported", l->name, hash);
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
  if (memcmp (l->phdr, LUKS_MAGIC, 6) != 0)
    return malformed (l, "magic");
  if (get_be16 (l->phdr + LUKS_VERSION) != 1)
    return malformed (l, "version (must be 1)");
  get_string (l->cipher, l->phdr + LUKS_CIPHER_NAME);
  get_string (l->mode, l->phdr + LUKS_CIPHER_MODE);
  l->key_bytes = get_be32 (l->phdr + LUKS_KEY_BYTES);
  if (l->key_bytes == 0 || l->key_bytes > MAX_KEY_BYTES)
    return malformed (l, "key-bytes");
  return parse_hash (l);
}

static int
pbkdf2 (const struct luks *l, const void *secret, size_t secret_len,
        const uint8_t *salt, uint32_t iterations, uint8_t *out, size_t len)
{
  gnutls_datum_t key = { .data = (void *) secret, .size = secret_len };
  gnutls_datum_t s = { .data = (void *) salt, .size = LUKS_SALT_LEN };

  if (iterations == 0 || iterations > MAX_ITERATIONS)
    return malformed (l, "iterations");
  return gnutls_pbkdf2 (l->mac, &key, &s, iterations, out, len) < 0
    ? -EIO : 0;
}

/* The anti-forensic diffusion: each digest-sized piece of BLOCK is replaced
 * by the hash of its number and itself.
 */
static int
diffuse (const struct luks *l, uint8_t *block)
{
  const size_t size = gnutls_hash_get_len (l->digest);
  uint8_t in[4 + 64], out[64];
  size_t pos, n;
  uint32_t i;

  for (pos = 0, i = 0; pos < l->key_bytes; pos += n, ++i) {
    n = l->key_bytes - pos < size ? l->key_bytes - pos : size;
    put_be32 (in, i);
    memcpy (in + 4, block + pos, n);
    if (gnutls_hash_fast (l->digest, in, 4 + n, out) < 0)
      return -EIO;
    memcpy (block + pos, out, n);
  }
  return 0;
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
      r = diffuse (l, key);
      if (r < 0)
        return r;
    }
  }
  return 0;
}

/* Is KEY the master key? 1, 0, or -errno. */
static int
check_key (const struct luks *l, const uint8_t *key)
{
  uint8_t digest[LUKS_DIGEST_LEN];
  int r;

  r = pbkdf2 (l, key, l->key_bytes, l->phdr + LUKS_MK_SALT,
              get_be32 (l->phdr + LUKS_MK_ITERATIONS),
              digest, sizeof digest);
  if (r < 0)
    return r;
  return gnutls_memcmp (digest, l->phdr + LUKS_MK_DIGEST,
                        sizeof digest) == 0;
}

/* Decrypt the key material of SLOT into MATERIAL, LEN bytes. */
static int
read_material (const struct luks *l, const uint8_t *slot,
               const char *passphrase, uint8_t *material, size_t len)
{
  uint64_t off = get_be32 (slot + LUKS_SLOT_OFFSET) * UINT64_C (512);
  struct crypt_cipher *c;
  uint8_t key[MAX_KEY_BYTES];
  int r;

  if (off < LUKS_PHDR_LEN || off + len > l->len)
    return malformed (l, "key-material-offset");
  r = backend_pread (l->file, material, len, l->off + off);
  if (r == -ENODATA)
    return malformed (l, "key-material-offset");
  if (r == 0)
    r = pbkdf2 (l, passphrase, strlen (passphrase), slot + LUKS_SLOT_SALT,
                get_be32 (slot + LUKS_SLOT_ITERATIONS), key, l->key_bytes);
  if (r == 0) {
    r = crypt_cipher_open (l->cipher, l->mode, key, l->key_bytes, &c);
    if (r == -ENOTSUP)
      nbdkit_error ("%s: LUKS cipher %s-%s with a key of %" PRIu32 " bits "
                    "is not supported", l->name, l->cipher, l->mode,
                    l->key_bytes * 8);
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
try_slot (const struct luks *l, const uint8_t *slot, const char *passphrase,
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
  uint8_t key[MAX_KEY_BYTES];
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

#else /* !HAVE_GNUTLS */

int
crypt_luks_unlock (const char *name, struct backend *file,
                   uint64_t off, uint64_t len, const char *passphrase,
                   struct crypt_cipher **c)
{
  (void) file;
  (void) off;
  (void) len;
  (void) passphrase;
  (void) c;
  nbdkit_error ("%s: the image is encrypted, and this plugin was built "
                "without gnutls", name);
  return -ENOTSUP;
}

#endif /* !HAVE_GNUTLS */
