"""Correctness gates: how much of a token's reward the verifier's verdict lets through.

B responses, T response tokens, K candidates a position. y is +1 for a correct response and -1 for
an incorrect one: a reward agrees with the verdict where y r > 0. `none`, `default` and `inverse`
are OPDVR's (arXiv 2608.24696); the others are ours, and off unless named.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class GateSettings:
    """What some gates can be told.

    temperature: of `soft`, nats; a log-ratio of this size that agrees passes at 1.46 times itself,
        one that disagrees at 0.54 times. margin: of `margin`, nats; may be negative.
    floor: of `leaky`, the share of what disagrees that still passes.
    """

    temperature: float = 1.0
    margin: float = 0.1
    floor: float = 0.1


class Verdicts(NamedTuple):
    """What a gate is told of each response, every tensor broadcastable to the rewards.

    correct: bool. group_correct_frac: share of correct responses in the response's group, or None.
    """

    correct: torch.Tensor
    group_correct_frac: torch.Tensor | None
    settings: GateSettings


class Gate(NamedTuple):
    """A registered gate. needs_groups: it reads group_correct_frac. by_sign: it multiplies an
    element by what only its sign and its response decide, so weights may come before it or after.
    """

    apply: Callable[[torch.Tensor, Verdicts], torch.Tensor]
    needs_groups: bool
    by_sign: bool


GATES: dict[str, Gate] = {}


def register_gate(name: str, *, groups: bool = False, by_sign: bool = True) -> Callable:
    """Decorator that makes a gate available under `name`.

    A gate takes (reward [B,T,...], Verdicts) and returns a tensor like reward. It acts on each
    element alone and maps 0 to 0, so that masked positions stay 0. groups: it reads
    group_correct_frac, so a prompt needs two responses or more. by_sign: see Gate.
    """
    assert name not in GATES, f"gate {name} is registered twice"

    def register(apply: Callable) -> Callable:
        GATES[name] = Gate(apply, groups, by_sign)
        return apply

    return register


def apply_gate(
    reward: torch.Tensor,
    correct: torch.Tensor,
    gate: str,
    *,
    group_correct_frac: torch.Tensor | None = None,
    settings: GateSettings | None = None,
) -> torch.Tensor:
    """The reward that passes the gate.

    A correct response with rewards (+0.9, -0.4): default passes (+0.9, 0), inverse (0, -0.4).
    For an incorrect one default passes (0, -0.4) and inverse (+0.9, 0).

    Args:
        reward: [B,T] or [B,T,K], nats; 0 at masked positions, where the result is 0 too.
        correct: [B] bool, the verdict of each response.
        gate: a name in GATES.
        group_correct_frac: [B], share of correct responses in each one's group; for gates that
            need groups.
        settings: temperature, margin and floor; None for their defaults.

    Returns:
        Shape and dtype of reward.

    Raises:
        ValueError: an unknown gate.
    """
    if gate not in GATES:
        raise ValueError(
            f"correctness_gated_mode={gate!r} is unknown: choose one of {', '.join(GATES)}"
        )
    entry = GATES[gate]
    assert correct.dtype == torch.bool and correct.shape == reward.shape[:1], "one verdict a row"
    assert group_correct_frac is not None or not entry.needs_groups, f"{gate} needs groups"
    frac = None if group_correct_frac is None else _like(group_correct_frac, reward)
    return entry.apply(reward, Verdicts(_like(correct, reward), frac, settings or GateSettings()))


@register_gate("none")
def _pass_all(reward: torch.Tensor, verdicts: Verdicts) -> torch.Tensor:
    return reward


@register_gate("default")
def _pass_agreeing(reward: torch.Tensor, verdicts: Verdicts) -> torch.Tensor:
    return torch.where(verdicts.correct, reward.clamp(min=0), reward.clamp(max=0))


@register_gate("inverse")
def _pass_disagreeing(reward: torch.Tensor, verdicts: Verdicts) -> torch.Tensor:
    return torch.where(verdicts.correct, reward.clamp(max=0), reward.clamp(min=0))


@register_gate("soft", by_sign=False)
def _lean_towards_agreeing(reward: torch.Tensor, verdicts: Verdicts) -> torch.Tensor:
    """2 r sigmoid(y r / temperature), the default gate without its corner.

    Mass-preserving: sigmoid(x) + sigmoid(-x) = 1, so of a pair +r, -r as much passes in all as came
    in, where the default gate drops half. At temperature 0 it is twice the default gate, at
    infinity no gate.
    """
    signed = torch.where(verdicts.correct, reward, -reward) / verdicts.settings.temperature
    return 2 * reward * torch.sigmoid(signed)


@register_gate("margin", by_sign=False)
def _pass_clear_agreement(reward: torch.Tensor, verdicts: Verdicts) -> torch.Tensor:
    """r where y r > margin, else 0. Above 0 it drops weak agreement, below 0 it lets weak
    disagreement pass; at 0 it is the default gate.
    """
    signed = torch.where(verdicts.correct, reward, -reward)
    return torch.where(signed > verdicts.settings.margin, reward, 0)


@register_gate("leaky")
def _pass_some_disagreeing(reward: torch.Tensor, verdicts: Verdicts) -> torch.Tensor:
    """default + floor * inverse: 0 is the default gate, 1 no gate."""
    passed = _pass_agreeing(reward, verdicts)
    return passed + verdicts.settings.floor * (reward - passed)


@register_gate("mixed", groups=True)
def _gate_mixed_groups(reward: torch.Tensor, verdicts: Verdicts) -> torch.Tensor:
    """default where the group holds both verdicts; elsewhere, where they tell nothing apart, r."""
    frac = verdicts.group_correct_frac
    is_mixed = (frac > 0) & (frac < 1)
    return torch.where(is_mixed, _pass_agreeing(reward, verdicts), reward)


@register_gate("rescue", groups=True)
def _gate_solved_groups(reward: torch.Tensor, verdicts: Verdicts) -> torch.Tensor:
    """default, but r in groups without a correct response, where it would only ever push down."""
    is_solved = verdicts.group_correct_frac > 0
    return torch.where(is_solved, _pass_agreeing(reward, verdicts), reward)


def _like(per_response: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
    return per_response.view(-1, *[1] * (reward.dim() - 1))
