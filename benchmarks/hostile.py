"""Hostile answers: the slowest verdict, the memory of parent and worker, and what was executed.

Power towers, factorials, sums, matrices, nesting, braces by the megabyte, control characters, code.
Each is a response that boxes it, judged against the gold 5, and once as a gold itself.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Result, note
from opdvr.verifier import compute_score, configure, counters, validate_gold
from opdvr.verifier.pool import DEFAULT_TIMEOUT_S, shut_down

GOLD = "5"
MEGABYTE = 1_000_000
SAMPLING_S = 0.02


def add_options(parser: argparse.ArgumentParser) -> None:
    """This benchmark's options."""
    parser.add_argument(
        "--timeout", type=float, default=DEFAULT_TIMEOUT_S, help="seconds a verdict"
    )


def run(options: argparse.Namespace) -> list[Result]:
    """One pass over all answers, in this process and its worker."""
    with tempfile.TemporaryDirectory() as folder:
        witness = Path(folder) / "executed"
        answers = hostile_answers(str(witness))
        if options.quick:
            answers = answers[::8]
        configure(timeout_s=min(options.timeout, 0.3) if options.quick else options.timeout)
        compute_score(None, r"\boxed{2^{10}}", "1024")  # starts the worker
        counters(reset=True)
        before = _peak_of_this_process()
        with worker_memory() as peak:
            seconds = [judge(answer) for answer in answers]
        results = [
            Result("all", "answers", float(len(answers)), ""),
            Result("all", "slowest verdict", max(seconds), "s"),
            Result("all", "over a tenth of a second", float(sum(s > 0.1 for s in seconds)), ""),
            Result("all", "timeouts", float(counters()["timeout"]), ""),
            Result("all", "errors", float(counters()["error"]), ""),
            Result("all", "code executed", float(witness.exists()), ""),
            Result("memory", "worker, peak resident", peak[0] / 2**20, "MiB"),
            Result("memory", "this process grew by", _peak_of_this_process() - before, "MiB"),
        ]
    configure(timeout_s=DEFAULT_TIMEOUT_S)
    shut_down()
    return results


def judge(answer: str) -> float:
    """Seconds of the slowest of: as an answer, without a box, as a gold."""
    taken = []
    for response, gold in ((rf"So \boxed{{{answer}}}.", GOLD), (answer, GOLD), ("5", answer)):
        started = time.perf_counter()
        if gold == GOLD:
            verdict = compute_score(None, response, gold)
            assert verdict["score"] == 0.0, (response[:80], verdict["pred"][:80])
        elif validate_gold(answer) is None and len(answer) < 2000:
            compute_score(None, r"\boxed{5}", answer)
        taken.append(time.perf_counter() - started)
    if max(taken) > 1.0:
        note(f"{max(taken):.2f} s: {answer[:60]!r}")
    return max(taken)


@contextmanager
def worker_memory() -> Iterator[list[int]]:
    """The largest resident size of any child process, looked at every 20 ms, in bytes."""
    peak, done = [0], threading.Event()
    page = resource.getpagesize()

    def watch() -> None:
        while not done.wait(SAMPLING_S):
            for children in Path("/proc/self/task").glob("*/children"):
                for process_id in children.read_text().split():
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                        resident = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
                        peak[0] = max(peak[0], resident * page)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    yield peak
    done.set()
    watcher.join()


def _peak_of_this_process() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def hostile_answers(witness: str) -> list[str]:
    """A hundred and more; `witness` is a file that code among them would make."""
    return [*_heavy_mathematics(), *_nesting(), *_bulk(), *_characters(), *_code(witness)]


