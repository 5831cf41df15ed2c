/* SPDX-License-Identifier: BSD-3-Clause */
/* Newstyle negotiation of an NBD export on a Unix socket.
 *
 * This exists beside libnbd because the load generator must cost as
 * little as possible: on a machine of few cores each cycle spent in the
 * client is missing in the server that is measured.
 *
 * It does not do TLS, nor anything but Unix sockets.
 */

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"

#define NBDMAGIC UINT64_C (0x4e42444d41474943)
#define IHAVEOPT UINT64_C (0x49484156454f5054)
#define OPT_REPLY_MAGIC UINT64_C (0x3e889045565a9)

#define OPT_STRUCTURED_REPLY 8
#define OPT_SET_META_CONTEXT 10
#define OPT_GO 7

#define REP_ACK 1
#define REP_INFO 3
#define REP_META_CONTEXT 4
#define REP_IS_ERROR (UINT32_C (1) << 31)

#define INFO_EXPORT 0
#define MAX_OPT_REPLY 65536

static int
read_all (int fd, void *buf, size_t len)
{
  char *p = buf;

  while (len > 0) {
    ssize_t r = read (fd, p, len);

    if (r == -1 && errno == EINTR)
      continue;
    if (r == -1)
      return -errno;
    if (r == 0)
      return -ECONNRESET;
    p += r;
    len -= r;
  }
  return 0;
}

int
wire_send (int fd, const void *buf, size_t len)
{
  const char *p = buf;

  while (len > 0) {
    ssize_t r = send (fd, p, len, MSG_NOSIGNAL);

    if (r == -1 && errno == EINTR)
      continue;
    if (r == -1)
      return -errno;
    p += r;
    len -= r;
  }
  return 0;
}

static int
send_option (int fd, uint32_t opt, const void *data, uint32_t len)
{
  uint8_t buf[16];
  int r;

  wire_put64 (buf, IHAVEOPT);
  wire_put32 (buf + 8, opt);
  wire_put32 (buf + 12, len);
  r = wire_send (fd, buf, sizeof buf);
  return r < 0 ? r : wire_send (fd, data, len);
}

/* One option reply.  The payload goes to DATA (MAX_OPT_REPLY bytes). */
static int
read_option_reply (int fd, uint32_t *type, uint8_t *data, uint32_t *len)
{
  uint8_t buf[20];
  int r = read_all (fd, buf, sizeof buf);

  if (r < 0)
    return r;
  if (wire_get64 (buf) != OPT_REPLY_MAGIC)
    return -EPROTO;
  *type = wire_get32 (buf + 12);
  *len = wire_get32 (buf + 16);
  if (*len > MAX_OPT_REPLY)
    return -EPROTO;
  return read_all (fd, data, *len);
}

/* Read replies until the option is done.  What INFO_EXPORT says is kept
 * in W.
 */
static int
finish_option (struct wire *w)
{
  uint8_t *data = malloc (MAX_OPT_REPLY);
  uint32_t type, len;
  int r;

  if (data == NULL)
    return -ENOMEM;
  for (;;) {
    r = read_option_reply (w->fd, &type, data, &len);
    if (r < 0)
      break;
    if (type == REP_ACK)
      break;
    if (type & REP_IS_ERROR) {
      fprintf (stderr, "nbdload: server refused an option: %.*s\n",
               (int) len, (char *) data);
      r = -EPROTO;
      break;
    }
    if (type == REP_INFO && len >= 12 && wire_get16 (data) == INFO_EXPORT) {
      w->export_size = wire_get64 (data + 2);
      w->eflags = wire_get16 (data + 10);
    }
  }
  free (data);
  return r;
}

static int
ask_block_status (struct wire *w, const char *export)
{
  static const char context[] = "base:allocation";
  const uint32_t context_len = sizeof context - 1;
  uint32_t name_len = strlen (export), len = 4 + name_len + 4 + 4 + context_len;
  uint8_t *data;
  int r = send_option (w->fd, OPT_STRUCTURED_REPLY, NULL, 0);

  if (r < 0 || (r = finish_option (w)) < 0)
    return r;
  data = malloc (len);
  if (data == NULL)
    return -ENOMEM;
  wire_put32 (data, name_len);
  memcpy (data + 4, export, name_len);
  wire_put32 (data + 4 + name_len, 1);
  wire_put32 (data + 8 + name_len, context_len);
  memcpy (data + 12 + name_len, context, context_len);
  r = send_option (w->fd, OPT_SET_META_CONTEXT, data, len);
  free (data);
  return r < 0 ? r : finish_option (w);
}

static int
ask_export (struct wire *w, const char *export)
{
  uint32_t name_len = strlen (export), len = 4 + name_len + 2;
  uint8_t *data = malloc (len);
  int r;

  if (data == NULL)
    return -ENOMEM;
  wire_put32 (data, name_len);
  memcpy (data + 4, export, name_len);
  wire_put16 (data + 4 + name_len, 0);
  r = send_option (w->fd, OPT_GO, data, len);
  free (data);
  return r < 0 ? r : finish_option (w);
}

static int
negotiate (struct wire *w, const char *export, bool block_status)
{
  uint8_t hello[18], cflags[4];
  uint16_t gflags;
  int r = read_all (w->fd, hello, sizeof hello);

  if (r < 0)
    return r;
  if (wire_get64 (hello) != NBDMAGIC || wire_get64 (hello + 8) != IHAVEOPT)
    return -EPROTO;
  gflags = wire_get16 (hello + 16);
  if ((gflags & 1) == 0)        /* not fixed newstyle */
    return -EPROTO;
  wire_put32 (cflags, gflags & 3);
  r = wire_send (w->fd, cflags, sizeof cflags);
  if (r == 0 && block_status)
    r = ask_block_status (w, export);
  return r < 0 ? r : ask_export (w, export);
}

static int
connect_retry (const struct sockaddr_un *addr, unsigned wait_ms)
{
  const struct timespec pause = { .tv_nsec = 200000 };
  struct timespec start, now;

  clock_gettime (CLOCK_MONOTONIC, &start);
  for (;;) {
    int err, fd = socket (AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd == -1)
      return -errno;
    if (connect (fd, (const struct sockaddr *) addr, sizeof *addr) == 0)
      return fd;
    err = errno;
    close (fd);
    clock_gettime (CLOCK_MONOTONIC, &now);
    if ((err != ENOENT && err != ECONNREFUSED) ||
        (now.tv_sec - start.tv_sec) * INT64_C (1000) +
        (now.tv_nsec - start.tv_nsec) / 1000000 >= wait_ms)
      return -err;
    nanosleep (&pause, NULL);
  }
}

int
wire_connect (struct wire *w, const char *path, const char *export,
              bool block_status, unsigned wait_ms)
{
  struct sockaddr_un addr = { .sun_family = AF_UNIX };
  int r;

  if (strlen (path) >= sizeof addr.sun_path) {
    fprintf (stderr, "nbdload: %s: socket path is too long\n", path);
    return -1;
  }
  strcpy (addr.sun_path, path);
  w->fd = connect_retry (&addr, wait_ms);
  if (w->fd < 0) {
    fprintf (stderr, "nbdload: %s: %s\n", path, strerror (-w->fd));
    return -1;
  }
  w->export_size = 0;
  w->eflags = 0;
  r = negotiate (w, export, block_status);
  if (r < 0) {
    fprintf (stderr, "nbdload: %s: export \"%s\": %s\n", path, export,
             strerror (-r));
    close (w->fd);
    return -1;
  }
  return 0;
}
