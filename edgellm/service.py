"""The composition root: the only place where store, engines, placement and workers are wired together.

What answers come from here is decided here; how they travel (HTTP, a terminal) is above, how they are made below.
Importing it is cheap: the daemon starts a model's worker before it imports its web framework.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from edgellm import __version__
from edgellm.config import Settings
from edgellm.contracts.embedding import EmbedRequest
from edgellm.contracts.engine import ENGINE_STATE, ModelFile
from edgellm.contracts.events import Event, Failed
from edgellm.contracts.request import GenerateRequest, Sampling
from edgellm.contracts.status import Health, LoadedModel
from edgellm.engine.admission import ModelPlan, Wanted
from edgellm.engine.limits import Limits
from edgellm.engine.patience import Supervision
from edgellm.engine.pool import ModelPool
from edgellm.engine.protocol import Load, Request
from edgellm.engine.supervisor import LocalModel
from edgellm.errors import EdgeError, ErrorInfo, LoadFailed
from edgellm.library.kinds import require_embeddings, require_text
from edgellm.library.manifest import Manifest
from edgellm.library.store import Store
from edgellm.paths import Paths
from edgellm.placement import machine
from edgellm.placement.embedding import place_embedder
from edgellm.placement.plan import as_trained, make_plan
from edgellm.plugins import embedder_for, engine_for
from edgellm.presets import preset
from edgellm.units import MIB

SEED_BITS = 32  # short enough to copy, and exact in JavaScript


class ModelCard(msgspec.Struct, frozen=True):
    """A model in the store, as those who ask for it see it."""

    name: str  # in full, with its tag
    created: int  # Unix time it was pulled
    size: int  # bytes
    parameters: int
    quantization: str
    context: int  # trained, tokens
    fingerprint: str  # changes with the file and with this program: the same seed gives the same text within one


class ServiceHealth(msgspec.Struct, frozen=True):
    """Whether requests can be served, and the state of every model that is or was loaded."""

    status: Literal["ok", "loading", "degraded"]
    models: dict[str, Health]


class Service:
    """Models by name, answers, and the workers behind them. To be used from one event loop."""

    def __init__(self, settings: Settings, paths: Paths) -> None:
        self._settings = settings
        self._paths = paths
        self._store = Store(paths)
        self._places = _places(paths)
        self._pool = ModelPool(self._make_model, settings, machine.memory)

    # -- models ------------------------------------------------------------------------------------

    def model(self, name: str) -> ModelCard:
        """What `name` means. Raises InvalidName, NotFound, LibraryError."""
        return self._card(self._require(name))

    def models(self) -> list[ModelCard]:
        """Everything that can be asked, by name."""
        return [self._card(manifest) for manifest in self._store.list()]

    def loaded(self) -> list[LoadedModel]:
        """Every model in memory or on its way in or out, and those that failed; least recently used first."""
        return [
            replace(model, detail=None if model.detail is None else self._public(model.detail))
            for model in self._pool.loaded()
        ]

    async def preload(self, name: str) -> None:
        """Start to load a model, as a request for it would; returns once its worker is on its way. Raises EdgeError."""
        await self._pool.preload(self._wanted(self._require(name)))

    async def stop(self, name: str) -> bool:
        """Unload a model after its running answers; False when it was not loaded. Raises InvalidName, NotFound."""
        exact = str(self._store.resolve(name))
        if await self._pool.stop(exact):
            return True
        self._require(name)
        return False

    # -- answers -----------------------------------------------------------------------------------

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Answer. Whatever goes wrong, a model that is not there included, comes as `Failed`. Closing cancels."""
        try:
            manifest = self._require(request.model)
            require_text(manifest)
            request = self._filled(request, manifest)
        except EdgeError as error:
            yield Failed(error.info)
            return
        async with aclosing(self._answer(manifest, request)) as events:
            async for event in events:
                yield event

    async def embed(self, request: EmbedRequest) -> AsyncGenerator[Event, None]:
        """Make embeddings; as `generate` otherwise."""
        try:
            manifest = self._require(request.model)
            require_embeddings(manifest)
        except EdgeError as error:
            yield Failed(error.info)
            return
        limits = [seconds for seconds in (request.timeout_s, self._settings.request_timeout_s) if seconds]
        request = replace(request, model=str(manifest.full_name), timeout_s=min(limits, default=None))
        async with aclosing(self._answer(manifest, request)) as events:
            async for event in events:
                yield event

    async def _answer(self, manifest: Manifest, request: Request) -> AsyncGenerator[Event, None]:
        self._store.touch(manifest.full_name)
        async with aclosing(self._pool.generate(self._wanted(manifest), request)) as events:
            async for event in events:
                yield Failed(self._public_error(event.error)) if isinstance(event, Failed) else event

    def _filled(self, request: GenerateRequest, manifest: Manifest) -> GenerateRequest:
        """What the request leaves open is looked for where presets.py says; a seed is drawn. Raises InvalidRequest."""
        settings = self._settings
        asked = request.sampling.over(preset(request.preset)).over(manifest.sampling)
        defaults = Sampling(settings.temperature, settings.top_p, settings.top_k, secrets.randbits(SEED_BITS))
        limits = [seconds for seconds in (request.timeout_s, settings.request_timeout_s) if seconds]
        return replace(
            request,
            model=str(manifest.full_name),
            sampling=asked.over(defaults).over(preset(settings.preset)),
            timeout_s=min(limits, default=None),
        )

    # -- state -------------------------------------------------------------------------------------

    def health(self) -> ServiceHealth:
        """The truth now, as far as the last heartbeats tell."""
        models = {
            model.name: Health(model.state, model.running, model.waiting, model.detail, model.engine)
            for model in self.loaded()
        }
        states = {health.state for health in models.values()}
        if states & {"failed", "restarting"}:
            return ServiceHealth("degraded", models)
        return ServiceHealth("loading" if "loading" in states else "ok", models)

    async def aclose(self, grace_s: float = 0.0) -> None:
        """End every worker; running answers get `grace_s` seconds. Afterwards nothing of it is left."""
        await self._pool.aclose(grace_s)

    # -- wiring ------------------------------------------------------------------------------------

    def _require(self, name: str) -> Manifest:
        try:
            return self._store.require(name)
        except EdgeError as error:
            raise EdgeError.from_info(self._public_error(error.info)) from error

    def _wanted(self, manifest: Manifest) -> Wanted:
        return Wanted(str(manifest.full_name), manifest.model.digest, lambda memory: self._plan(manifest, memory))

    def _plan(self, manifest: Manifest, memory: machine.Memory) -> ModelPlan:
        """Which engine, and how much room. On a thread: reading a large vocabulary takes a while."""
        file = self._store.header(manifest)
        settings = as_trained(file, self._settings)
        if manifest.summary.embeds:
            return self._plan_embedder(manifest, file, memory)
        engine = engine_for(file, settings.engine)
        draft = self._draft(manifest)
        plan = make_plan(file, engine, settings, memory, machine.cores(), draft)
        placement = plan.placement
        limits = Limits(
            step_s=settings.step_s,
            decode_step_s=settings.decode_step_s,
            queue_requests=settings.queue_requests,
            queue_tokens=settings.queue_tokens,
            drafts=settings.drafts,
            max_running=min(settings.max_sequences, placement.batch_tokens),
            idle_cells=settings.cache_tokens,
            parked_bytes=settings.cache_ram_mib * MIB,
        )
        guesser = str(draft.path) if draft else ""
        load = Load(engine.name, str(file.path), placement, str(manifest.full_name), limits, draft=guesser)
        return ModelPlan(load, plan.total)

    def _draft(self, manifest: Manifest) -> ModelFile | None:
        """The model that guesses for this one, if one is set."""
        if not self._settings.draft or self._settings.drafts == "off":
            return None
        try:
            guesser = self._require(self._settings.draft)
        except EdgeError as error:
            told = f"{manifest.full_name} is to be loaded with {self._settings.draft} to guess for it (draft): "
            raise LoadFailed(told + error.message, hint=error.hint) from error
        return None if guesser.full_name == manifest.full_name else self._store.header(guesser)

    def _card(self, manifest: Manifest) -> ModelCard:
        summary = manifest.summary
        identity = f"{__version__} {manifest.model.digest} {self._settings.kv_type}".encode()
        return ModelCard(
            name=str(manifest.full_name),
            created=int(manifest.created.timestamp()),
            size=manifest.size,
            parameters=summary.parameters,
            quantization=summary.quantization,
            context=summary.context,
            fingerprint="fp_" + hashlib.sha256(identity).hexdigest()[:12],
        )

    def _plan_embedder(self, manifest: Manifest, file: ModelFile, memory: machine.Memory) -> ModelPlan:
        settings = self._settings
        embedder = embedder_for(file, settings.engine)
        placement, size = place_embedder(
            file, lambda batch: embedder.embedding_cost(file, batch), settings, memory, machine.cores()
        )
        limits = Limits(queue_requests=settings.queue_requests, queue_tokens=settings.queue_tokens)
        load = Load(embedder.name, str(file.path), placement, str(manifest.full_name), limits, embeds=True)
        return ModelPlan(load, size)

    def _make_model(self, load: Load) -> LocalModel:
        settings = self._settings
        patience = Supervision(
            heartbeat_timeout_s=settings.heartbeat_timeout_s, hello_timeout_s=settings.worker_start_s
        )
        log = self._paths.worker_log(load.model)
        environment = {ENGINE_STATE: str(self._paths.engines)}
        return LocalModel(load, supervision=patience, log_path=log, environment=environment)

    def _public_error(self, error: ErrorInfo) -> ErrorInfo:
        hint = None if error.hint is None else self._public(error.hint)
        return replace(error, message=self._public(error.message), hint=hint)

    def _public(self, text: str) -> str:
        """Without paths: what leaves the daemon may reach people on other machines."""
        return self._places.sub("…", text)


def _places(paths: Paths) -> re.Pattern[str]:
    """Matches paths into our own folders, the user's, Python's and the temporary one, to their end."""
    ours = (paths.data, paths.config, paths.runtime, paths.logs)
    roots = {str(root) for root in (*ours, Path.home(), sys.prefix, sys.base_prefix, tempfile.gettempdir())}
    longest_first = sorted((root for root in roots if root != os.sep), key=len, reverse=True)
    return re.compile("(?:" + "|".join(map(re.escape, longest_first)) + r")(?:[/\\][^\s'\"`:,;()]*)?(?![\w-])")
