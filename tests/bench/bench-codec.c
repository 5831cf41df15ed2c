/* SPDX-License-Identifier: BSD-3-Clause */
/* Speed and size of each choice of the codec, side by side with what QEMU
 * does: zlib level 6, window 4 KiB.
 *
 *   bench-codec [-c CLUSTER-SIZE] [-m MAX-BYTES] FILE...
 *
 * Of each file, at most MAX-BYTES are taken, cluster by cluster; clusters
 * that are all zero are left out, as nobody compresses them.  Times are
 * CPU times of this thread, so that a busy machine matters little.
 */

#include <config.h>

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <zlib.h>

#include "codec.h"

#define PART 4096               /* a random read */

struct packed {
  uint32_t len;                 /* 0 = stored plain */
  uint8_t *data;
};

static size_t cluster_size = 65536;
static uint8_t *data;           /* of the present file */
static size_t nr_clusters;
static struct packed *packed;

static void
fail (const char *what)
{
  perror (what);
  exit (EXIT_FAILURE);
}

static double
now (void)
{
  struct timespec ts;

  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &ts);
  return ts.tv_sec + ts.tv_nsec / 1e9;
}

static void
load (const char *name, size_t max)
{
  FILE *fp = fopen (name, "rb");

  if (fp == NULL)
    fail (name);
  free (data);
  data = malloc (max + 1);
  if (data == NULL)
    fail ("malloc");
  nr_clusters = 0;
  while ((nr_clusters + 1) * cluster_size <= max) {
    uint8_t *p = data + nr_clusters * cluster_size;

    if (fread (p, 1, cluster_size, fp) != cluster_size)
      break;
    if (p[0] != 0 || memcmp (p, p + 1, cluster_size - 1) != 0)
      nr_clusters++;
  }
  fclose (fp);
}

static void
keep (size_t i, const uint8_t *out, size_t len)
{
  free (packed[i].data);
  packed[i].data = malloc (len + 1);
  if (packed[i].data == NULL)
    fail ("malloc");
  memcpy (packed[i].data, out, len);
  packed[i].len = len;
}

static size_t
packed_size (void)
{
  size_t i, sum = 0;

  for (i = 0; i < nr_clusters; ++i)
    sum += packed[i].len ? packed[i].len : cluster_size;
  return sum;
}

/* As QEMU: returns seconds. */
static double
compress_reference (uint8_t *out)
{
  z_stream strm = { 0 };
  double start, sum = 0;
  size_t i;

  if (deflateInit2 (&strm, 6, Z_DEFLATED, -12, 9, Z_DEFAULT_STRATEGY) != Z_OK)
    fail ("deflateInit2");
  for (i = 0; i < nr_clusters; ++i) {
    int r;

    start = now ();
    deflateReset (&strm);
    strm.next_in = data + i * cluster_size;
    strm.avail_in = cluster_size;
    strm.next_out = out;
    strm.avail_out = cluster_size - 1;
    r = deflate (&strm, Z_FINISH);
    sum += now () - start;
    keep (i, out, r == Z_STREAM_END ? strm.total_out : 0);
  }
  deflateEnd (&strm);
  return sum;
}

static double
decompress_reference (uint8_t *out)
{
  z_stream strm = { 0 };
  const double start = now ();
  size_t i;

  for (i = 0; i < nr_clusters; ++i) {
    if (packed[i].len == 0)
      continue;
    strm.next_in = packed[i].data;
    strm.avail_in = packed[i].len;
    strm.next_out = out;
    strm.avail_out = cluster_size;
    if (inflateInit2 (&strm, -12) != Z_OK)
      fail ("inflateInit2");
    inflate (&strm, Z_FINISH);
    inflateEnd (&strm);
  }
  return now () - start;
}

static double
compress_codec (const struct codec_params *params, uint8_t *out)
{
  struct codec *codec = codec_thread ();
  double sum = 0;
  size_t i;

  if (codec == NULL)
    fail ("codec_thread");
  for (i = 0; i < nr_clusters; ++i) {
    const double start = now ();
    const int64_t r = codec_compress (codec, params, data + i * cluster_size,
                                      cluster_size, out, cluster_size - 1);

    sum += now () - start;
    if (r < 0)
      fail ("codec_compress");
    keep (i, out, r);
  }
  return sum;
}

