"""Parts of a download by themselves: the account of bytes, leases, what network faults mean."""

from __future__ import annotations

import random
import socket
import ssl
import tempfile
import zlib
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.errors import DownloadFailed
from edgellm.library.transfer import faults
from edgellm.library.transfer.faults import Trouble, network_fault, retry_after
from edgellm.library.transfer.leases import Lease, Leases
from edgellm.library.transfer.ranges import RangeTable, bytes_done

HOST = "hub.example"


def test_the_account_survives(tmp_path: Path) -> None:
    path, data = tmp_path / "0.ranges", bytes(range(250))
    table = RangeTable(path, 250, 100)
    table.add(0, data[:60])
    table.add(0, memoryview(data)[60:100])
    table.add(2, data[200:230])
    again = RangeTable(path, 250, 100)  # as after a kill: nobody closed it
    assert [again.done(index) for index in range(3)] == [100, 0, 30]
    assert (again.total, again.complete, again.whole(0), again.whole(2)) == (130, False, True, False)
    assert again.matches(0, data[:100])
    assert not again.matches(0, data[1:101])
    assert not again.matches(2, data[200:229])
    assert bytes_done(path) == 130
    again.clear(0)
    again.add(1, data[100:200])
    assert bytes_done(path) == 130
    table.close()
    again.close()


@pytest.mark.parametrize("damage", [b"", b"x" * 7, b"\xff" * 24])
def test_an_account_that_makes_no_sense_is_begun_anew(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "0.ranges"
    path.write_bytes(damage)
    table = RangeTable(path, 250, 100)
    assert table.total == 0
    table.close()
    assert bytes_done(tmp_path / "absent") == 0


@settings(max_examples=25)
@given(st.integers(1, 500), st.integers(1, 97), st.integers(1, 400), st.integers(0, 2**32))
def test_leases_fetch_every_byte_once(size: int, piece: int, span: int, seed: int) -> None:
    """Workers take, move, break off and give back at random: in the end each byte was written exactly once."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        table = RangeTable(Path(folder) / "ranges", size, piece)
        try:
            drive(table, Leases(table, span), dice.randbytes(size), dice)
        finally:
            table.close()


def drive(table: RangeTable, leases: Leases, data: bytes, dice: random.Random) -> None:
    seen = bytearray(table.size)
    for _ in range(50_000):
        if table.complete:
            break
        if not leases.active or (len(leases.active) < 4 and dice.random() < 0.4):
            assert leases.take() is not None or leases.active
            continue
        spans = sorted((lease.pos, lease.end) for lease in leases.active if lease.pos < lease.end)
        assert all(one[1] <= two[0] for one, two in pairwise(spans))
        move(dice.choice(leases.active), table, leases, data, seen, dice)
    assert table.complete
    assert all(count == 1 for count in seen)
    piece = table.piece
    assert all(table.matches(i, data[i * piece : (i + 1) * piece]) for i in range(table.count))


def move(lease: Lease, table: RangeTable, leases: Leases, data: bytes, seen: bytearray, dice: random.Random) -> None:
    """Write some bytes of a lease, within one piece, or end it."""
    if lease.pos >= lease.end or dice.random() < 0.05:
        leases.release(lease)
        return
    index, inside = divmod(lease.pos, table.piece)
    count = min(dice.randint(1, 90), table.length(index) - inside)
    table.add(index, data[lease.pos : lease.pos + count])
    for pos in range(lease.pos, lease.pos + count):
        seen[pos] += 1
    lease.pos += count


def test_the_last_bytes_are_shared(tmp_path: Path) -> None:
    table = RangeTable(tmp_path / "ranges", 1000, 100)
    leases = Leases(table, 10_000)
    first = leases.take()
    assert first is not None
    assert (first.pos, first.end) == (0, 1000)
    second = leases.take()
    assert second is not None
    assert (first.end, second.pos, second.end) == (500, 500, 1000)
    third = leases.take()
    assert third is not None
    assert third.end - third.pos >= 100
    table.close()


def test_rates() -> None:
    lease = Lease(0, 10_000, 0.0)
    assert lease.rate(5.0, 1.0) is None
    for second in range(1, 11):
        lease.pos = 100 * second
        rate = lease.rate(5.0, float(second))
    assert rate == pytest.approx(100)
    lease.pos = 1000
    assert lease.rate(5.0, 17.0) == pytest.approx(0.0, abs=20)
    assert lease.overall_rate(10.0) == pytest.approx(100)


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


CERTIFICATE = ssl.SSLCertVerificationError(1, "certificate verify failed")
FAULTS: dict[str, tuple[Exception, type[Exception], str]] = {
    "certificate": (caused(httpx2.ConnectError("x"), CERTIFICATE), DownloadFailed, "certificate of hub.example"),
    "no TLS": (
        caused(httpx2.ConnectError("x"), ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]")),
        DownloadFailed,
        "does not speak TLS",
    ),
    "DNS": (caused(httpx2.ConnectError("x"), socket.gaierror(-2, "Name not known")), Trouble, "cannot be resolved"),
    "refused": (caused(httpx2.ConnectError("x"), ConnectionRefusedError(111, "refused")), Trouble, "broke (refused)"),
    "proxy": (httpx2.ProxyError("407 Auth"), Trouble, "proxy refuses"),
    "silence": (httpx2.ReadTimeout("x"), Trouble, "stopped sending"),
    "no answer": (httpx2.ConnectTimeout("x"), Trouble, "does not answer"),
    "scheme": (httpx2.UnsupportedProtocol("ftp"), DownloadFailed, "cannot fetch"),
    "protocol": (httpx2.RemoteProtocolError("peer closed\x1b[2J"), Trouble, "peer closed"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_network_faults(case: str) -> None:
    error, kind, expected = FAULTS[case]
    found = network_fault(error, HOST)
    assert type(found) is kind
    assert expected in found.message
    assert "\x1b" not in found.message
    if isinstance(found, DownloadFailed):
        assert found.hint
    if case == "certificate":
        assert isinstance(found, DownloadFailed)
        assert "SSL_CERT_FILE" in (found.hint or "")


def test_retry_after() -> None:
    assert retry_after("7") == 7
    assert retry_after(None) is None
    assert retry_after("soon") is None
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert (retry_after("Wed, 21 Oct 2099 07:28:00 GMT") or 0) > 1e6
    assert len(faults.said(ValueError("x" * 1000))) <= 200
    assert zlib.crc32(b"ab") == zlib.crc32(b"b", zlib.crc32(b"a"))  # what the account rests on
