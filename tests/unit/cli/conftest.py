"""The fixture that every command's test needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_fakes import FakeClient, pipe

import edgellm.cli.answer
import edgellm.cli.daemon
import edgellm.cli.doctor
import edgellm.cli.link
import edgellm.cli.models
import edgellm.cli.output
import edgellm.cli.pull
import edgellm.cli.run


@pytest.fixture
def daemon(home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """A running fake daemon, and stdin empty as it is for a script."""
    client = FakeClient()
    for module in (edgellm.cli.run, edgellm.cli.link, edgellm.cli.daemon):
        monkeypatch.setattr(module, "DaemonClient", client)
    pipe(monkeypatch, b"")
    return client
