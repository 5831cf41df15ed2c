/* SPDX-License-Identifier: BSD-3-Clause */
/* A load generator for NBD servers on a Unix socket.
 *
 * It speaks the protocol itself, with one thread a connection, so that it
 * costs about a microsecond a request: on a machine of few cores a
 * heavier client measures itself.  `bench' runs it; it is also useful
 * alone, see `nbdload --help'.
 */

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "conn.h"

static void
usage (FILE *fp)
{
  fprintf (fp,
"usage: nbdload --socket PATH [options]\n"
"  --export NAME        export name (default: empty)\n"
"  --op OP              read, write, randread, randwrite, write-flush,\n"
"                       randwrite-flush, fua, randfua, zero, trim,\n"
"                       blockstatus (default: read)\n"
"  --bs SIZE            bytes of a request (default: 4k)\n"
"  --connections N      (default: 1)\n"
"  --depth N            requests in flight on each connection (default: 1)\n"
"  --offset SIZE        first byte used (default: 0)\n"
"  --size SIZE          bytes used (default: all)\n"
"  --align-offset SIZE  added to the offset of each block\n"
"  --requests N         stop after N requests\n"
"  --seconds S          stop after S seconds\n"
"                       (default: each block of the range once)\n"
"  --flush-every N      a flush after every N requests\n"
"  --no-hole            zero: space stays allocated\n"
"  --fast               zero: only if it is fast\n"
"  --fill BYTE          write this byte (default: random bytes)\n"
"  --verify             write or check a pattern that belongs to the offset\n"
"  --seed N             of the random order and of the pattern\n"
"  --wait MS            time for the server to appear (default: 0)\n"
"  --json               print JSON\n"
"SIZE may end in k, M, G or T.  Random orders visit each block once before\n"
"any again.  Exit status 1: a request failed or data differ.\n");
}

static uint64_t
parse_size (const char *opt, const char *s)
{
  char *end;
  uint64_t v;
  unsigned shift = 0;

  errno = 0;
  v = strtoull (s, &end, 0);
  switch (*end) {
  case 'k': case 'K': shift = 10; break;
  case 'M': shift = 20; break;
  case 'G': shift = 30; break;
  case 'T': shift = 40; break;
  default: break;
  }
  if (shift)
    end++;
  if (errno || end == s || *end || (shift && v > UINT64_MAX >> shift)) {
    fprintf (stderr, "nbdload: --%s: not a number: %s\n", opt, s);
    exit (2);
  }
  return v << shift;
}

static void
parse_op (struct job *job, const char *op)
{
  static const struct {
    const char *name;
    uint16_t cmd, flags;
    bool random, flush_each;
  } ops[] = {
    { "read", WIRE_CMD_READ, 0, false, false },
    { "randread", WIRE_CMD_READ, 0, true, false },
    { "write", WIRE_CMD_WRITE, 0, false, false },
    { "randwrite", WIRE_CMD_WRITE, 0, true, false },
    { "write-flush", WIRE_CMD_WRITE, 0, false, true },
    { "randwrite-flush", WIRE_CMD_WRITE, 0, true, true },
    { "fua", WIRE_CMD_WRITE, WIRE_FLAG_FUA, false, false },
    { "randfua", WIRE_CMD_WRITE, WIRE_FLAG_FUA, true, false },
    { "zero", WIRE_CMD_ZERO, 0, false, false },
    { "trim", WIRE_CMD_TRIM, 0, false, false },
    { "blockstatus", WIRE_CMD_BLOCK_STATUS, 0, false, false },
  };

  for (size_t i = 0; i < sizeof ops / sizeof ops[0]; ++i)
    if (strcmp (op, ops[i].name) == 0) {
      job->cmd = ops[i].cmd;
      job->flags |= ops[i].flags;
      job->random = ops[i].random;
      job->flush_each = ops[i].flush_each;
      return;
    }
  fprintf (stderr, "nbdload: --op: unknown: %s\n", op);
  exit (2);
}

enum {
  OPT_SOCKET = 256, OPT_EXPORT, OPT_OP, OPT_BS, OPT_CONNECTIONS, OPT_DEPTH,
  OPT_OFFSET, OPT_SIZE, OPT_ALIGN_OFFSET, OPT_REQUESTS, OPT_SECONDS,
  OPT_FLUSH_EVERY, OPT_NO_HOLE, OPT_FAST, OPT_FILL, OPT_VERIFY, OPT_SEED,
  OPT_WAIT, OPT_JSON, OPT_HELP,
};