def _heavy_mathematics() -> list[str]:
    towers = [r"9^{9^{9^{9}}}", "9^9^9^9", r"10^{10^{10}}", r"2^{2^{2^{2^{2^{2}}}}}", "9^{9^{9}}",
              r"(10^{100})^{10^{7}}", r"10^{(5^{5^{5^{5}}} \cdot \log_{10} 5 - 4)}", r"2^{2^{35}}",
              r"10^{9999999999}", r"3 \uparrow\uparrow 9", r"x^{x^{x^{x^{x}}}}", r"0^{-9^{9^{9}}}",
              r"e^{e^{e^{e^{e^{e}}}}}", r"(-1)^{10^{10^{10}}}", r"\sqrt[9^{9^9}]{2}",
              "7777777^{7777777}",
              r"\frac{1}{9^{9^{9}}}", r"9^{9^{9}} \bmod 7", r"\log(9^{9^{9^9}})"]  # fmt: skip
    counting = [r"(10^7)!", "99999999!", "((9!)!)!", r"\binom{10^7}{5 \cdot 10^6}", r"9!!!!!!!!!!",
                r"\binom{10^{100}}{10^{50}}", r"\gamma(10^{100})", r"\zeta(10^{50}+0.5)",
                r"\pi(10^{100})", r"F_{10^{18}}", r"\gcd(10^{10^5}, 7^{10^5})"]  # fmt: skip
    sums = [r"\sum_{k=1}^{10^{9}} \frac{1}{k}", r"\sum_{k=1}^{\infty} \frac{1}{k^{k^k}}",
            r"\prod_{k=1}^{10^7} k", r"\sum_{k=1}^{10^5} k^{1000}", r"\int_0^1 x^{x^{x^x}} dx",
            r"\int_0^1 \int_0^1 \int_0^1 \sin(xyz) dx dy dz", r"\int e^{-x^2} \sin(x^3) \ln x dx",
            r"\lim_{x \to 0} \frac{\sin(\tan x) - \tan(\sin x)}{x^{77}}",
            r"\sum_{i=1}^{10^4} \sum_{j=1}^{10^4} \sum_{k=1}^{10^4} ijk",
            r"\lim_{n \to \infty} \sum_{k=1}^{n} \frac{\sin k}{k^{1/100}}"]  # fmt: skip
    algebra = [r"(x+y+z+w)^{1000}", r"\prod_{k=1}^{200} (x+k)", r"x^{100000}-1",
               r"\frac{x^{5000}-1}{x-1}", r"\sqrt{x+\sqrt{x+\sqrt{x+\sqrt{x+\sqrt{x}}}}}",
               r"x^{99}+x^{98}+7x+3=0", r"x^7 - x^3 + 9 > 0", r"\sin(\cos(\sin(\cos(\sin(x^9)))))",
               r"\begin{pmatrix}" + r"1&2&3&4&5&6&7&8&9\\" * 40 + r"\end{pmatrix}",
               r"\begin{vmatrix}" + r"a&b&c&d&e&f&g&h\\" * 8 + r"\end{vmatrix}^{99}",
               "x^{1000}" * 50, "+".join(f"x^{{{k}}}" for k in range(250)),
               "-".join("abcdefgh" * 30),
               r"|x-|x-|x-|x-|x-1|||||<3", r"\lfloor \lfloor 10^{100} \pi \rfloor e^{100} \rfloor",
               "0.(" * 50 + "3" + ")" * 50, r"\frac{1}{3}\approx" * 90 + "0.3"]  # fmt: skip
    return towers + counting + sums + algebra


def _nesting() -> list[str]:
    pairs = [("{", "}"), ("(", ")"), ("[", "]"), (r"\{", r"\}"), (r"\left(", r"\right)"),
             (r"\frac{1}{", "}"), (r"\sqrt{", "}"), (r"\text{", "}"), (r"\boxed{", "}"),
             ("x^{", "}"), ("|", "|"), (r"\begin{pmatrix}", r"\end{pmatrix}"), ("(1,",
             ")")]  # fmt: skip
    deep = [opening * 100 + "6" + closing * 100 for opening, closing in pairs]
    too_deep = [opening * 20_000 + "6" + closing * 20_000 for opening, closing in pairs[:6]]
    return [
        *deep,
        *too_deep,
        r"\sqrt" * 400 + "2",
        r"\frac" * 600,
        "-" * 1900 + "6",
        "6" + "!" * 1900,
    ]


def _bulk() -> list[str]:
    return ["{" * 10 * MEGABYTE, "}" * 10 * MEGABYTE, r"\boxed{" * MEGABYTE, "9" * 1900,
            "\\" * MEGABYTE,
            "9" * 10 * MEGABYTE, "x=" * 900, "1," * 900, "6 " * 900, r"\text{a}" * 250, "$" * 1900,
            "1/" * 900 + "1", "(1,2)," * 300, "a or " * 300 + "b", r"\pm" * 600, r"1\cup " * 250,
            "10^" * 600 + "2", "_" * 1900, "^" * 1900, r"\," * 900, "1 " * 900 + "cm", "<" * 1900,
            "so x = 1, hence " * 30_000, r"\boxed " * 100_000, "answer is " * 100_000]  # fmt: skip


def _characters() -> list[str]:
    return ["\x00" * 100 + "6", "\x1b[31m6\x1b[0m", "6\x07\x08", "\u202e6", "\ud800",
            "6\udfff", "\uffff",
            "\u200b" * 500 + "6", "٣", "五", "𝟔", "𝔵𝔵𝔵", "é" * 500, "🎲" * 300, "%s%s%n",
            "6\r\n\t\v",
            "\ufeff6", "a\u0300" * 400, "½" * 300, "²" * 300]  # fmt: skip


def _code(witness: str) -> list[str]:
    make = f"open('{witness}','w')"
    return [f"__import__('os').system('touch {witness}')", make, f"exec({make!r})",
            f"eval({make!r})",
            rf"\text{{__import__('os').system('touch {witness}')}}", "().__class__.__bases__[0]",
            "x.__class__.__mro__", r"\mathrm{lambda: 1}", f"lambda x: {make}", f"$({make})$",
            f"np.load('{witness}')", "globals()", "sympy.sympify('1')", "Symbol('x').__init__",
            r"\input{/etc/passwd}", r"\write18{touch " + witness + "}", r"\def\x{\x\x}\x",
            "{{7*7}}", "${7*7}", "'; DROP TABLE answers; --", "<script>6</script>"]  # fmt: skip
