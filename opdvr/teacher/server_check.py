"""The servers of a run, looked over before anything is loaded: a mistake costs seconds here."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp

from opdvr.integration.terminal import say
from opdvr.teacher.addresses import ANY_SOURCE, OPTION, Address, Addresses, read_addresses
from opdvr.teacher.answers import Malformed
from opdvr.teacher.client import Busy, Client, Missing, Unreachable, new_session
from opdvr.teacher.engines import TeacherError, TeacherSettings, Wanted
from opdvr.teacher.scorer import Scorer
from opdvr.teacher.served_models import choose_model, same_last_part
from opdvr.teacher.tokenizer_check import Vocabulary, compare_tokenizer, read_tokens

# A server that is being started loads its weights meanwhile.
WAIT_S = 60.0
_TRY_AGAIN_S = 1.0
# Servers that answer at once are not worth a line.
_QUIET_S = 1.0


def check_servers(
    settings: TeacherSettings,
    wanted: Wanted,
    sources: set[str],
    tokenizer_folder: Path | None,
) -> list[str]:
    """Ask every server what it has, and one probe; imports no torch and no vLLM.

    Args:
        settings: addresses, key, max_tokens of the longest sequence, and the model: it chooses
            among several of a server, and where there is one teacher its name has to fit.
        wanted: what the run will ask.
        sources: data sources of the training rows; empty where they are not known.
        tokenizer_folder: the student's tokenizer; None leaves it uncompared.

    Returns:
        Warnings, one line each.

    Raises:
        ValueError: one line with variable and remedy.
    """
    addresses = read_addresses(settings.urls)
    for source in sorted(sources):
        addresses.teacher_of(source)
    vocabulary, warnings = read_tokens(tokenizer_folder)
    used = {addresses.teacher_of(source) for source in sources}
    for source in addresses.by_source:
        if used and source not in used:
            of = f"data_source {source!r}" if source else "all other data sources"
            warnings.append(f"{OPTION}: the servers of {of} have no row to score")
    return warnings + asyncio.run(_check(settings, wanted, addresses, vocabulary))


async def _check(
    settings: TeacherSettings,
    wanted: Wanted,
    addresses: Addresses,
    vocabulary: Vocabulary | None,
) -> list[str]:
    # Several teachers are not all REWARD_MODEL_PATH.
    one_teacher = set(addresses.by_source) == {ANY_SOURCE}
    servers = dict.fromkeys(a for group in addresses.by_source.values() for a in group)
    async with new_session() as session:
        with ThreadPoolExecutor(1) as parse:
            checks = {
                address: _ServerCheck(session, parse, address, settings, wanted)
                for address in servers
            }
            await _wait_for(checks)
            found = await asyncio.gather(
                *(check.run(vocabulary, one_teacher) for check in checks.values())
            )
    for group in addresses.by_source.values():
        for other in group[1:]:
            _as_mistake(checks[other].scorer.require_same, checks[group[0]].scorer)
    return [warning for warnings in found for warning in warnings]


async def _wait_for(checks: dict[Address, _ServerCheck]) -> None:
    """Wait until every server is well, for WAIT_S in all."""
    until, said = time.monotonic() + WAIT_S, False
    quiet_until = time.monotonic() + _QUIET_S
    missing = dict(checks)
    while True:
        reasons = await asyncio.gather(*(check.reason_not_ready() for check in missing.values()))
        missing = {a: c for (a, c), reason in zip(missing.items(), reasons, strict=True) if reason}
        if not missing:
            return
        names = ", ".join(map(str, missing))
        if time.monotonic() > until:
            reason = next(filter(None, reasons))
            raise ValueError(
                f"{OPTION}: not reachable: {names} ({reason}); start it, for instance with "
                "`python -m opdvr teacher serve MODEL`, or leave it out"
            )
        if not said and time.monotonic() > quiet_until:
            reason = next(filter(None, reasons))
            say(f"opdvr: waiting up to {WAIT_S:g} s for the teacher server {names} ({reason})")
            said = True
        await asyncio.sleep(min(_TRY_AGAIN_S, WAIT_S / 10))


class _ServerCheck:
    """One server's."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        parse: ThreadPoolExecutor,
        address: Address,
        settings: TeacherSettings,
        wanted: Wanted,
    ):
        # The probe is short: one that takes longer hangs.
        timeout_s = min(settings.timeout_s, WAIT_S)
        self.client = Client(session, address, settings.api_key, timeout_s)
        self.scorer = Scorer(self.client, settings, wanted, parse)
        self._settings, self._top_k = settings, wanted.top_k

    async def reason_not_ready(self) -> str | None:
        """Why the server cannot be asked yet."""
        try:
            await self.client.health()
        except (Unreachable, Busy) as error:
            return str(error)
        except (Malformed, TeacherError) as error:
            raise ValueError(f"{OPTION}: {self.client.address}: {error}") from None
        return None

    async def run(self, vocabulary: Vocabulary | None, one_teacher: bool) -> list[str]:
        """Warnings; ValueError for what cannot work."""
        model = self._settings.model
        try:
            card = choose_model(await self.client.models(), model or None)
            if model and one_teacher and not same_last_part(card, model):
                raise ValueError(
                    f"{OPTION}: {self.client.address} serves {card}, REWARD_MODEL_PATH "
                    f"(reward_model.model.path) names {model}; set one to the other's (in the "
                    "embedded task by DEMO_TEACHER), or leave REWARD_MODEL_PATH out"
                )
            self._check_length(card.max_model_len)
            await self.scorer.meet()
            if vocabulary is not None:
                return await compare_tokenizer(self.client, card.id, vocabulary)
        except (Malformed, Missing) as fault:
            raise ValueError(
                f"{OPTION}: {self.client.address} is no vLLM server that can score: {fault}"
            ) from None
        except (Unreachable, Busy) as error:
            raise ValueError(
                f"{OPTION}: {self.client.address} does not answer what a run will ask: {error}; "
                "see its own log"
            ) from None
        except TeacherError as error:
            raise ValueError(f"{OPTION}: {error}") from None
        return []

    def _check_length(self, longest: int | None) -> None:
        needed = self._settings.max_tokens + 1
        if longest is not None and longest < needed:
            raise ValueError(
                f"{OPTION}: {self.client.address} takes {longest} tokens, and MAX_PROMPT_LENGTH + "
                f"MAX_RESP_LENGTH + 1 is {needed}; start it with --max-model-len {needed}, or "
                "lower those"
            )


def _as_mistake(check, other: Scorer) -> None:  # noqa: ANN001
    try:
        check(other)
    except TeacherError as error:
        raise ValueError(f"{OPTION}: {error}") from None
