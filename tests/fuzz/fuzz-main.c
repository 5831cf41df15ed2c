/* SPDX-License-Identifier: BSD-3-Clause */
/* main of fuzzers that are built without libFuzzer:
 *
 *   fuzz-TARGET [-n MUTATIONS] [-s SEED] [FILE-OR-DIRECTORY...]
 *
 * Runs the files, or those of corpus/TARGET, then mutations of them: the
 * same ones each time.  An input that crashes is left in the file
 * fuzz-TARGET.crash; one that takes more than MAX_SECONDS is a finding too.
 */

#include <config.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"

#define MAX_INPUT_LEN       (256 * 1024)
#define MAX_SECONDS     10      /* for a slow machine with sanitizers */

struct input {
  char *name;
  uint8_t *data;
  size_t size;
};

static struct input *inputs;
static size_t nr_inputs;
static const char *target;
static uint8_t current[MAX_INPUT_LEN];
static size_t current_size;
static uint64_t random_state = 1;

/* Targets with containers have their own. */
extern size_t LLVMFuzzerCustomMutator (uint8_t *data, size_t size,
                                       size_t max_size, unsigned seed)
  __attribute__ ((weak));

/* In programs with a sanitizer: what it calls before it ends them. */
extern void __sanitizer_set_death_callback (void (*callback) (void))
  __attribute__ ((weak));

static void
save_current (void)
{
  char path[256];
  int fd;

  snprintf (path, sizeof path, "%s.crash", target);
  fd = open (path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd >= 0 && write (fd, current, current_size) >= 0)
    close (fd);
  fprintf (stderr, "%s: the input is in %s\n", target, path);
}

static void
got_signal (int sig)
{
  fprintf (stderr, "%s: signal %d (%s)\n", target, sig,
           sig == SIGALRM ? "the input takes too long" : strsignal (sig));
  save_current ();
  signal (sig, SIG_DFL);
  raise (sig);
}

static void
add_file (const char *path)
{
  struct input *in;
  struct stat st;
  int fd = open (path, O_RDONLY | O_CLOEXEC);

  if (fd < 0 || fstat (fd, &st) < 0 || st.st_size > MAX_INPUT_LEN) {
    fprintf (stderr, "%s: cannot be used\n", path);
    exit (2);
  }
  inputs = realloc (inputs, (nr_inputs + 1) * sizeof *inputs);
  if (inputs == NULL)
    exit (2);
  in = &inputs[nr_inputs++];
  in->name = strdup (path);
  in->size = st.st_size;
  in->data = malloc (in->size + 1);
  if (in->name == NULL || in->data == NULL ||
      read (fd, in->data, in->size) != (ssize_t) in->size)
    exit (2);
  close (fd);
}

static void
add (const char *path)
{
  struct dirent **names;
  char file[4096];
  struct stat st;
  int i, n;

  if (stat (path, &st) < 0) {
    fprintf (stderr, "%s: %s\n", path, strerror (errno));
    exit (2);
  }
  if (!S_ISDIR (st.st_mode)) {
    add_file (path);
    return;
  }
  n = scandir (path, &names, NULL, alphasort);
  for (i = 0; i < n; ++i) {
    snprintf (file, sizeof file, "%s/%s", path, names[i]->d_name);
    if (names[i]->d_name[0] != '.')
      add_file (file);
    free (names[i]);
  }
  free (names);
}

static void
run_current (void)
{
  uint8_t *data = malloc (current_size ? current_size : 1);

  if (data == NULL)
    exit (2);
  memcpy (data, current, current_size);
  alarm (MAX_SECONDS);
  LLVMFuzzerTestOneInput (data, current_size);
  alarm (0);
  free (data);
}

static void
take (const struct input *in)
{
  memcpy (current, in->data, in->size);
  current_size = in->size;
}

size_t
LLVMFuzzerMutate (uint8_t *data, size_t size, size_t max_size)
{
  static const uint8_t values[] = { 0, 1, 2, 8, 9, 0x7f, 0x80, 0xff };
  size_t i, n;

  if (size == 0) {
    if (max_size == 0)
      return 0;
    data[0] = test_random (&random_state);
    return 1;
  }
  i = fuzz_below (&random_state, size);
  switch (fuzz_below (&random_state, 8)) {
  case 0: data[i] ^= 1U << fuzz_below (&random_state, 8); break;
  case 1: data[i] = values[fuzz_below (&random_state, sizeof values)]; break;
  case 2: data[i]++; break;
  case 3: data[i]--; break;
  case 4: data[i] = test_random (&random_state) >> 32; break;
  case 5:                       /* remove some */
    n = 1 + fuzz_below (&random_state, 8);
    if (n > size - i)
      n = size - i;
    memmove (data + i, data + i + n, size - i - n);
    size -= n;
    break;
  case 6:                       /* repeat some */
    n = 1 + fuzz_below (&random_state, 8);
    if (n > size - i)
      n = size - i;
    if (n > max_size - size)
      break;
    memmove (data + i + n, data + i, size - i);
    size += n;
    break;
  default:                      /* copy some to another place */
    n = 1 + fuzz_below (&random_state, 8);
    if (n > size - i)
      n = size - i;
    memmove (data + i, data + fuzz_below (&random_state, size - n + 1), n);
  }
  return size;
}

static void
mutate_current (void)
{
  unsigned n;

  if (LLVMFuzzerCustomMutator) {
    current_size = LLVMFuzzerCustomMutator (current, current_size,
                                            MAX_INPUT_LEN,
                                            test_random (&random_state));
    return;
  }
  for (n = 1 + fuzz_below (&random_state, 4); n > 0; --n)
    current_size = LLVMFuzzerMutate (current, current_size, MAX_INPUT_LEN);
}

int
main (int argc, char *argv[])
{
  uint64_t n = FUZZ_MUTATIONS, i;
  char path[256];
  int c;

  target = strrchr (argv[0], '/') ? strrchr (argv[0], '/') + 1 : argv[0];
  while ((c = getopt (argc, argv, "n:s:")) != -1) {
    switch (c) {
    case 'n': n = strtoull (optarg, NULL, 0); break;
    case 's':
      random_state = fuzz_random_start (strtoull (optarg, NULL, 0));
      break;
    default:
      return 2;
    }
  }
  if (optind == argc) {
    snprintf (path, sizeof path, "corpus/%s", target);
    add (path);
  }
  for (; optind < argc; ++optind)
    add (argv[optind]);
  if (nr_inputs == 0) {
    fprintf (stderr, "%s: no inputs\n", target);
    return 2;
  }
  signal (SIGABRT, got_signal);
  signal (SIGALRM, got_signal);
  if (__sanitizer_set_death_callback)
    __sanitizer_set_death_callback (save_current);
  else
    signal (SIGSEGV, got_signal);
  for (i = 0; i < nr_inputs; ++i) {
    take (&inputs[i]);
    run_current ();
  }
  for (i = 0; i < n; ++i) {
    take (&inputs[fuzz_below (&random_state, nr_inputs)]);
    mutate_current ();
    run_current ();
  }
  printf ("%s: %zu inputs and %llu mutations\n", target, nr_inputs,
          (unsigned long long) n);
  return 0;
}
