/* SPDX-License-Identifier: BSD-3-Clause */
/* The log that recorder.c writes, and recording.py reads.
 *
 * Records follow each other: a header of RECORD_HEADER bytes in the byte
 * order of the machine, then PAYLOAD bytes.  All writers open the log with
 * O_APPEND and write a record in one call, so their order in the log is one
 * that everybody agrees on: what came before in the log of one process may
 * have caused what comes after in that of another, never the reverse.
 */

#ifndef RECORD_FORMAT_H
#define RECORD_FORMAT_H

#include <stdint.h>

#define RECORD_MAGIC    0x43455251U     /* "QREC" */

enum record_kind {
  RECORD_BEGIN = 1,             /* before the call; payload: data written */
  RECORD_END = 2,               /* after it */
  RECORD_ERROR = 3,             /* payload: text.  The log is of no use */
  /* 16 and more: of the client, see shadow.py. */
};

enum record_op {
  RECORD_WRITE = 1,
  RECORD_SYNC = 2,
  RECORD_FALLOCATE = 3,
  RECORD_TRUNCATE = 4,          /* new length in offset */
};

/* In flags of RECORD_WRITE.  Those of RECORD_FALLOCATE are its mode. */
#define RECORD_DSYNC    1

struct record {
  uint32_t magic;
  uint16_t kind, op;
  uint32_t flags;
  uint32_t payload;
  uint32_t file;                /* number in RECORDER_FILES */
  uint32_t pid;
  uint64_t id;                  /* the same in BEGIN and END of one PID */
  uint64_t offset, length;
  int64_t result;               /* of END; -errno */
};

#define RECORD_HEADER   56

_Static_assert (sizeof (struct record) == RECORD_HEADER,
                "no padding in struct record");

#endif /* RECORD_FORMAT_H */