static const struct option options[] = {
  { "socket", required_argument, NULL, OPT_SOCKET },
  { "export", required_argument, NULL, OPT_EXPORT },
  { "op", required_argument, NULL, OPT_OP },
  { "bs", required_argument, NULL, OPT_BS },
  { "connections", required_argument, NULL, OPT_CONNECTIONS },
  { "depth", required_argument, NULL, OPT_DEPTH },
  { "offset", required_argument, NULL, OPT_OFFSET },
  { "size", required_argument, NULL, OPT_SIZE },
  { "align-offset", required_argument, NULL, OPT_ALIGN_OFFSET },
  { "requests", required_argument, NULL, OPT_REQUESTS },
  { "seconds", required_argument, NULL, OPT_SECONDS },
  { "flush-every", required_argument, NULL, OPT_FLUSH_EVERY },
  { "no-hole", no_argument, NULL, OPT_NO_HOLE },
  { "fast", no_argument, NULL, OPT_FAST },
  { "fill", required_argument, NULL, OPT_FILL },
  { "verify", no_argument, NULL, OPT_VERIFY },
  { "seed", required_argument, NULL, OPT_SEED },
  { "wait", required_argument, NULL, OPT_WAIT },
  { "json", no_argument, NULL, OPT_JSON },
  { "help", no_argument, NULL, OPT_HELP },
  { NULL, 0, NULL, 0 },
};

/* Longer than a screen because it is one table of options. */
static void
parse_options (struct job *job, bool *json, int argc, char *argv[])
{
  int c, idx;

  while ((c = getopt_long (argc, argv, "", options, &idx)) != -1) {
    const uint64_t n = c == OPT_BS || c == OPT_CONNECTIONS || c == OPT_DEPTH ||
      c == OPT_OFFSET || c == OPT_SIZE || c == OPT_ALIGN_OFFSET ||
      c == OPT_REQUESTS || c == OPT_FLUSH_EVERY || c == OPT_FILL ||
      c == OPT_SEED || c == OPT_WAIT
      ? parse_size (options[idx].name, optarg) : 0;

    switch (c) {
    case OPT_SOCKET: job->socket = optarg; break;
    case OPT_EXPORT: job->export = optarg; break;
    case OPT_OP: parse_op (job, optarg); break;
    case OPT_BS: job->block_size = n <= UINT32_MAX ? n : 0; break;
    case OPT_CONNECTIONS: job->connections = n <= 1024 ? n : 0; break;
    case OPT_DEPTH: job->depth = n <= 65536 ? n : 0; break;
    case OPT_OFFSET: job->range_start = n; break;
    case OPT_SIZE: job->range_size = n; break;
    case OPT_ALIGN_OFFSET: job->align_offset = n; break;
    case OPT_REQUESTS: job->nr_requests = n; break;
    case OPT_SECONDS: job->duration = strtod (optarg, NULL) * 1e9; break;
    case OPT_FLUSH_EVERY: job->flush_every = n; break;
    case OPT_NO_HOLE: job->flags |= WIRE_FLAG_NO_HOLE; break;
    case OPT_FAST: job->flags |= WIRE_FLAG_FAST_ZERO; break;
    case OPT_FILL: job->fill = n & 0xff; break;
    case OPT_VERIFY: job->verify = true; break;
    case OPT_SEED: job->seed = n; break;
    case OPT_WAIT: job->wait_ms = n; break;
    case OPT_JSON: *json = true; break;
    case OPT_HELP: usage (stdout); exit (0);
    default: usage (stderr); exit (2);
    }
  }
  if (!job->socket || optind != argc || job->block_size == 0 ||
      job->connections == 0 || job->depth == 0) {
    usage (stderr);
    exit (2);
  }
  if (job->verify && (job->block_size % 8 || job->range_start % 8 ||
                      job->align_offset % 8)) {
    fprintf (stderr, "nbdload: --verify needs multiples of 8 bytes\n");
    exit (2);
  }
  if ((job->cmd == WIRE_CMD_READ || job->cmd == WIRE_CMD_WRITE) &&
      job->block_size > 32 << 20) {
    fprintf (stderr, "nbdload: --bs: at most 32M with data\n");
    exit (2);
  }
}

struct totals {
  uint64_t done, errors, flushes, mismatches;
  uint32_t first_error;
  double seconds, cpu_seconds;
  uint64_t end_ns;              /* CLOCK_MONOTONIC of the last reply */
  struct histogram hist;
};

