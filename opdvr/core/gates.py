"""Correctness gates: which side of a token's reward the verifier's verdict lets through.

Source: OPDVR (arXiv 2608.24696). B responses, T response tokens, K candidates a position.
"""

from collections.abc import Callable

import torch

Gate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

GATES: dict[str, Gate] = {}


def register_gate(name: str) -> Callable[[Gate], Gate]:
    """Decorator that makes a gate available under `name`.

    A gate takes reward [B,T,...] and correct [B] bool and returns a tensor like reward. It acts on
    each element alone and maps 0 to 0, so that masked positions stay 0.
    """
    assert name not in GATES, f"gate {name} is registered twice"

    def register(gate: Gate) -> Gate:
        GATES[name] = gate
        return gate

    return register


def apply_gate(reward: torch.Tensor, correct: torch.Tensor, gate: str) -> torch.Tensor:
    """The reward that passes the gate.

    A correct response with rewards (+0.9, -0.4): default passes (+0.9, 0), inverse (0, -0.4).
    For an incorrect one default passes (0, -0.4) and inverse (+0.9, 0).

    Args:
        reward: [B,T] or [B,T,K], nats; 0 at masked positions, where the result is 0 too.
        correct: [B] bool, the verdict of each response.
        gate: a name in GATES.

    Returns:
        Shape and dtype of reward.

    Raises:
        ValueError: an unknown gate.
    """
    if gate not in GATES:
        raise ValueError(
            f"correctness_gated_mode={gate!r} is unknown: choose one of {', '.join(GATES)}"
        )
    assert correct.dtype == torch.bool and correct.shape == reward.shape[:1], "one verdict a row"
    return GATES[gate](reward, correct)


@register_gate("none")
def _pass_all(reward: torch.Tensor, correct: torch.Tensor) -> torch.Tensor:
    return reward


@register_gate("default")
def _pass_agreeing(reward: torch.Tensor, correct: torch.Tensor) -> torch.Tensor:
    return torch.where(_like(correct, reward), reward.clamp(min=0), reward.clamp(max=0))


@register_gate("inverse")
def _pass_disagreeing(reward: torch.Tensor, correct: torch.Tensor) -> torch.Tensor:
    return torch.where(_like(correct, reward), reward.clamp(max=0), reward.clamp(min=0))


def _like(correct: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
    return correct.view(-1, *[1] * (reward.dim() - 1))
