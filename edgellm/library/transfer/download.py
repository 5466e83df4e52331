"""Fetches one remote file into a target: workers write ranges, the calling thread hashes behind them and reports.

The digest is known when the last byte is: the caller reads each piece back, in order, as soon as it is whole (it is
still in memory then), checks it against the table and adds it. A resumed file is read from its start meanwhile.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec

from edgellm import units
from edgellm.errors import ChecksumMismatch, DownloadFailed, EdgeError
from edgellm.library.staging import PullProgress, Report
from edgellm.library.transfer.faults import Trouble, too_busy
from edgellm.library.transfer.leases import SPAN, Lease, Leases
from edgellm.library.transfer.link import Link, NoRanges
from edgellm.library.transfer.ranges import PIECE, RangeTable
from edgellm.library.transfer.silence import Silence
from edgellm.library.transfer.target import Target

_TICK_S: Final = 0.1
_JOIN_S: Final = 2.0


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """How hard to try. Times in seconds, sizes in bytes."""

    connections: int = 4
    small: int = 32 << 20  # a file up to this comes over one connection
    piece: int = PIECE
    span: int = SPAN
    stall_s: float = 20.0  # silence after which a connection is given up
    slow_s: float = 15.0  # a connection this long at a tenth of the best rate seen is given up too
    patience_s: float = 180.0  # without a single byte, as far as this process ran
    backoff_s: float = 0.5  # before the second try; doubles up to longest_backoff_s
    longest_backoff_s: float = 15.0
    longest_wait_s: float = 120.0  # that a server may ask for


class Download:
    """One file, once. `run` returns its digest; `table` and `target` say how far it came, however it ends."""

    def __init__(self, link: Link, target: Target, table: RangeTable, report: Report, tuning: Tuning) -> None:
        self._link = link
        self._target = target
        self._table = table
        self._report = report
        self._tuning = tuning
        self._leases = Leases(table, tuning.span)
        self._change = threading.Condition()  # guards all below, and the table
        self._stopped = False
        self._failure: BaseException | None = None
        self._workers = 1 if table.size <= tuning.small else tuning.connections
        self._pause_until = 0.0
        self._silence = Silence(tuning.stall_s + tuning.longest_backoff_s)
        self._best_rate = 0.0
        self._remark = ""
        self._suspects: set[int] = set()  # pieces of several connections or of an earlier process
        self._due = 0.0

    def run(self) -> str:
        """Fetch what is missing; the digest ("sha256:…") of the whole, flushed to disk.

        Raises ChecksumMismatch when it is not the announced one even after a second look, DownloadFailed, Overloaded,
        other EdgeErrors of the link, OSError of the disk. What has arrived stays accounted for.
        """
        self._examine_partial()
        digest = self._pass()
        expected = self._link.remote.sha256
        if expected is not None and digest != f"sha256:{expected}":
            digest = self._mended(digest, f"sha256:{expected}")
        self._target.sync()
        self._tell(final=True)
        return digest

    # The calling thread

    def _examine_partial(self) -> None:
        """Pieces that were begun before are kept as far as they are what the table says."""
        table = self._table
        for index in range(table.count):
            if table.done(index):
                self._suspects.add(index)
                partial = not table.whole(index)
                if partial and not table.matches(index, self._target.read(table.start(index), table.done(index))):
                    table.clear(index)

    def _pass(self) -> str:
        """Workers fetch, this thread hashes; the digest."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._workers)]
        self._stopped = False
        try:
            for thread in threads:
                thread.start()
            return self._hash_along()
        finally:
            with self._change:
                self._stopped = True
                self._change.notify_all()
            for thread in threads:
                thread.join(_JOIN_S)

    def _hash_along(self) -> str:
        digest, table = hashlib.sha256(), self._table
        for index in range(table.count):
            while True:
                self._await(index)
                data = self._target.read(table.start(index), table.length(index))
                with self._change:
                    if table.matches(index, data):
                        break
                    table.clear(index)  # the disk lost it: fetched again
                    self._change.notify_all()
            digest.update(data)
            self._tell()
        return f"sha256:{digest.hexdigest()}"

    def _await(self, index: int) -> None:
        """Until the piece is whole. Raises what made a worker fail."""
        with self._change:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._table.whole(index):
                    return
                self._watch()
                self._change.wait(_TICK_S)
                self._tell()

    def _watch(self) -> None:
        """Give up connections that crawl while others ran."""
        now, window = time.monotonic(), self._tuning.slow_s
        for lease in self._leases.active:
            rate = lease.rate(window, now)
            if rate is not None:
                self._best_rate = max(self._best_rate, rate)
                if rate < self._best_rate / 10 and not lease.cancelled:
                    lease.cancelled = True
                    self._best_rate /= 2  # where everything has become slow, this soon settles
                    self._remark = "a connection was too slow; trying another"

    def _tell(self, *, final: bool = False) -> None:
        now = time.monotonic()
        if final or now >= self._due:
            self._due = now + _TICK_S
            self._report(PullProgress("download", self._table.total, self._table.size, self._remark))

    # A digest that is wrong

    def _mended(self, digest: str, expected: str) -> str:
        """The digest after a second look: pieces that had trouble first, then the others."""
        everything = set(range(self._table.count))
        try:
            for group in (self._suspects, everything - self._suspects):
                if self._link.ranged and digest != expected and group and self._compared(sorted(group)):
                    digest = self._pass()
        except NoRanges:
            self._link.ranged = False
        if not self._link.ranged and digest != expected:
            for index in everything:
                self._table.clear(index)
            digest = self._pass()
        if digest != expected:
            raise ChecksumMismatch(
                f"{self._link.remote.name} from {self._link.host} is not the announced file: its digest is {digest},"
                f" expected {expected}",
                hint="nothing was stored. A mirror or proxy may alter it: try again, or another network",
            )
        return digest

    def _compared(self, indices: list[int]) -> bool:
        """Fetch pieces a second time and keep what came now where the two differ; whether any did."""
        changed, seen = False, 0
        total = sum(self._table.length(index) for index in indices)
        for index, data in self._fetched_again(indices):
            seen += len(data)
            self._report(PullProgress("verify", seen, total, "the digest is wrong; comparing with a second copy"))
            if not self._table.matches(index, data):
                changed = True
                self._target.write(self._table.start(index), data)
                self._table.clear(index)
                self._table.add(index, data)
        return changed

    def _fetched_again(self, indices: list[int]) -> Iterator[tuple[int, bytes]]:
        """Second copies of pieces, in order; neighbours come in one request."""
        todo, failures = deque(indices), 0
        self._silence.broken()
        while todo:
            before = len(todo)
            try:
                yield from self._neighbours(todo)
                continue
            except Trouble as caught:
                trouble = caught
            failures = 0 if len(todo) < before else failures + 1
            wait = self._wait(trouble, failures)
            if self._silence.failed() + wait > self._tuning.patience_s:
                raise self._given_up(trouble)
            time.sleep(wait)

    def _neighbours(self, todo: deque[int]) -> Iterator[tuple[int, bytes]]:
        """The first of `todo` and those that follow it without a gap, taken off as they are whole."""
        table = self._table
        last = todo[0]
        while last + 1 in todo and table.start(last + 1) - table.start(todo[0]) < self._tuning.span:
            last += 1
        held = bytearray()
        with self._link.open(table.start(todo[0]), table.start(last) + table.length(last), table.size) as pieces:
            for data in pieces:
                self._silence.broken()
                held += data
                while todo and todo[0] <= last and len(held) >= table.length(todo[0]):
                    index = todo.popleft()
                    yield index, bytes(held[: table.length(index)])
                    del held[: table.length(index)]
        if todo and todo[0] <= last:
            raise Trouble(f"the connection to {self._link.host} ended early")

    # Workers

    def _work(self) -> None:
        """Fetch leases until nothing is missing. A worker that fails says so to the calling thread."""
        target = self._target.again()
        failures = 0
        try:
            while (lease := self._next()) is not None:
                before, trouble = lease.pos, None
                try:
                    self._fetch(lease, target)
                except NoRanges:
                    self._link.ranged = False
                except Trouble as caught:
                    trouble = caught
                finally:
                    with self._change:
                        self._leases.release(lease)
                        if lease.pos - before >= self._table.piece:  # less may have waited in a buffer
                            self._best_rate = max(self._best_rate, lease.overall_rate(time.monotonic()))
                        self._change.notify_all()
                failures = failures + 1 if trouble and lease.pos == before else 0
                if trouble:
                    self._rest(trouble, failures)
        except BaseException as error:  # for the calling thread to raise, unless it has gone itself
            with self._change:
                self._failure = self._failure or error
                self._change.notify_all()
        finally:
            target.close()

    def _next(self) -> Lease | None:
        """The next lease, when there is one and the server lets us; None at the end."""
        with self._change:
            while not (self._stopped or self._failure is not None):
                pause = self._pause_until - time.monotonic()
                if pause > 0:
                    self._change.wait(min(pause, 1.0))
                    continue
                if (lease := self._take()) is not None:
                    return lease
                self._change.wait(1.0)
            return None

    def _take(self) -> Lease | None:
        if self._table.complete:
            return None
        if self._link.ranged:
            return self._leases.take() if len(self._leases.active) < self._workers else None
        if self._leases.active:  # one connection, from the first byte
            return None
        lease = Lease(0, self._table.size, time.monotonic())
        self._leases.active.append(lease)
        return lease

    def _fetch(self, lease: Lease, target: Target) -> None:
        with self._change:
            if self._link.ranged and self._table.done(lease.pos // self._table.piece):
                self._suspects.add(lease.pos // self._table.piece)
        with self._link.open(lease.pos, lease.end, self._table.size) as pieces:
            for data in pieces:
                if not self._write(lease, target, data):
                    return
        if lease.pos < lease.end:
            raise Trouble(f"the connection to {self._link.host} ended early")

    def _write(self, lease: Lease, target: Target, data: bytes) -> bool:
        """Put bytes in their place, piece by piece; False when the lease has ended."""
        view = memoryview(data)
        while view:
            with self._change:
                if self._stopped or lease.cancelled or lease.pos >= lease.end:
                    return False
                index, inside = divmod(lease.pos, self._table.piece)
                here = self._table.done(index)
            part = view[: self._table.length(index) - inside]
            # A whole file sent anew brings what is here already, too.
            fresh = part[here - inside :] if inside <= here else part[:0]
            if fresh:
                target.write(lease.pos + len(part) - len(fresh), fresh)
            with self._change:
                if self._stopped:
                    return False
                if fresh:
                    self._table.add(index, fresh)
                lease.pos += len(part)
                self._silence.broken()
                self._remark = ""
                if self._table.whole(index):
                    self._change.notify_all()
            view = view[len(part) :]
        return True

    def _rest(self, trouble: Trouble, failures: int) -> None:
        """Wait before the next try; raises DownloadFailed or Overloaded when there is to be none."""
        wait = self._wait(trouble, failures)
        with self._change:
            now = time.monotonic()
            self._remark = f"{trouble.message}; trying again"
            if trouble.wait_s is not None:
                self._workers = max(1, self._workers // 2)
                self._pause_until = max(self._pause_until, now + wait)
                self._silence.excuse(wait)
                self._remark = f"{self._link.host} asks to wait {units.seconds(wait, whole=True)}"
            elif self._silence.failed() + wait > self._tuning.patience_s:
                raise self._given_up(trouble)
            self._change.wait_for(lambda: self._stopped, wait)

    def _wait(self, trouble: Trouble, failures: int) -> float:
        if trouble.wait_s is not None:
            if trouble.wait_s > self._tuning.longest_wait_s:
                raise too_busy(trouble, trouble.wait_s)
            return trouble.wait_s
        return min(self._tuning.backoff_s * 2 ** min(failures, 10), self._tuning.longest_backoff_s) if failures else 0.0

    def _given_up(self, trouble: Trouble) -> EdgeError:
        have = f"{units.size(self._table.total)} of {units.size(self._table.size)}"
        return DownloadFailed(
            f"cannot download {self._link.remote.name}: {trouble.message}",
            hint=f"{have} are here and stay: the same command goes on from there. HTTPS_PROXY names a proxy",
        )
