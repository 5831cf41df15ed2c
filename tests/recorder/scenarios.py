# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

"""Stacks of filters, kinds of images, and jobs, for power.py."""

import os
import subprocess
import time

from shadow import SECTOR, make_data

MB = 1 << 20
SIZE = 8 * MB
IMAGE = "t.qcow2"
SECRET = ["--object", "secret,id=s,data=abc"]

PREALLOCATE = ["prealloc-size=1M", "prealloc-align=64k"]
COWMERGE = ["cowmerge-max=1M", "cowmerge-delay=20"]
STACKS = {
    "plain": ([], []),
    "preallocate": (["preallocate"], PREALLOCATE),
    "cowmerge": (["cowmerge"], COWMERGE),
    "compress": (["compress"], ["compress-threads=2"]),
    "all": (["cowmerge", "compress", "preallocate"],
            COWMERGE + ["compress-threads=2"] + PREALLOCATE),
    "cowmerge+preallocate": (["cowmerge", "preallocate"],
                             COWMERGE + PREALLOCATE),
}


class Kind:
    """A kind of image.  OPTIONS are qemu-img's, PARAMETERS the plugin's."""

    def __init__(self, options="", parameters=(), cluster=65536, backing=0,
                 **features):
        self.options = options
        self.parameters = list(parameters)
        self.cluster = cluster
        self.backing = backing          # bytes of the backing file
        self.features = features

    def has(self, name):
        return self.features.get(name, False)

    def files(self):
        """What is recorded; the image first."""
        return [IMAGE] + (["t.data"] if self.has("data_file") else [])


def _small(options, **more):
    return Kind("cluster_size=4k" + options, cluster=4096, **more)


LUKS = ("encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10")
KINDS = {
    "64k": Kind(),
    "zstd": Kind("compression_type=zstd"),
    "4k": _small(""),
    "512": Kind("cluster_size=512", cluster=512),
    "v2": _small(",compat=0.10"),
    "refcount1": _small(",refcount_bits=1"),
    "subclusters": Kind("extended_l2=on,cluster_size=16k", cluster=16384),
    "overlay": Kind("cluster_size=16k", cluster=16384, backing=6 * MB),
    "overlay-subclusters": Kind("extended_l2=on", backing=6 * MB),
    "discard": _small("", parameters=["discard=true", "detect-zeroes=true"]),
    "snapshots": _small("", snapshots=True),
    "snapshots-subclusters": Kind("extended_l2=on,cluster_size=16k",
                                  cluster=16384, snapshots=True),
    "data-file": _small(",data_file=t.data", data_file=True, plain=True),
    "data-file-raw": Kind("data_file=t.data,data_file_raw=on",
                          data_file=True, plain=True),
    "lazy": _small(",lazy_refcounts=on", lazy=True),
    "bitmaps": Kind("cluster_size=4k", cluster=4096, bitmaps=True),
    "luks": Kind(LUKS, ["passphrase=abc"], secret=True, plain=True),
    "luks-subclusters": Kind(LUKS + ",extended_l2=on", ["passphrase=abc"],
                             secret=True, plain=True),
}

# Parameters of the job; the first list prepares the image for it.
JOBS = {
    "grow": ([], ["resize=%d" % (40 * MB)]),
    "shrink": ([], ["resize=%d" % (3 * MB), "shrink=true"]),
    "snapshot-create": ([], ["snapshot-create=new"]),
    "snapshot-delete": (["snapshot-create=old"], ["snapshot-delete=old"]),
    "snapshot-apply": (["snapshot-create=old"], ["snapshot-apply=old"]),
    "repair": ([], ["repair=all"]),
}


def qemu_img(*args, cwd):
    subprocess.run(["qemu-img", *args], cwd=cwd, check=True, timeout=300,
                   stdout=subprocess.DEVNULL)


def image_options(kind, directory):
    """How qemu-img is told which image to open."""
    path = os.path.join(directory, IMAGE)
    if not kind.has("secret"):
        return ["-f", "qcow2", path]
    return SECRET + ["--image-opts", "driver=qcow2,file.filename=%s,"
                     "encrypt.key-secret=s" % path]


def create(kind, directory):
    """Make the image, and what it needs, in an empty directory."""
    args = ["create", "-q", "-f", "qcow2"]
    if kind.options:
        args += ["-o", kind.options]
    if kind.has("secret"):
        args += SECRET
    if kind.backing:
        base = os.path.join(directory, "base.raw")
        with open(base, "wb") as f:
            f.write(make_data(0, kind.backing // SECTOR, 1))
        args += ["-b", base, "-F", "raw"]
    for tries in range(20):
        # LUKS: qemu-img measures the CPU, and may give up on a busy one.
        try:
            qemu_img(*args, IMAGE, str(SIZE), cwd=directory)
            break
        except subprocess.CalledProcessError:
            if tries == 19 or not kind.has("secret"):
                raise
            time.sleep(.3)
    if kind.has("bitmaps"):
        qemu_img("bitmap", "--add", "-g", "64k", IMAGE, "b", cwd=directory)


def is_possible(stack, kind):
    """Compressed clusters are refused for some images."""
    filters, _ = STACKS[stack]
    return "compress" not in filters or not KINDS[kind].has("plain")


def job_is_possible(kind, job):
    """Snapshots need clusters that can be used twice, and no data file."""
    return not (job.startswith("snapshot") and
                (KINDS[kind].has("data_file") or kind == "refcount1"))
