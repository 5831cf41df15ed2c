/* SPDX-License-Identifier: BSD-3-Clause */
/* The bytes of a qcow2 image: offsets, masks, limits, and big-endian
 * accessors.  Section names are those of the qcow2 specification
 * (docs/interop/qcow2 in QEMU).
 *
 * No struct is ever laid over a buffer: what is on disk is read and
 * written field by field, so that no value escapes a bounds check.
 */

#ifndef ONDISK_H
#define ONDISK_H

#include <stdint.h>
#include <string.h>
#include <endian.h>

static inline uint16_t
get_be16 (const uint8_t *p)
{
  uint16_t v;
  memcpy (&v, p, sizeof v);
  return be16toh (v);
}

static inline uint32_t
get_be32 (const uint8_t *p)
{
  uint32_t v;
  memcpy (&v, p, sizeof v);
  return be32toh (v);
}

static inline uint64_t
get_be64 (const uint8_t *p)
{
  uint64_t v;
  memcpy (&v, p, sizeof v);
  return be64toh (v);
}

static inline void
put_be16 (uint8_t *p, uint16_t v)
{
  v = htobe16 (v);
  memcpy (p, &v, sizeof v);
}

static inline void
put_be32 (uint8_t *p, uint32_t v)
{
  v = htobe32 (v);
  memcpy (p, &v, sizeof v);
}

static inline void
put_be64 (uint8_t *p, uint64_t v)
{
  v = htobe64 (v);
  memcpy (p, &v, sizeof v);
}

/* "Header" */
#define QCOW2_MAGIC                     0x514649fbU     /* "QFI\xfb" */

#define HDR_MAGIC                       0       /* 32 */
#define HDR_VERSION                     4       /* 32 */
#define HDR_BACKING_FILE_OFFSET         8       /* 64 */
#define HDR_BACKING_FILE_SIZE           16      /* 32 */
#define HDR_CLUSTER_BITS                20      /* 32 */
#define HDR_SIZE                        24      /* 64 */
#define HDR_CRYPT_METHOD                32      /* 32 */
#define HDR_L1_SIZE                     36      /* 32 */
#define HDR_L1_TABLE_OFFSET             40      /* 64 */
#define HDR_REFCOUNT_TABLE_OFFSET       48      /* 64 */
#define HDR_REFCOUNT_TABLE_CLUSTERS     56      /* 32 */
#define HDR_NB_SNAPSHOTS                60      /* 32 */
#define HDR_SNAPSHOTS_OFFSET            64      /* 64 */
#define HDR_V2_LENGTH                   72
#define HDR_INCOMPATIBLE                72      /* 64 */
#define HDR_COMPATIBLE                  80      /* 64 */
#define HDR_AUTOCLEAR                   88      /* 64 */
#define HDR_REFCOUNT_ORDER              96      /* 32 */
#define HDR_HEADER_LENGTH               100     /* 32 */
#define HDR_V3_MIN_LENGTH               104
#define HDR_COMPRESSION_TYPE            104     /* 8 */
#define HDR_V3_LENGTH                   112     /* what we and QEMU write */

#define HDR_CRYPT_NONE                  0
#define HDR_CRYPT_AES                   1
#define HDR_CRYPT_LUKS                  2

#define INCOMPAT_DIRTY                  (UINT64_C (1) << 0)
#define INCOMPAT_CORRUPT                (UINT64_C (1) << 1)
#define INCOMPAT_DATA_FILE              (UINT64_C (1) << 2)
#define INCOMPAT_COMPRESSION            (UINT64_C (1) << 3)
#define INCOMPAT_EXTENDED_L2            (UINT64_C (1) << 4)
#define INCOMPAT_KNOWN                  UINT64_C (0x1f)

#define COMPAT_LAZY_REFCOUNTS           (UINT64_C (1) << 0)

#define AUTOCLEAR_BITMAPS               (UINT64_C (1) << 0)
#define AUTOCLEAR_DATA_FILE_RAW         (UINT64_C (1) << 1)
#define AUTOCLEAR_KNOWN                 UINT64_C (0x3)

