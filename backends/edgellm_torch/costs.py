"""What a GGUF model costs the torch engine in memory, from its header alone. No torch here."""

from __future__ import annotations

from typing import Final

from edgellm_kernels.blocks import BLOCKS, block_bytes
from edgellm_kernels.kv_kinds import KV_KINDS, kv_bytes

from edgellm.contracts.engine import CostModel, KVCost, KVKind, ModelFile
from edgellm.errors import InvalidRequest, LoadFailed
from edgellm_torch.architectures import decoder
from edgellm_torch.config import Attention, Decoder, Experts, Latent, Layer, linears, norms, vectors
from edgellm_torch.pool import BLOCK, blocks_for

MIB: Final = 1024 * 1024
F32_BYTES: Final = 4
KV_TYPES: Final[tuple[str, ...]] = KV_KINDS
