"""Public fakes: a runner, its tiers, a link and faults, behind the interfaces of the real ones. Imports no torch."""

from sluice.testing.adapters import ShadowAdapters
from sluice.testing.blocks import block_oracle
from sluice.testing.drafts import OracleDrafter
from sluice.testing.faults import Faults, FaultyRunner, FaultyStep, InjectedFault, without_row
from sluice.testing.grammars import UNUSABLE, ShadowGrammars, shadow_grammar
from sluice.testing.link import ManualLink
from sluice.testing.oracle import (
    SHADOW_EMBEDDING_SIZE,
    digests,
    oracle,
    oracle_logprobs,
    resolved,
    shadow_embedding,
    shadow_logits,
    shadow_logprobs,
    shadow_token,
)
from sluice.testing.shadow import ShadowRunner, ShadowStep
from sluice.testing.tiers import Content, ShadowTiers

__all__ = [
    "SHADOW_EMBEDDING_SIZE",
    "UNUSABLE",
    "Content",
    "Faults",
    "FaultyRunner",
    "FaultyStep",
    "InjectedFault",
    "ManualLink",
    "OracleDrafter",
    "ShadowAdapters",
    "ShadowGrammars",
    "ShadowRunner",
    "ShadowStep",
    "ShadowTiers",
    "block_oracle",
    "digests",
    "oracle",
    "oracle_logprobs",
    "resolved",
    "shadow_embedding",
    "shadow_grammar",
    "shadow_logits",
    "shadow_logprobs",
    "shadow_token",
    "without_row",
]
