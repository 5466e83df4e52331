"""When a daemon in the background lets another take its place."""

from __future__ import annotations

import asyncio

import pytest
from fake_service import FakeService

from edgellm.contracts.request import GenerateRequest, Text
from edgellm.server import front
from edgellm.server.front import Front

REQUEST = GenerateRequest(id="1", model="fake", prompt=Text("hi"))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "JUST_S", 0.2)


async def _answer(told: Front) -> None:
    async for _ in told.generate(REQUEST, told.model("fake")):
        pass


def test_it_waits_out_the_moment_that_its_last_asker_has() -> None:
    async def leaves() -> bool:
        told = Front(FakeService(), replaceable=True)
        await _answer(told)
        return await asyncio.wait_for(told.may_leave(), 60)

    assert asyncio.run(leaves())


def test_it_stays_for_who_asks_in_that_moment() -> None:
    async def leaves() -> bool:
        told = Front(FakeService(), replaceable=True)
        leaving = asyncio.create_task(told.may_leave())
        await asyncio.sleep(0)
        await _answer(told)
        return await asyncio.wait_for(leaving, 60)

    assert not asyncio.run(leaves())


def test_one_in_the_foreground_stays() -> None:
    assert not asyncio.run(Front(FakeService()).may_leave())
