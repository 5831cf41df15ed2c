#!/usr/bin/env python3
# nbdkit-qcow2
# SPDX-License-Identifier: BSD-3-Clause

"""Cut the power of a whole stack: nbdkit, filters and plugin.

    power.py [options] STACK:KIND...       serve and write, then cut
    power.py [options] --job KIND:JOB...   cut during resize, repair...
    power.py [options] --kill STACK:KIND...    kill -9 instead
    power.py [options] --fault STACK:KIND...   calls that fail instead
    power.py --minutes N --all             everything, again and again

A recorder below the server notes each change of the image.  From its log
come the files that a power cut at a random moment could have left.  Each of
them must pass our check and qemu-img's with nothing but leaks, and have every
sector that was flushed; see shadow.py.  scenarios.py has the names.

    --rounds N   each goes on with an image that the last one left behind
    --cuts N     power cuts in each round
    --requests N of the client in each round
    --seed N     choices; how threads run is chance all the same
    --keep DIR   leave what failed there
    --lie N      what if a sync did nothing with probability N: this must fail,
                 or the test is blind.  With N < 1 only the order of writes is
                 looked at, not what flushes promised
"""

import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True

from client import Client
from recording import Disk, Fate, Recording, RecordingError
from scenarios import (IMAGE, JOBS, KINDS, STACKS, create, is_possible,
                       job_is_possible, qemu_img)
from shadow import Shadow, parse
from stack import (CLEAN, LEAKS, PATIENCE, Failure, NotStarted, Server, contents,
                   is_dirty, own_check, own_job, qemu_check, repair, said)


# Calls, error, how many (0: from then on all).
FAULTS = ([(calls, error, count) for calls in "rwsft"
           for error in ("EIO", "ENOSPC") for count in (1, 0)] +
          [(calls, "SHORT", count) for calls in "rw" for count in (1, 0)] +
          [(calls, "EINTR", 3) for calls in "rwsft"])
# The first one of them is below.
FAULT_RANGE = {"r": 60, "w": 300, "s": 30, "f": 8, "t": 3}


