"""Our engine on conversations: log-probs of the tokens that carry the loss, and no others."""

from __future__ import annotations

import torch
from tensordict import TensorDict

from opdvr.integration.engine import ScoringEngine


class ConversationEngine(ScoringEngine):
    """`log_probs` [B, j] in nats, 0 where the next token carries no loss."""

    def _scored_positions(self, micro_batch: TensorDict) -> torch.Tensor:
        # A row begins with its prompt, so that nothing is rolled from one row into another.
        mask = torch.roll(micro_batch["loss_mask"].values(), shifts=-1, dims=0)
        return mask.nonzero().squeeze(-1)
