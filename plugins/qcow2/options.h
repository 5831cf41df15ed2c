/* SPDX-License-Identifier: BSD-3-Clause */
/* The plugin's parameters: the table, the parsed values. */

#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* What the command line said.  Strings are owned here; NULL, -1 or 0 =
 * not given.  Written before the server forks, read-only afterwards.
 */
struct options {
  char *file;                   /* absolute path */
  char *dir;                    /* absolute path */
  char *uri;
  char *snapshot;
  char *backing_format;
  char *passphrase;
  bool external_deny;
  bool lock;
  bool discard;
  bool detect_zeroes;
  int64_t metadata_cache;       /* bytes */
  int64_t cluster_cache;        /* bytes */

  bool check;
  char *repair;
  int64_t resize;               /* bytes */
  bool shrink;
  char *snapshot_create;
  char *snapshot_apply;
  char *snapshot_delete;

  bool create;
  int64_t size;                 /* bytes */
  int64_t cluster_size;         /* bytes */
  int64_t refcount_bits;
  char *compat;
  char *compression_type;
  char *preallocation;
  char *backing_file;
  char *data_file;
  bool data_file_raw;
  bool extended_l2;
  bool lazy_refcounts;
  char *encrypt;
  char *encrypt_cipher_alg;
  char *encrypt_cipher_mode;
  char *encrypt_ivgen_alg;
  char *encrypt_ivgen_hash_alg;
  char *encrypt_hash_alg;
  int64_t encrypt_iter_time;    /* milliseconds */
};

extern struct options options;

/* nbdkit's .config: 0 or -1 after a message. */
extern int options_set (const char *key, const char *value);

/* nbdkit's .config_complete: combinations. 0 or -1 after a message. */
extern int options_complete (void);

/* Is the image itself to be changed before it is served? */
extern bool options_change_image (void);

extern void options_free (void);

#define OPTIONS_HELP                                                    \
  "[file=]<FILE>               The qcow2 image to serve, or\n"          \
  "dir=<DIR>                   a directory: each image is an export, or\n" \
  "uri=<URI>                   an image on an NBD server.\n"            \
  "snapshot=<NAME|ID>          Serve this internal snapshot, read-only.\n" \
  "backing-format=qcow2|raw    Format of a backing file, where the image\n" \
  "                            does not record it.\n"                   \
  "passphrase=<SECRET>         Of an encrypted image; - asks, +FILE, -FD.\n" \
  "external=deny|allow         Refuse images that name other files.\n"  \
  "lock=<BOOL>                 Image locking as QEMU does (default: true).\n" \
  "discard=<BOOL>              Give trimmed space back (default: true).\n" \
  "detect-zeroes=<BOOL>        Store zeroes as zero clusters\n"          \
  "                            (default: false).\n"                    \
  "metadata-cache=<SIZE>       Memory for tables (default: 64M).\n"     \
  "cluster-cache=<SIZE>        Memory for decompressed clusters\n"      \
  "                            (default: 8M).\n"                       \
  "check=<BOOL>                Check the image, change nothing, and exit.\n" \
  "repair=leaks|all            Check and repair before serving.\n"     \
  "resize=<SIZE>               Give the disk this size before serving.\n" \
  "shrink=<BOOL>               Allow resize to give data up.\n"        \
  "snapshot-create=<NAME>      Make an internal snapshot before serving.\n" \
  "snapshot-apply=<NAME|ID>    Go back to an internal snapshot.\n"     \
  "snapshot-delete=<NAME|ID>   Delete an internal snapshot.\n"         \
  "create=<BOOL>               Make the image first (default: false).\n" \
  "size=<SIZE>                 Virtual size of the new image.\n"        \
  "cluster-size=<SIZE>         512 to 2M (default: 64K).\n"             \
  "refcount-bits=<N>           1, 2, 4 ... 64 (default: 16).\n"         \
  "compat=0.10|1.1             Version 2 or 3 (default: 1.1).\n"        \
  "compression-type=zlib|zstd  (default: zlib)\n"                       \
  "preallocation=off|metadata|falloc|full  (default: off)\n"            \
  "backing-file=<FILE>         Backing file of the new image.\n"        \
  "data-file=<FILE>            External data file of the new image, or\n" \
  "                            where that of an existing image is now.\n"     \
  "data-file-raw=<BOOL>        Keep the data file readable as a raw disk.\n" \
  "extended-l2=<BOOL>          Allocate in 1/32 of a cluster.\n"        \
  "lazy-refcounts=<BOOL>       Postpone refcount updates.\n"            \
  "encrypt=luks                Encrypt the new image with passphrase=.\n" \
  "encrypt-cipher-alg=<ALG>    aes-256 (default), serpent-256 ...\n"    \
  "encrypt-cipher-mode=<MODE>  xts (default), cbc, ctr, ecb.\n"         \
  "encrypt-ivgen-alg=<ALG>     plain64 (default), plain, essiv.\n"      \
  "encrypt-ivgen-hash-alg=<HASH>  Of essiv (default: sha256).\n"        \
  "encrypt-hash-alg=<HASH>     Of the header (default: sha256).\n"      \
  "encrypt-iter-time=<MS>      Time to unlock the image (default: 2000)."

#endif /* OPTIONS_H */