/* "Header extensions" */
#define EXT_END                         0x00000000U
#define EXT_BACKING_FORMAT              0xe2792acaU
#define EXT_FEATURE_NAMES               0x6803f857U
#define EXT_BITMAPS                     0x23852875U
#define EXT_CRYPTO_HEADER               0x0537be77U
#define EXT_DATA_FILE                   0x44415441U

#define FEATURE_NAME_ENTRY_SIZE         48

/* "Cluster mapping": L1 entry */
#define L1E_OFFSET_MASK                 UINT64_C (0x00fffffffffffe00)
#define L1E_RESERVED_MASK               UINT64_C (0x7f000000000001ff)
/* L2 entry, standard cluster descriptor */
#define L2E_OFFSET_MASK                 UINT64_C (0x00fffffffffffe00)
#define L2E_RESERVED_MASK               UINT64_C (0x3f000000000001fe)
#define L2E_ZERO                        (UINT64_C (1) << 0)
#define L2E_COMPRESSED                  (UINT64_C (1) << 62)
#define ENTRY_COPIED                    (UINT64_C (1) << 63)
/* "Extended L2 Entries": bitmap of one entry */
#define SUBCLUSTERS_PER_CLUSTER         32
#define SUBCLUSTER_ALLOC(i)             (UINT64_C (1) << (i))
#define SUBCLUSTER_ZERO(i)              (UINT64_C (1) << (32 + (i)))

/* "Host cluster management": refcount table entry */
#define REFTABLE_OFFSET_MASK            UINT64_C (0xfffffffffffffe00)

/* Limits.  Those of the format, or where the format has none those of
 * QEMU, so that neither opens what the other refuses.
 */
#define MIN_CLUSTER_BITS                9
#define MAX_CLUSTER_BITS                21
#define MIN_EXTENDED_L2_CLUSTER_BITS    14
#define MAX_REFCOUNT_ORDER              6
#define MAX_L1_SIZE                     (UINT64_C (32) << 20)   /* bytes */
#define MAX_REFTABLE_SIZE               (UINT64_C (8) << 20)    /* bytes */
#define MAX_SNAPSHOTS                   65536
#define MAX_SNAPSHOT_TABLE_SIZE         (UINT64_C (1024) * MAX_SNAPSHOTS)
#define MAX_SNAPSHOT_EXTRA_DATA         1024
#define MAX_BACKING_FILE_SIZE           1023
#define MAX_BACKING_FORMAT_SIZE         15
#define MAX_BITMAPS                     65535
#define MAX_BITMAP_DIRECTORY_SIZE       (UINT64_C (1024) * MAX_BITMAPS)
#define MAX_CRYPTO_HEADER_SIZE          (UINT64_C (64) << 20)   /* bytes */
#define MAX_HOST_OFFSET                 (UINT64_C (1) << 56)

/* "Full disk encryption header pointer" */
#define CRYPTO_EXT_OFFSET               0       /* 64 */
#define CRYPTO_EXT_LENGTH               8       /* 64 */
#define CRYPTO_EXT_LEN                  16

/* "Snapshots": the fixed part of a snapshot table entry */
#define SNAP_L1_OFFSET                  0       /* 64 */
#define SNAP_L1_SIZE                    8       /* 32 */
#define SNAP_ID_LEN                     12      /* 16 */
#define SNAP_NAME_LEN                   14      /* 16 */
#define SNAP_DATE_SEC                   16      /* 32 */
#define SNAP_DATE_NSEC                  20      /* 32 */
#define SNAP_VM_CLOCK_NSEC              24      /* 64 */
#define SNAP_VM_STATE_SIZE              32      /* 32 */
#define SNAP_EXTRA_LEN                  36      /* 32 */
#define SNAP_FIXED_LEN                  40
#define SNAP_EXTRA_VM_STATE_SIZE        0       /* 64, in the extra data */
#define SNAP_EXTRA_DISK_SIZE            8       /* 64 */
#define SNAP_EXTRA_ICOUNT               16      /* 64 */

/* "Bitmaps extension" */
#define BITMAPS_EXT_NB                  0       /* 32 */
#define BITMAPS_EXT_DIR_SIZE            8       /* 64 */
#define BITMAPS_EXT_DIR_OFFSET          16      /* 64 */
#define BITMAPS_EXT_LEN                 24

#endif /* ONDISK_H */