/* All of each cluster, or for random reads up to the end of some PART. */
static double
decompress_codec (enum codec_type type, uint8_t *out, int parts)
{
  struct codec *codec = codec_thread ();
  const double start = now ();
  size_t i;

  for (i = 0; i < nr_clusters; ++i) {
    size_t want = cluster_size;

    if (packed[i].len == 0)
      continue;
    if (parts && cluster_size > PART)
      want = codec_want (type, cluster_size,
                         PART * (1 + i * 7 % (cluster_size / PART)));
    if (codec_decompress (codec, type, packed[i].data, packed[i].len,
                          out, cluster_size, want) != 0)
      fail ("codec_decompress");
  }
  return now () - start;
}

static size_t
nr_packed (void)
{
  size_t i, n = 0;

  for (i = 0; i < nr_clusters; ++i)
    n += packed[i].len > 0;
  return n ? n : 1;
}

static void
print (const char *name, double pack, double unpack, double part,
       double ref_pack, double ref_size)
{
  const double mb = nr_clusters * cluster_size / 1e6;
  const double unpack_mb = nr_packed () * cluster_size / 1e6;

  printf ("%-18s %8.1f %6.2fx %+8.2f%% %9.1f", name, mb / pack,
          ref_pack / pack, 100 * packed_size () / ref_size - 100,
          unpack_mb / unpack);
  if (part > 0)
    printf (" %11.1f", part / nr_packed () * 1e6);
  printf ("\n");
}

static void
bench_file (const char *name, uint8_t *out)
{
  static const struct {
    const char *name;
    struct codec_params params;
  } choices[] = {
    { "zlib 1, 4k", { CODEC_ZLIB, 1, 4096 } },
    { "zlib default, 4k", { CODEC_ZLIB, 0, 4096 } },
    { "zlib 4, 4k", { CODEC_ZLIB, 4, 4096 } },
    { "zlib 6, 4k", { CODEC_ZLIB, 6, 4096 } },
    { "zlib 9, 4k", { CODEC_ZLIB, 9, 4096 } },
    { "zlib 1, 32k", { CODEC_ZLIB, 1, 32768 } },
    { "zlib default, 32k", { CODEC_ZLIB, 0, 32768 } },
    { "zlib 6, 32k", { CODEC_ZLIB, 6, 32768 } },
    { "zstd 1", { CODEC_ZSTD, 1, 0 } },
    { "zstd default", { CODEC_ZSTD, 0, 0 } },
    { "zstd 9", { CODEC_ZSTD, 9, 0 } },
  };
  double pack, unpack, ref_pack, ref_size;
  size_t i;

  packed = calloc (nr_clusters + 1, sizeof *packed);
  if (packed == NULL)
    fail ("calloc");
  ref_pack = compress_reference (out);
  ref_size = packed_size ();
  unpack = decompress_reference (out);

  printf ("%s: %zu clusters of %zu bytes, compressed to %.1f%%\n", name,
          nr_clusters, cluster_size,
          100 * ref_size / (nr_clusters * cluster_size));
  printf ("%-18s %8s %7s %9s %9s %11s\n", "", "MB/s", "speed", "size",
          "read MB/s", "4k read us");
  print ("as qemu: zlib 6", ref_pack, unpack, 0, ref_pack, ref_size);
  for (i = 0; i < sizeof choices / sizeof choices[0]; ++i) {
    pack = compress_codec (&choices[i].params, out);
    unpack = decompress_codec (choices[i].params.type, out, 0);
    print (choices[i].name, pack, unpack,
           decompress_codec (choices[i].params.type, out, 1),
           ref_pack, ref_size);
  }
  for (i = 0; i < nr_clusters; ++i)
    free (packed[i].data);
  free (packed);
}

int
main (int argc, char *argv[])
{
  size_t max = (size_t) 64 << 20;
  uint8_t *out;
  int c;

  while ((c = getopt (argc, argv, "c:m:")) != -1) {
    if (c == 'c')
      cluster_size = strtoul (optarg, NULL, 0);
    else if (c == 'm')
      max = strtoul (optarg, NULL, 0);
    else
      exit (EXIT_FAILURE);
  }
  if (optind == argc || cluster_size < 512 || cluster_size > 2 << 20) {
    fprintf (stderr, "usage: bench-codec [-c CLUSTER-SIZE] [-m MAX-BYTES] "
             "FILE...\n");
    exit (EXIT_FAILURE);
  }
  out = malloc (cluster_size);
  if (out == NULL)
    fail ("malloc");

  printf ("deflate: %s; inflate: %s\n", codec_deflate_library (),
          codec_inflate_library ());
  for (; optind < argc; ++optind) {
    load (argv[optind], max);
    if (nr_clusters == 0)
      fprintf (stderr, "%s: less than a cluster\n", argv[optind]);
    else
      bench_file (argv[optind], out);
  }
  free (out);
  free (data);
  return 0;
}
