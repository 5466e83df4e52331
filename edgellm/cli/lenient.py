"""Settings for commands that can do without: what is wrong with them is a warning there, and no reason to fail."""

from __future__ import annotations

from edgellm.cli.output import Output
from edgellm.config import Settings, load_settings
from edgellm.errors import ConfigError
from edgellm.paths import Paths


def settings_or_defaults(paths: Paths, output: Output) -> Settings:
    """Those in force, or the defaults where they cannot be read; in any case whoever mistyped one hears of it."""
    try:
        return load_settings(paths, {}).settings
    except ConfigError as error:
        output.warn(error.line)
        return Settings()
