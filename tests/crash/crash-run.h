/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs a workload on the engine, above a backend that can lose power, for
 * crash-power.c and crash-faults.c.
 *
 * What happens depends on the setup and on the seed only, unless the workload
 * has threads.
 */

#ifndef CRASH_RUN_H
#define CRASH_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "backend-crash.h"
#include "codec.h"
#include "create.h"
#include "ccache.h"
#include "core.h"
#include "crypt.h"
#include "crash-model.h"
#include "io.h"

struct crash_run;

/* Of encrypted images. */
#define CRASH_PASSPHRASE "abc"

/* What is left of an image: memory. */
struct crash_image {
  struct backend *file, *data;  /* DATA: NULL = no data file */
};

struct crash_setup {
  const char *name;
  struct backend *initial;      /* the image: memory; lent */
  struct backend *raw_backing;  /* under it: memory, lent; NULL = none */
  struct backend *initial_data; /* its data file: memory, lent; or NULL */
  enum codec_type codec;        /* of compressed writes */
  struct crypt *crypt;          /* of an encrypted image: lent; or NULL */
  bool discard, detect_zeroes;
  void (*workload) (struct crash_run *run);
  /* What else must be true of an image that is left, apart from what all have
   * in common; its disk contains DISK.  NULL = nothing.
   */
  bool (*verify) (struct crash_run *run, struct backend *image,
                  const uint8_t *disk);
};

struct crash_run {
  const struct crash_setup *setup;
  uint64_t seed, first_seed;
  bool tolerant;                /* errors are expected */
  struct crash_clock *clock;
  struct backend *disk, *data;  /* lose power; DATA: NULL = no data file */
  struct ccache *ccache;
  struct core *core;
  struct backing backing;
  struct crash_model *model;
  uint64_t size, cluster_size;
  uint8_t *initial;             /* SIZE bytes: the disk at the beginning */
  uint8_t *buf;                 /* SIZE bytes */
  uint8_t **snapshots;          /* what is in each; NULL-terminated */
};

/* For workloads.  All make data of their own, note what they do in the
 * model, and return what the engine returned.  Without faults an error
 * ends the test.
 */
extern int crash_run_write (struct crash_run *run, uint64_t off,
                            uint64_t len, unsigned io_flags);
/* Whole clusters that can be compressed well, more or less. */
extern int crash_run_compressed (struct crash_run *run, uint64_t off,
                                 uint64_t len);
extern int crash_run_zero (struct crash_run *run, uint64_t off,
                           uint64_t len, unsigned io_flags);
extern int crash_run_trim (struct crash_run *run, uint64_t off,
                           uint64_t len);
extern int crash_run_flush (struct crash_run *run);

/* A number below LIMIT. */
extern uint64_t crash_run_random (struct crash_run *run, uint64_t limit);
/* A range inside the disk of at most MAX_LEN bytes; aligned to UNIT, apart
 * from the end of the disk.
 */
extern void crash_run_range (struct crash_run *run, uint64_t unit,
                             uint64_t max_len,
                             uint64_t *off, uint64_t *len);
extern uint64_t crash_run_size (const struct crash_run *run);
extern uint64_t crash_run_cluster_size (const struct crash_run *run);

/* The same run for another thread, with random numbers of its own.  Threads
 * must not touch each other's sectors.
 */
extern struct crash_run *crash_run_join (struct crash_run *run,
                                         uint64_t seed);
extern void crash_run_leave (struct crash_run *other);

/* For crash-power.c and crash-faults.c.  start: a copy of the image is open
 * for writing above a backend that can lose power.  end frees everything.
 * open: another image on FILE (and DATA), with the options of the setup; NULL
 * after an error.
 */
extern void crash_run_start (struct crash_run *run,
                             const struct crash_setup *setup, uint64_t seed);
extern void crash_run_end (struct crash_run *run);
extern struct core *crash_run_open (struct crash_run *run,
                                    struct backend *file,
                                    struct backend *data, bool writable);

/* The number of calls whose fate is open at moment T, and what is left
 * after CHOICE (see backend-crash.h), to be freed: calls to both files count
 * as one list.
 */
extern size_t crash_run_unsynced (struct crash_run *run, uint64_t t);
extern void crash_run_image (struct crash_run *run, uint64_t t,
                             const struct crash_choice *choice,
                             struct crash_image *image);
extern void crash_run_image_free (struct crash_image *image);
/* For examination: as crash-failed.qcow2 and crash-failed.data. */
extern void crash_run_image_save (const struct crash_image *image);

/* The clean close, which promises what a flush promises. */
extern int crash_run_finish (struct crash_run *run);

/* Read the whole disk into BUF, of io->size bytes.  0, or the first error. */
extern int crash_run_read (struct io *io, uint8_t *buf);
/* The content of snapshot number I, to be freed; NULL: cannot be read. */
extern uint8_t *crash_run_read_snapshot (struct core *core, size_t i);

/* Images to start with: a new one; one with a data file; a file (of
 * qemu-img), loaded; raw random data.
 */
extern struct backend *crash_run_create (const struct create_options *o);
extern struct backend *crash_run_create_pair (const struct create_options *o,
                                              struct backend **data);
extern struct backend *crash_run_load (const char *path);
extern struct backend *crash_run_raw (uint64_t size, uint64_t seed);

/* Kinds of images: by cluster size, and by what is not the default. */
struct crash_kind {
  const char *name;             /* "4k-v2": see crash-run.c */
  uint64_t size;                /* of the disk, bytes */
  uint64_t backing_size;        /* of raw random data under it; 0 = none */
};

/* RUN (crash_power, crash_faults) does what SETUP says on a new image of each
 * of NR kinds; it gets the kind with the name, and the image.
 */
extern void crash_run_kinds (const struct crash_setup *setup,
                             void (*run) (const struct crash_setup *setup),
                             const struct crash_kind *kinds, size_t nr);

/* A number from the environment. */
extern uint64_t crash_run_env (const char *name, uint64_t def);

/* Run a command; an error ends the test. */
extern void crash_run_command (const char *fmt, ...)
  __attribute__ ((__format__ (printf, 1, 2)));

#endif /* CRASH_RUN_H */
