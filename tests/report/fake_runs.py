"""Run folders as training leaves them, with numbers that a test can work out."""

import json
from pathlib import Path

import yaml

EDGES = [None, -10.0, -1.0, -0.1, 0.0, 0.1, 1.0, 10.0, None]
POSITION_STARTS = [0, 1, 2, 4]
HOSTILE = (
    "</script><script>document.title='hacked'</script>",
    "<img src=x onerror=\"document.title='hacked'\">",
    "&lt;b&gt; \u2028\u2029 <!-- ]]> -->",
    "\u202eright to left\u202c",
    "\x00\x07\x1b[31m\r\n\t ",
    "\ud800 half a character",
    "$x_1$ 数学 \U0001f600 ' \" `",
)


def write_lines(file, records):
    text = "".join(json.dumps(record, ensure_ascii=True) + "\n" for record in records)
    Path(file).write_text(text, encoding="utf-8")


def config_of(gate="default", seed=1, name="run", folder="checkpoints/run"):
    return {
        "algorithm": {"adv_estimator": "token_reward_direct"},
        "actor_rollout_ref": {"model": {"path": "models/student"}},
        "reward_model": {"enable": True, "model": {"path": "models/teacher"}},
        "data": {"seed": seed},
        "opdvr": {
            "correctness_gated": True,
            "correctness_gated_mode": gate,
            "gate_temperature": 1.0,
            "gate_margin": 0.1,
            "gate_floor": 0.1,
        },
        "trainer": {"experiment_name": name, "default_local_dir": str(folder)},
    }


def metrics_lines(steps, offset=0.0):
    lines = [{"step": 0, "time": 0.0, "val-core/demo/acc/mean@2": 0.5}]
    for step in range(1, steps + 1):
        line = {
            "step": step,
            "time": float(step),
            "cg/correct_frac": 0.5 + offset,
            "opd/log_ratio_mean": -1.0 / step,
            "opd/log_ratio_abs_mean": 1.0 / step,
            "opd/reward_mean": -0.1,
            "opd/gate_pass_frac_correct": 0.6,
            "opd/gate_pass_frac_incorrect": 0.4,
            "opd/zeroed_mass_frac": 0.5,
            "cg/reward_zeroed_frac": 0.4,
            "actor/entropy": 0.3,
            "teacher/entropy": 0.2,
            "response_length/mean": 30.0,
            "opd/truncated_frac": 0.0,
            "timing_s/step": 2.0,
            "timing_s/gen": 1.0,
            "timing_s/update_actor": 0.75,
        }
        if step == steps:
            line["val-core/demo/acc/mean@2"] = 0.75 + offset
        lines.append(line)
    return lines


def anatomy_lines(steps):
    """A step: of correct responses 3 tokens of +2.0 (kept) and 1 of -0.5 (dropped); of incorrect
    ones 2 of -4.0 (kept) and 2 of +0.5 (dropped).
    """

    def bins(**filled):
        row = [0.0] * (len(EDGES) - 1)
        for place, value in filled.items():
            row[int(place[1:])] = value
        return row

    def line(step):
        return {
            "step": step,
            "log_ratio": {
                "correct": {
                    "tokens": bins(b6=3, b2=1),
                    "sum": bins(b6=6.0, b2=-0.5),
                    "kept_tokens": bins(b6=3),
                    "kept": bins(b6=6.0),
                },
                "incorrect": {
                    "tokens": bins(b1=2, b5=2),
                    "sum": bins(b1=-8.0, b5=1.0),
                    "kept_tokens": bins(b1=2),
                    "kept": bins(b1=8.0),
                },
            },
            "position": {
                "correct": {
                    "tokens": [1, 1, 2, 0],
                    "log_ratio": [2.0, -0.5, 4.0, 0],
                    "log_ratio_abs": [2.0, 0.5, 4.0, 0],
                    "kept_tokens": [1, 0, 2, 0],
                },
                "incorrect": {
                    "tokens": [1, 1, 2, 0],
                    "log_ratio": [-4.0, 0.5, -3.5, 0],
                    "log_ratio_abs": [4.0, 0.5, 4.5, 0],
                    "kept_tokens": [1, 0, 1, 0],
                },
            },
            "pushed": {
                "up": [[7, " the", 3, 6.0], [8, HOSTILE[0], 1, 0.5]],
                "down": [[9, "\n", 2, -8.0]],
            },
        }

    header = {"log_ratio_edges": EDGES, "position_starts": POSITION_STARTS}
    return [header, *(line(step) for step in range(1, steps + 1))]


def sample(step, correct, tokens=("4", "*", "2", "=", "8"), text="4*2=?", **changes):
    ratios = [round(0.5 * place - 1.0, 3) for place in range(len(tokens))]
    zeroed = [int((ratio > 0) != correct) for ratio in ratios]
    return {
        "step": step,
        "name": "extra_info.index 1",
        "data_source": "demo",
        "prompt": text,
        "gold": "8",
        "response_tokens": len(tokens),
        "score": float(correct),
        "correct": correct,
        "truncated": False,
        "scale": None,
        "tokens": list(tokens),
        "ids": list(range(len(tokens))),
        "log_ratio": ratios,
        "reward": [0.0 if gone else ratio for ratio, gone in zip(ratios, zeroed, strict=True)],
        "zeroed": zeroed,
        "omitted": None,
        **changes,
    }


def validation_lines(steps):
    """Four problems: 2 of 4 before, 3 of 4 after."""

    def line(step, accuracy):
        response = {"data_source": "demo", "prompt": "4*2=?", "response": f"it is {step}\n8"}
        return {
            "step": step,
            "n": 2,
            "sources": {"demo": {"problems": ["a", "b", "c", "d"], "accuracy": accuracy}},
            "samples": [{**response, "gold": "8", "score": 1.0}, {**response, "score": 0.0}],
        }

    return [line(0, [1.0, 1.0, 0.0, 0.0]), line(steps, [1.0, 1.0, 1.0, 0.0])]


def write_fake_run(
    folder, gate="default", seed=1, steps=10, offset=0.0, records=True, samples=None
) -> Path:
    """A finished run; without `records` as older versions left it."""
    folder = Path(folder)
    folder.mkdir(parents=True)
    write_lines(folder / "metrics.jsonl", metrics_lines(steps, offset))
    config = config_of(gate, seed, folder.name, folder)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    command = ["opdvr", "train", f"opdvr.correctness_gated_mode={gate}"]
    versions = {"python": "3.11", "started": "2026-01-01", "command": command}
    (folder / "versions.json").write_text(json.dumps(versions))
    (folder / "git.json").write_text(json.dumps({"commit": "abc", "branch": "main"}))
    if records:
        write_lines(folder / "anatomy.jsonl", anatomy_lines(steps))
        if samples is None:
            samples = [sample(step, good) for step in range(1, steps + 1) for good in (True, False)]
        write_lines(folder / "token_samples.jsonl", samples)
        write_lines(folder / "validation.jsonl", validation_lines(steps))
    return folder
