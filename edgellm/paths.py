"""Where things live on disk. Nothing is created here; writers make the folders they need.

`EDGELLM_HOME` puts everything under one folder (tests, portable installs); otherwise the platform's own places.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from edgellm.errors import ConfigError


class Paths(msgspec.Struct, frozen=True):
    """The folders of one installation."""

    data: Path  # models, conversations, engines' small files
    config: Path  # config.toml, keys.json, the user's models.toml
    runtime: Path  # daemon.json and its lock
    logs: Path  # daemon and worker logs

    @property
    def models(self) -> Path:
        return self.data / "models"

    @property
    def engines(self) -> Path:
        """Small files that engines keep between runs."""
        return self.data / "engines"

    @property
    def daemon_log(self) -> Path:
        """Of a daemon in the background."""
        return self.logs / "daemon.log"

    def worker_log(self, model: str) -> Path:
        """Of the worker of a model, by its full name."""
        return self.logs / f"worker-{model.replace(':', '-')}.log"

    @property
    def history(self) -> Path:
        """Conversations held in the terminal app."""
        return self.data / "history.db"

    @property
    def last_chat(self) -> Path:
        """The name of the model that was last talked to."""
        return self.data / "last-chat"

    @property
    def told_settings(self) -> Path:
        """What `edgellm run` last said of the running daemon's settings, so that it says it once."""
        return self.runtime / "told"

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def catalogue_overlay(self) -> Path:
        return self.config / "models.toml"


def expanded(text: str) -> Path:
    """The path that `text` names; a "~" for a user who does not exist stays what it is, as in a shell."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def is_file(text: str) -> bool:
    """Whether `text`, whatever it is, names a file."""
    try:
        return expanded(text).is_file()
    except (OSError, ValueError):  # too long, or nothing that a system takes
        return False


def default_paths() -> Paths:
    """The folders for this user, from `EDGELLM_HOME` or the platform's conventions. Raises ConfigError."""
    home = os.environ.get("EDGELLM_HOME")
    if home:
        root = expanded(home).absolute()
        if root.is_file():
            raise ConfigError(
                f"EDGELLM_HOME names {root}, which is a file", hint="name a folder; it is made if missing"
            )
        if not root.exists():
            _require_possible(root)
        return _named(Paths(root, root / "config", root / "run", root / "logs"))
    import platformdirs

    dirs = platformdirs.PlatformDirs("edgellm", appauthor=False)
    try:
        paths = Paths(
            Path(dirs.user_data_dir),
            Path(dirs.user_config_dir),
            # Not the platform's runtime directory: it may be absent (containers, ssh) and is wiped at logout.
            Path(dirs.user_state_dir) / "run",
            Path(dirs.user_log_dir),
        )
    except RuntimeError as error:  # a user that the system does not know, without HOME: in containers
        raise ConfigError("this user has no home folder", hint="set EDGELLM_HOME to a folder") from error
    return _named(paths)


def _require_possible(root: Path) -> None:
    """Raises ConfigError for a folder that cannot be made, instead of calling it empty. Leaves nothing behind."""
    import tempfile

    there = next((folder for folder in root.parents if folder.exists()), root.parent)  # a drive may not be there
    try:
        Path(tempfile.mkdtemp(prefix=".edgellm-", dir=there)).rmdir()
    except OSError as error:
        raise ConfigError(
            f"EDGELLM_HOME names {root}, which is not there and cannot be made in {there}: {error.strerror}",
            hint="name a folder that this user may make",
        ) from error


def _named(paths: Paths) -> Paths:
    """These, if their names are text: engines, and the processes they run in, take no other."""
    for folder in (paths.data, paths.config, paths.runtime, paths.logs):
        try:
            str(folder).encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(folder).decode(errors="replace")
            raise ConfigError(
                f"the name of the folder {shown} is not UTF-8", hint="set EDGELLM_HOME to a folder whose name is"
            ) from error
    return paths
