"""How much memory a piece of work takes at most, on the device where it is done."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

_STATUS: Final = Path("/proc/self/status")
_CLEAR: Final = Path("/proc/self/clear_refs")
_FORGET_PEAK: Final = "5"  # proc(5): sets the high-water mark of resident memory to what is resident now


class Gauge:
    """Begins when it is made. On a GPU: what torch has allocated there. On the CPU: this process's resident memory."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._tells = True
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._tells = _forget_peak()

    def peak(self) -> int | None:
        """Bytes, what was taken before included; None where the system does not tell."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        return _resident("VmHWM") if self._tells else None


def _forget_peak() -> bool:
    try:
        _CLEAR.write_text(_FORGET_PEAK)
    except OSError:  # another system, or /proc that is read only
        return False
    return True


def _resident(field: str) -> int | None:
    """A line of this process's status, bytes."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
