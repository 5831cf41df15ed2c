/* SPDX-License-Identifier: BSD-3-Clause */
/* Included at the end of targets whose inputs are containers of images. */

#ifndef FUZZ_MUTATOR_H
#define FUZZ_MUTATOR_H

#include "fuzz.h"

extern size_t LLVMFuzzerCustomMutator (uint8_t *data, size_t size,
                                       size_t max_size, unsigned seed);

size_t
LLVMFuzzerCustomMutator (uint8_t *data, size_t size, size_t max_size,
                         unsigned seed)
{
  return fuzz_mutate_image (data, size, max_size, seed);
}

#endif /* FUZZ_MUTATOR_H */
