/* SPDX-License-Identifier: BSD-3-Clause */
/* Which IV a sector gets, over crypt-cipher.c. */

#include <config.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <nbdkit-plugin.h>

#include "crypt-cipher.h"
#include "crypt-luks.h"
#include "crypt.h"

const char *
crypt_ciphers (void)
{
#if defined HAVE_GNUTLS && defined HAVE_NETTLE
  return "aes,serpent,twofish,cast5";
#elif defined HAVE_GNUTLS
  return "aes";
#else
  return "";
#endif
}

#ifdef HAVE_GNUTLS

struct crypt {
  struct crypt_cipher *cipher;
  bool by_guest_offset;         /* legacy AES */
};

static int
wrap (struct crypt_cipher *cipher, bool by_guest_offset, struct crypt **ret)
{
  struct crypt *c;

  c = malloc (sizeof *c);
  if (c == NULL) {
    crypt_cipher_close (cipher);
    return -ENOMEM;
  }
  c->cipher = cipher;
  c->by_guest_offset = by_guest_offset;
  *ret = c;
  return 0;
}

int
crypt_open_luks (const char *name, struct backend *file, uint64_t off,
                 uint64_t len, const char *passphrase, struct crypt **c)
{
  struct crypt_cipher *cipher;
  int r;

  r = crypt_luks_unlock (name, file, off, len, passphrase, &cipher);
  return r < 0 ? r : wrap (cipher, false, c);
}

int
crypt_create_luks (const char *name, const struct crypt_luks_options *o,
                   const char *passphrase, uint8_t **header, size_t *len)
{
  return crypt_luks_create (name, o, passphrase, header, len);
}

int
crypt_open_aes (const char *name, const char *passphrase, struct crypt **c)
{
  struct crypt_cipher *cipher;
  uint8_t key[16] = { 0 };
  size_t len = strlen (passphrase);
  int r;

  memcpy (key, passphrase, len < sizeof key ? len : sizeof key);
  r = crypt_cipher_open ("aes", "cbc-plain64", key, sizeof key, &cipher);
  if (r < 0)
    nbdkit_error ("%s: cannot use AES: %s", name, strerror (-r));
  return r < 0 ? r : wrap (cipher, true, c);
}

void
crypt_close (struct crypt *c)
{
  if (c)
    crypt_cipher_close (c->cipher);
  free (c);
}

static int
run (struct crypt *c, bool encrypt, void *buf, size_t len,
     uint64_t guest_off, uint64_t host_off)
{
  uint64_t off = c->by_guest_offset ? guest_off : host_off;

  return crypt_cipher_run (c->cipher, encrypt, buf, len, off / CRYPT_SECTOR);
}

int
crypt_encrypt (struct crypt *c, void *buf, size_t len,
               uint64_t guest_off, uint64_t host_off)
{
  return run (c, true, buf, len, guest_off, host_off);
}

int
crypt_decrypt (struct crypt *c, void *buf, size_t len,
               uint64_t guest_off, uint64_t host_off)
{
  return run (c, false, buf, len, guest_off, host_off);
}

#else /* !HAVE_GNUTLS */

static int
no_gnutls (const char *name)
{
  nbdkit_error ("%s: encryption is not supported: this plugin was built "
                "without gnutls", name);
  return -ENOTSUP;
}

int
crypt_open_luks (const char *name, struct backend *file, uint64_t off,
                 uint64_t len, const char *passphrase, struct crypt **c)
{
  (void) file;
  (void) off;
  (void) len;
  (void) passphrase;
  (void) c;
  return no_gnutls (name);
}

int
crypt_create_luks (const char *name, const struct crypt_luks_options *o,
                   const char *passphrase, uint8_t **header, size_t *len)
{
  (void) o;
  (void) passphrase;
  (void) header;
  (void) len;
  return no_gnutls (name);
}

int
crypt_open_aes (const char *name, const char *passphrase, struct crypt **c)
{
  (void) passphrase;
  (void) c;
  return no_gnutls (name);
}

void
crypt_close (struct crypt *c)
{
  (void) c;
}

int
crypt_encrypt (struct crypt *c, void *buf, size_t len,
               uint64_t guest_off, uint64_t host_off)
{
  (void) c;
  (void) buf;
  (void) len;
  (void) guest_off;
  (void) host_off;
  return -ENOTSUP;
}

int
crypt_decrypt (struct crypt *c, void *buf, size_t len,
               uint64_t guest_off, uint64_t host_off)
{
  return crypt_encrypt (c, buf, len, guest_off, host_off);
}

#endif /* !HAVE_GNUTLS */