class Case:
    """One image that goes through several rounds."""

    def __init__(self, options, name, kind):
        self.options = options
        self.name = name
        self.kind = KINDS[kind]
        self.rnd = random.Random("%s %d" % (name, options.seed))
        self.top = tempfile.mkdtemp(prefix="power.")
        self.live = os.path.join(self.top, "live")
        self.cut = os.path.join(self.top, "cut")
        self.log = os.path.join(self.top, "log")
        os.mkdir(self.live)
        os.mkdir(self.cut)
        self.next_id = 10
        self.snapshots = {}     # name -> contents
        self.cuts = 0
        self.acknowledged = 0
        self.failed = 0
        self.fault = ""
        create(self.kind, self.live)
        self.initial = contents(self.live, self.kind)

    def close(self):
        shutil.rmtree(self.top)

    def take_snapshot(self, name):
        qemu_img("snapshot", "-c", name, IMAGE, cwd=self.live)
        self.snapshots[name] = contents(self.live, self.kind)

    # --- One round ---

    def load(self, args, requests, kill=False, fault=None):
        """Serve and write.  Returns the client."""
        server = Server(self.live, args, self.log, self.kind.files(),
                        fault=fault)
        try:
            return self.load_from(server, requests, kill, fault)
        except BaseException:
            server.process.kill()
            raise

    def load_from(self, server, requests, kill, fault):
        client = Client("nbd+unix:///?socket=" + server.sock, self.log,
                        self.rnd.randrange(1 << 30), self.next_id,
                        self.kind.cluster)
        if kill:
            killer = subprocess.Popen(
                ["sh", "-c", "sleep %f; kill -9 %d" %
                 (self.rnd.uniform(.05, 1), server.process.pid)])
            client.run(1 << 30)
            killer.wait()
            server.wait()
        else:
            if not client.run(requests):
                raise Failure("the server went away")
            if client.failed and not fault:
                raise Failure("%d requests failed" % client.failed)
            client.close(flush=self.rnd.random() < .5)
            if server.stop() != 0:
                raise Failure("the server did not end well")
        client.abandon()
        self.next_id = client.next_id
        self.acknowledged += client.acknowledged
        return client

    def moments(self, recording, count):
        """Times of cuts: anywhere, and often around a sync."""
        times = []
        for _ in range(count):
            if recording.syncs and self.rnd.random() < .6:
                t = (self.rnd.choice(recording.syncs) +
                     self.rnd.choice((-3, -2, -1, 0, 1, 1, 2, 3)))
            else:
                t = self.rnd.randrange(recording.length + 1)
            times.append(min(max(t, 0), recording.length + 1))
        return sorted(times)

    def read_files(self):
        out = []
        for name in self.kind.files():
            with open(os.path.join(self.live, name), "rb") as f:
                out.append(f.read())
        return out

    def put_files(self, directory, files):
        for name, data in zip(self.kind.files(), files):
            with open(os.path.join(directory, name), "wb") as f:
                f.write(data)

    def shadow(self, recording, client):
        return Shadow(parse(self.initial), recording.client,
                      client.zeroes if client else frozenset(),
                      not 0 < self.options.lie < 1)

    def power_cuts(self, before, client, verify, count=None):
        """Cut the power while the log was made.  BEFORE: the files at its
        beginning.  Returns the files of one of the cuts, and the disk."""
        recording = Recording(self.log, len(before), self.options.lie)
        shadow = self.shadow(recording, client)
        disks = [Disk(b, r) for b, r in zip(before, recording.files)]
        times = self.moments(recording, count or self.options.cuts)
        chosen = self.rnd.randrange(len(times))
        keep = None
        for i, now in enumerate(times):
            mode = self.rnd.choice(Fate.MODES)
            self.what = "%scut before record %d of %d, %s" % (
                self.fault, now, recording.length, mode)
            fate = Fate(self.rnd, mode)
            files = [d.cut(now, fate) for d in disks]
            self.put_files(self.cut, files)
            shadow.advance(now)
            said.clear()
            data = verify(self.cut, shadow, i)
            self.cuts += 1
            if i == chosen:
                keep = files, data
        return keep

    # --- What must be true of an image after a crash ---

    def verify_metadata(self, directory, number, may_be_dirty):
        """Leaks only; errors must have been announced by the dirty bit (of
        which version 2 has none), and a repair cures them."""
        codes = (own_check(directory, self.kind),
                 qemu_check(directory, self.kind))
        if may_be_dirty and is_dirty(directory):
            repair(directory, self.kind, number % 2)
            codes = (own_check(directory, self.kind),
                     qemu_check(directory, self.kind))
            if codes != (CLEAN, CLEAN):
                raise Failure("after the repair our check says %d, "
                              "qemu-img %d" % codes)
        if codes not in ((CLEAN, CLEAN), (LEAKS, LEAKS)):
            raise Failure("our check says %d, qemu-img %d" % codes)

    def verify(self, directory, shadow, number):
        kind = self.kind
        self.verify_metadata(directory, number, kind.has("lazy"))
        data = contents(directory, kind, ours=number % 4 == 1)
        difference = shadow.compare(data)
        if difference:
            raise Failure(difference)
        self.verify_snapshots(directory, number)
        if kind.has("bitmaps"):
            self.verify_bitmaps(directory, shadow, data)
        if number % 8 == 2:
            self.verify_repair(directory, data)
        return data

    def verify_snapshots(self, directory, number):
        for name, data in self.snapshots.items():
            if contents(directory, self.kind, number % 4 == 3,
                        name) != data:
                raise Failure("snapshot %s has changed" % name)

    def verify_bitmaps(self, directory, shadow, data):
        """A bitmap that is not in use says that nothing was changed since:
        wrong from the first write to the end."""
        info = subprocess.run(
            ["qemu-img", "info", "--output=json",
             os.path.join(directory, IMAGE)], check=True, timeout=PATIENCE,
            stdout=subprocess.PIPE)
        bitmap, = (json.loads(info.stdout)["format-specific"]["data"]
                   ["bitmaps"])
        if (not shadow.closing and "in-use" not in bitmap["flags"] and
                shadow.changed(data)):
            raise Failure("the disk has changed, but its bitmap is not in "
                          "use")

    def verify_repair(self, directory, data):
        own_job(directory, self.kind, "repair=leaks")
        if (own_check(directory, self.kind) != CLEAN or
                qemu_check(directory, self.kind) != CLEAN):
            raise Failure("not clean after repair=leaks")
        if contents(directory, self.kind) != data:
            raise Failure("repair=leaks has changed the disk")

    def verify_clean(self, client=None):
        """After a clean end: the image itself."""
        kind = self.kind
        self.what = "clean end"
        said.clear()
        codes = own_check(self.live, kind), qemu_check(self.live, kind)
        # What an earlier cut leaked stays.
        allowed = (CLEAN, LEAKS) if self.cuts else (CLEAN,)
        if codes[0] != codes[1] or codes[0] not in allowed:
            raise Failure("our check says %d, qemu-img %d" % codes)
        if client:
            shadow = self.shadow(Recording(self.log, len(kind.files())),
                                 client)
            shadow.settle()
            difference = shadow.compare(contents(self.live, kind))
            if difference:
                raise Failure(difference)

    # --- Kinds of cases ---

    def stack(self, name):
        """Arguments of nbdkit."""
        filters, parameters = STACKS[name]
        return (["--filter=" + f for f in filters] + ["qcow2", IMAGE] +
                self.kind.parameters + parameters)

    def run_load(self, stack):
        args = self.stack(stack)
        for n in range(self.options.rounds):
            if self.kind.has("snapshots") and n % 2 == 0:
                self.take_snapshot("s%d" % n)
            before = self.read_files()
            client = self.load(args, self.options.requests)
            self.verify_clean(client)
            files, data = self.power_cuts(before, client, self.verify)
            self.put_files(self.live, files)
            self.initial = data

    def run_faults(self, stack):
        """System calls fail: nothing that a flush confirmed is lost, and the
        next server finds an image that has leaks at most.  Also if power
        fails as well."""
        args = self.stack(stack)
        faults = list(FAULTS)
        self.rnd.shuffle(faults)
        for n, (calls, error, count) in enumerate(faults[:self.options.cuts]):
            first = self.rnd.randrange(FAULT_RANGE[calls])
            fault = "%s,%s,%d,%d" % (calls, error, first, count)
            self.fault = "fault %s, " % fault
            self.what = self.fault + "no cut"
            said.clear()
            before = self.read_files()
            try:
                client = self.load(args, self.options.requests, fault=fault)
            except NotStarted:
                self.cuts += 1
                continue
            recording = Recording(self.log, len(self.kind.files()))
            shadow = self.shadow(recording, client)
            if error == "EINTR" or error == "SHORT":
                # No error at all: the call is to be repeated.
                if client.failed:
                    raise Failure("%d requests failed" % client.failed)
                shadow.settle()
            else:
                shadow.advance(recording.length)
            self.failed += client.failed
            data = self.verify(self.live, shadow, n)
            self.power_cuts(before, client, self.verify, 1)
            self.initial = data

    def run_kill(self, stack):
        args = self.stack(stack)
        for n in range(self.options.rounds):
            if self.kind.has("snapshots") and n % 2 == 0:
                self.take_snapshot("s%d" % n)
            self.what = "kill number %d" % n
            client = self.load(args, 0, kill=True)
            recording = Recording(self.log, len(self.kind.files()),
                                  killed=True)
            shadow = self.shadow(recording, client)
            shadow.advance(recording.length)
            self.initial = self.verify(self.live, shadow, n)
            self.cuts += 1

    def run_job(self, job):
        prepare, parameters = JOBS[job]
        args = ["qcow2", IMAGE, *self.kind.parameters]
        self.load(args, self.options.requests)
        self.initial = contents(self.live, self.kind)
        old = self.initial
        if prepare:
            own_job(self.live, self.kind, *prepare)
            self.snapshots["old"] = old
            # The disk moves on, so that snapshot and disk differ.
            self.load(args, self.options.requests // 4)
            self.initial = contents(self.live, self.kind)
        if job == "repair":
            self.leave_leaks(args)
        before = self.read_files()
        self.what = "the job itself"
        server = Server(self.live, args + parameters, self.log,
                        self.kind.files(), run="true")
        if server.wait() != 0:
            raise Failure("the job failed")
        after = contents(self.live, self.kind)
        if job == "snapshot-delete":
            del self.snapshots["old"]
        self.verify_clean()
        self.power_cuts(before, None,
                        lambda d, shadow, n: self.verify_job(d, n, after))

    def leave_leaks(self, args):
        """An image as a power cut leaves it, for repair."""
        before = self.read_files()
        client = self.load(args, self.options.requests)
        files, self.initial = self.power_cuts(before, client, self.verify, 3)
        self.put_files(self.live, files)

    def verify_job(self, directory, number, after):
        """The disk is as before or as after, nothing in between."""
        kind = self.kind
        self.verify_metadata(directory, number, True)
        data = contents(directory, kind, ours=number % 4 == 1)
        if data not in (self.initial, after):
            raise Failure("the disk is neither as before nor as after: %d "
                          "bytes" % len(data))
        self.verify_snapshots(directory, number)
        if number % 4 == 2:
            self.verify_repair(directory, data)
        return data


def run_case(options, word):
    first, second = word.split(":")
    kind = first if options.job else second
    case = Case(options, word, kind)
    start = time.time()
    case.what = "preparation"
    try:
        if options.job:
            case.run_job(second)
        elif options.kill:
            case.run_kill(first)
        elif options.fault:
            case.run_faults(first)
        else:
            case.run_load(first)
    except (Failure, RecordingError, RuntimeError,
            subprocess.SubprocessError) as e:
        print("".join(said))
        print("%s, seed %d: %s: %s" % (word, options.seed, case.what, e))
        if options.keep:
            shutil.copytree(case.top, tempfile.mkdtemp(dir=options.keep),
                            dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("sock"))
        return 0, False
    finally:
        case.close()
    what = ("faults" if options.fault else "kills" if options.kill
            else "cuts")
    print("%s: %d %s, %d requests, %d failed, %.1f seconds" %
          (word, case.cuts, what, case.acknowledged, case.failed,
           time.time() - start))
    sys.stdout.flush()
    return case.cuts, True


def everything(options):
    """Endless (options, word) of all that there is, in random order."""
    loads = [stack + ":" + kind for kind in KINDS for stack in STACKS
             if is_possible(stack, kind)]
    cases = [(how, word) for word in loads
             for how in ({}, {"kill": True}, {"fault": True})]
    cases += [({"job": True}, kind + ":" + job) for kind in KINDS
              for job in JOBS if job_is_possible(kind, job)]
    while True:
        random.Random(options.seed).shuffle(cases)
        yield from cases
        options.seed += 1


NAMES = {"cut": "power cuts", "job": "power cuts during jobs",
         "kill": "kills", "fault": "faults"}


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("case", nargs="*")
    p.add_argument("--job", action="store_true")
    p.add_argument("--kill", action="store_true")
    p.add_argument("--fault", action="store_true")
    p.add_argument("--all", action="store_true")
    p.add_argument("--minutes", type=float, default=15)
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--cuts", type=int, default=4)
    p.add_argument("--requests", type=int, default=300)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--keep")
    p.add_argument("--lie", type=float, default=0)
    options = p.parse_args()
    words = (everything(options) if options.all
             else (({}, w) for w in options.case))
    end = time.time() + 60 * options.minutes
    total = collections.Counter()
    bad = cases = 0
    for more, word in words:
        if options.all and time.time() > end:
            break
        opts = argparse.Namespace(**{**vars(options), **more})
        cuts, good = run_case(opts, word)
        total["job" if opts.job else "kill" if opts.kill else
              "fault" if opts.fault else "cut"] += cuts
        cases += 1
        bad += not good
    print("%d cases, %d failures; %s" % (
        cases, bad, ", ".join("%d %s" % (n, NAMES[what])
                              for what, n in total.items())))
    sys.exit(1 if bad else 0)


main()
