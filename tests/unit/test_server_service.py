"""Service: what it adds to a request, and what it keeps to itself. Its pool is made up here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from fake_service import LOADED
from msgspec.structs import replace

from edgellm import presets
from edgellm.config import Settings
from edgellm.contracts.events import Event, Failed, Started
from edgellm.contracts.request import GenerateRequest, Sampling, Text
from edgellm.contracts.status import LoadedModel
from edgellm.engine.admission import Wanted
from edgellm.errors import BadModelFile, InvalidName, NotFound
from edgellm.library.pull import pull
from edgellm.paths import Paths, default_paths
from edgellm.placement.machine import Memory
from edgellm.service import Service


class Pool:
    """Remembers what it was asked; answers with `events`."""

    def __init__(self) -> None:
        self.asked: list[tuple[Wanted, GenerateRequest]] = []
        self.events: list[Event] = [Started(1, 0, 1)]
        self.models: list[LoadedModel] = []

    async def generate(self, wanted: Wanted, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.asked.append((wanted, request))
        for event in self.events:
            yield event

    def loaded(self) -> list[LoadedModel]:
        return self.models

    async def stop(self, name: str) -> bool:
        return name in [model.name for model in self.models]


@pytest.fixture
def paths(home: Path, smollm2: Path) -> Paths:
    """A store with one model, whose blob is a link: its contents are not the point."""
    paths = default_paths()
    manifest = pull(str(smollm2), name="small", paths=paths, report=lambda _: None).manifest
    blob = paths.models / "blobs" / manifest.model.digest.replace(":", "-")
    blob.unlink()
    blob.symlink_to(smollm2)
    return paths


def made(paths: Paths, settings: Settings | None = None, card: Sampling | None = None) -> tuple[Service, Pool]:
    service, pool = Service(settings or Settings(), paths), Pool()
    service._pool = pool  # type: ignore[assignment]
    if card is not None:
        manifest = replace(service._store.require("small"), sampling=card)
        service._store.require = lambda text: manifest  # type: ignore[method-assign]
    return service, pool


def events_of(service: Service, **fields: Any) -> list[Event]:
    request = replace(GenerateRequest(id="r", model="small", prompt=Text("hi")), **fields)

    async def collect() -> list[Event]:
        return [event async for event in service.generate(request)]

    return asyncio.run(collect())


def test_what_a_request_leaves_open_is_filled_in(paths: Paths) -> None:
    service, pool = made(paths, Settings(temperature=0.3, top_p=0.7, top_k=11))
    events_of(service, sampling=Sampling(top_p=0.5))
    events_of(service, sampling=Sampling(top_p=0.5, seed=9))
    (wanted, first), (_, second) = pool.asked
    assert (wanted.name, first.model) == ("small:latest", "small:latest")
    assert (first.sampling.temperature, first.sampling.top_p, first.sampling.top_k) == (0.3, 0.5, 11)
    assert first.sampling.seed is not None
    assert second.sampling.seed == 9
    drawn = {pool.asked[-1][1].sampling.seed for _ in range(4) if events_of(service)}
    assert len(drawn) == 4


CARD = Sampling(temperature=0.2, top_p=0.8)


@pytest.mark.parametrize(
    ("settings", "card", "asked", "preset", "temperature", "top_p", "top_k"),
    [
        (Settings(), Sampling(), Sampling(), None, 0.7, 0.9, 50),
        (Settings(preset="creative"), Sampling(), Sampling(), None, 1.0, 0.95, 50),
        (Settings(preset="creative", temperature=0.4), Sampling(), Sampling(), None, 0.4, 0.95, 50),
        (Settings(preset="creative", temperature=0.4), CARD, Sampling(), None, 0.2, 0.8, 50),
        (Settings(temperature=0.4, top_k=7), CARD, Sampling(), "code", 0.0, 1.0, 50),
        (Settings(), CARD, Sampling(temperature=0.9), "strict", 0.9, 0.9, 50),
        (Settings(), CARD, Sampling(top_k=0), "maths", 0.0, 1.0, 0),
    ],
)
def test_sampling_comes_from_the_first_that_says_it(
    settings: Settings,
    card: Sampling,
    asked: Sampling,
    preset: str | None,
    temperature: float,
    top_p: float,
    top_k: int,
    paths: Paths,
) -> None:
    service, pool = made(paths, settings, card)
    events_of(service, sampling=asked, preset=preset)
    sampling = pool.asked[0][1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (temperature, top_p, top_k)


def test_an_unknown_preset_fails_with_those_that_are_known(paths: Paths) -> None:
    service, _ = made(paths)
    (event,) = events_of(service, preset="poetry")
    assert isinstance(event, Failed)
    assert (event.error.param, event.error.code) == ("preset", "invalid_request")
    assert all(name in event.error.message for name in presets.NAMES)


@pytest.mark.parametrize(
    ("setting", "asked", "limit"),
    [(0.0, None, None), (0.0, 5.0, 5.0), (3.0, None, 3.0), (3.0, 5.0, 3.0), (3.0, 1.0, 1.0)],
)
def test_the_shorter_time_limit_holds(paths: Paths, setting: float, asked: float | None, limit: float | None) -> None:
    service, pool = made(paths, Settings(request_timeout_s=setting))
    events_of(service, timeout_s=asked)
    assert pool.asked[0][1].timeout_s == limit


def test_a_model_that_is_not_there_fails_as_an_event(paths: Paths) -> None:
    service, pool = made(paths)
    (event,) = events_of(service, model="smal")
    assert isinstance(event, Failed)
    assert event.error.code == "not_found"
    assert "small" in (event.error.hint or "")
    assert not pool.asked
    with pytest.raises(InvalidName):
        service.model("../../etc/passwd")


def test_folders_of_ours_stay_here(paths: Paths) -> None:
    service, pool = made(paths)
    error = BadModelFile(f"{paths.models}/blobs/sha256-0: magic is wrong", hint=f"look into {paths.logs}/daemon.log")
    pool.events = [Failed(error.info)]
    (event,) = events_of(service)
    assert isinstance(event, Failed)
    assert str(paths.data) not in event.error.message + (event.error.hint or "")
    assert "magic is wrong" in event.error.message


def test_cards(paths: Paths) -> None:
    service, _ = made(paths)
    (card,) = service.models()
    assert card == service.model("small")
    assert (card.name, card.parameters, card.quantization, card.context) == (
        "small:latest",
        134_515_008,
        "Q4_1",
        8192,
    )
    assert card.fingerprint.startswith("fp_")
    assert (paths.models / "manifests" / "small" / "latest.json").exists()


def test_a_plan_says_which_engine_and_how_much_room(paths: Paths) -> None:
    service, pool = made(paths, Settings(context=512, threads=3, queue_requests=7))
    events_of(service)
    plan = pool.asked[0][0].plan(Memory(16 << 30, 8 << 30))
    assert (plan.load.engine, plan.load.model) == ("llamacpp", "small:latest")
    assert (plan.load.placement.context, plan.load.placement.threads) == (512, 3)
    assert plan.load.limits.queue_requests == 7
    assert 90 << 20 < plan.size < 1 << 30


def test_stopping(paths: Paths) -> None:
    service, pool = made(paths)
    assert asyncio.run(service.stop("small")) is False
    pool.models = [replace(LOADED, name="small:latest")]
    assert asyncio.run(service.stop("small")) is True
    with pytest.raises(NotFound):
        asyncio.run(service.stop("other"))


def test_health_is_as_bad_as_its_worst_model(paths: Paths) -> None:
    service, pool = made(paths)
    assert service.health().status == "ok"
    for states, status in (
        (["ready"], "ok"),
        (["ready", "loading"], "loading"),
        (["loading", "restarting"], "degraded"),
        (["failed", "ready"], "degraded"),
    ):
        pool.models = [replace(LOADED, name=str(i), state=s) for i, s in enumerate(states)]
        assert service.health().status == status
    assert service.health().models["0"].state == "failed"
