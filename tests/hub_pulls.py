"""Pulling in tests: short patience, and what was said is kept."""

from __future__ import annotations

from edgellm.library.pull import Announcement, PullProgress, PullResult, pull
from edgellm.library.store import Store
from edgellm.library.transfer.download import Tuning
from edgellm.paths import Paths

FAST = Tuning(
    piece=1 << 14, span=1 << 17, small=0, stall_s=0.4, slow_s=0.3, patience_s=3.0, backoff_s=0.01, longest_wait_s=5.0
)


class Pulls:
    """Pulls with short patience, keeping what was said."""

    def __init__(self, paths: Paths, tuning: Tuning = FAST) -> None:
        self.paths = paths
        self.tuning = tuning
        self.reports: list[PullProgress] = []
        self.announced: list[Announcement] = []

    def __call__(self, reference: str, name: str | None = None) -> PullResult:
        self.reports.clear()
        return pull(
            reference,
            name=name,
            paths=self.paths,
            report=self.reports.append,
            announce=self.announced.append,
            tuning=self.tuning,
        )

    @property
    def details(self) -> str:
        return "\n".join(report.detail for report in self.reports if report.detail)


def stored(paths: Paths, result: PullResult) -> bytes:
    return Store(paths).model_path(result.manifest).read_bytes()


def nothing_published(paths: Paths) -> bool:
    return not any(paths.models.glob("blobs/*")) and Store(paths).scan().manifests == []
