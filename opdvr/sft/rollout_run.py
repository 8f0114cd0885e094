"""Makes the attempts that are due, and appends each to its file once it is judged."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict

from opdvr.eval.jsonl import LineWriter
from opdvr.inference import Completion, Request, generate
from opdvr.inference.quiet import output_in
from opdvr.sft.rollout_attempts import ACCEPTED_FILE, REJECTED_FILE, Attempt, attempt_seed
from opdvr.sft.rollout_prepare import Rollout
from opdvr.sft.rollout_progress import RolloutProgress

ENGINE_LOG = "engine.log"

Settled = Callable[[Attempt, bool], None]


class Slots:
    """Requests for all slots that are neither filled nor given up: more may come later.

    The runner asks for requests whenever it has handed over what an engine finished, and that is
    when these completions are judged: what is rejected is due again at once. So a kill loses no
    more than what one report held, and that is made again with the same seeds.
    """

    def __init__(self, rollout: Rollout, settle: Settled):
        self._rollout = rollout
        self._settle = settle
        self._tries: dict[tuple[int, int], int] = {}
        self._due: deque[tuple[int, int]] = deque()
        self._finished: list[Completion] = []
        written = rollout.written
        for place, problem in enumerate(rollout.problems):
            for slot in range(rollout.options.n):
                made = written.attempts.get((problem.key, slot), 0)
                if (problem.key, slot) in written.accepted or made == rollout.attempts:
                    continue
                self._tries[place, slot] = made
                self._due.append((place, slot))

    def __len__(self) -> int:
        """Slots that are due now."""
        return len(self._due)

    def finished(self, completion: Completion) -> None:
        """Take a completion, to be judged when the runner next asks for requests."""
        self._finished.append(completion)

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        if self._finished:
            self._judge()
        if not self._due:
            raise StopIteration
        place, slot = self._due.popleft()
        rollout = self._rollout
        return Request(
            place, slot, rollout.prompts[place], rollout.rooms[place], self._seed(place, slot)
        )

    def _seed(self, place: int, slot: int) -> int | None:
        options = self._rollout.options
        if options.temperature == 0:
            return None
        key = self._rollout.problems[place].key
        return attempt_seed(options.seed, key, slot, self._tries[place, slot])

    def _judge(self) -> None:
        completions, self._finished = self._finished, []
        problems = [self._rollout.problems[c.prompt] for c in completions]
        reasons = self._rollout.judge.reasons(problems, completions)
        for problem, completion, reason in zip(problems, completions, reasons, strict=True):
            slot = (completion.prompt, completion.sample)
            attempt = Attempt(
                key=problem.key,
                slot=completion.sample,
                attempt=self._tries[slot],
                seed=self._seed(*slot),
                tokens=len(completion.token_ids),
                finish=completion.finish,
                reason=reason,
                text=completion.text,
            )
            again = reason is not None and attempt.attempt + 1 < self._rollout.attempts
            self._settle(attempt, not again)
            if again:
                self._tries[slot] += 1
                self._due.append(slot)


def roll_out(rollout: Rollout, say: Callable[[str], None]) -> None:
    """Make every attempt that is due; all that vLLM and Ray print goes to engine.log.

    Raises:
        VerifierFailure: a user's verifier failed; what was judged before is kept.
        Unwritable: a file cannot be written.
    """
    written, watch = rollout.written, rollout.watch
    total = rollout.slots
    made = sum(written.attempts.values())
    accepted = len(written.accepted)
    with (
        LineWriter(rollout.folder / ACCEPTED_FILE) as good,
        LineWriter(rollout.folder / REJECTED_FILE) as bad,
    ):

        def settle(attempt: Attempt, is_last: bool) -> None:
            (good if attempt.reason is None else bad).append(asdict(attempt))
            progress.count(attempt.reason is None, is_last, attempt.tokens)
            watch.save()

        slots = Slots(rollout, settle)
        if made:
            say(f"{accepted:,} of {total:,} responses are there already ({made:,} attempts)")
        if not len(slots):
            return
        engines = "1 engine" if rollout.engines == 1 else f"{rollout.engines} engines"
        say(f"rolling out {len(slots):,}: starting {engines} on {rollout.settings.device}")
        started = time.monotonic()
        with output_in(rollout.folder / ENGINE_LOG) as terminal:
            exhausted = total - accepted - len(slots)
            progress = RolloutProgress(terminal, total, accepted, exhausted, made - accepted)

            def ready() -> None:
                seconds = time.monotonic() - started
                print(f"opdvr sft rollout: ready after {seconds:.0f} s", file=terminal)
                progress.start()
                watch.start()

            try:
                for completion in generate(
                    rollout.settings, rollout.sampling, slots, rollout.engines, False, ready
                ):
                    slots.finished(completion)
            finally:
                watch.save(now=True)
            progress.finish()