static int
collect (struct conn *conns, unsigned nr, struct totals *t)
{
  uint64_t start = UINT64_MAX, end = 0;
  struct rusage ru;
  int result = 0;

  for (unsigned i = 0; i < nr; ++i) {
    const struct conn *c = &conns[i];

    if (c->result == -1)
      result = -1;
    t->done += c->done;
    t->errors += c->errors;
    t->flushes += c->flushes;
    t->mismatches += c->mismatches;
    if (t->first_error == 0)
      t->first_error = c->first_error;
    if (c->start_ns < start)
      start = c->start_ns;
    if (c->end_ns > end)
      end = c->end_ns;
    histogram_merge (&t->hist, &c->hist);
  }
  t->seconds = (end - start) / 1e9;
  t->end_ns = end;
  getrusage (RUSAGE_SELF, &ru);
  t->cpu_seconds = ru.ru_utime.tv_sec + ru.ru_utime.tv_usec / 1e6 +
    ru.ru_stime.tv_sec + ru.ru_stime.tv_usec / 1e6;
  return result;
}

static double
quantile_us (const struct totals *t, double fraction)
{
  return histogram_quantile (&t->hist, fraction) / 1e3;
}

static void
report (const struct job *job, const struct totals *t, bool json)
{
  const double seconds = t->seconds > 0 ? t->seconds : 1e-9;
  const double iops = t->done / seconds;
  const double mbps = iops * job->block_size / 1e6;
  const double mean = t->hist.total ? t->hist.sum / 1e3 / t->hist.total : 0;

  if (json)
    printf ("{\"requests\": %" PRIu64 ", \"seconds\": %.6f,"
            " \"iops\": %.1f, \"mbps\": %.2f, \"flushes\": %" PRIu64 ","
            " \"errors\": %" PRIu64 ", \"error\": %" PRIu32 ","
            " \"mismatches\": %" PRIu64 ", \"cpu_seconds\": %.3f,"
            " \"end_ns\": %" PRIu64 ",\n"
            " \"latency_us\": {\"mean\": %.1f, \"p50\": %.1f,"
            " \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f,"
            " \"max\": %.1f}}\n",
            t->done, t->seconds, iops, mbps, t->flushes, t->errors,
            t->first_error, t->mismatches, t->cpu_seconds, t->end_ns,
            mean, quantile_us (t, .5), quantile_us (t, .9),
            quantile_us (t, .99), quantile_us (t, .999), t->hist.max / 1e3);
  else
    printf ("%" PRIu64 " requests in %.3f s: %.0f IOPS, %.1f MB/s,"
            " %" PRIu64 " flushes, %" PRIu64 " errors (first: %" PRIu32 "),"
            " %" PRIu64 " blocks differ, client CPU %.2f s\n"
            "latency us: mean %.1f, p50 %.1f, p90 %.1f, p99 %.1f,"
            " p99.9 %.1f, max %.1f\n",
            t->done, t->seconds, iops, mbps, t->flushes, t->errors,
            t->first_error, t->mismatches, t->cpu_seconds, mean,
            quantile_us (t, .5), quantile_us (t, .9), quantile_us (t, .99),
            quantile_us (t, .999), t->hist.max / 1e3);
}

int
main (int argc, char *argv[])
{
  static struct totals totals;
  struct job job = {
    .export = "", .cmd = WIRE_CMD_READ, .fill = -1, .block_size = 4096,
    .connections = 1, .depth = 1, .nr_requests = 0, .duration = UINT64_MAX,
  };
  pthread_barrier_t barrier;
  pthread_t *threads;
  struct conn *conns;
  bool json = false;
  int result;

  parse_options (&job, &json, argc, argv);
  if (job.nr_requests == 0 && job.duration != UINT64_MAX)
    job.nr_requests = UINT64_MAX;

  conns = calloc (job.connections, sizeof conns[0]);
  threads = calloc (job.connections, sizeof threads[0]);
  if (!conns || !threads ||
      pthread_barrier_init (&barrier, NULL, job.connections) != 0) {
    fprintf (stderr, "nbdload: out of memory\n");
    return 1;
  }
  for (unsigned i = 0; i < job.connections; ++i) {
    conns[i].job = &job;
    conns[i].id = i;
    conns[i].barrier = &barrier;
    if ((errno = pthread_create (&threads[i], NULL, conn_run, &conns[i]))) {
      perror ("nbdload: pthread_create");
      return 1;
    }
  }
  for (unsigned i = 0; i < job.connections; ++i)
    pthread_join (threads[i], NULL);

  result = collect (conns, job.connections, &totals);
  report (&job, &totals, json);
  pthread_barrier_destroy (&barrier);
  free (conns);
  free (threads);
  return result == -1 || totals.errors || totals.mismatches ? 1 : 0;
}
