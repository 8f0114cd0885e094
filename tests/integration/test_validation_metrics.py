"""The vectorised statistics are verl's own numbers."""

import numpy as np
import pytest

pytest.importorskip("verl")

from verl.trainer.ppo import metric_utils  # noqa: E402

from opdvr.integration import validation  # noqa: E402


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_equal_to_verl(count):
    rng = np.random.default_rng(count)
    prompts = 5
    uids = [f"u{i}" for i in range(prompts) for _ in range(count)]
    sources = ["a" if i < 3 else "b" for i in range(prompts) for _ in range(count)]
    infos = {
        "acc": rng.integers(0, 2, prompts * count).astype(float).tolist(),
        "length": rng.normal(size=prompts * count).tolist(),
        "pred": [str(x) for x in rng.integers(0, 3, prompts * count)],
    }
    expected = metric_utils.process_validation_metrics(sources, uids, infos)
    found = validation.process_validation_metrics(sources, uids, infos)
    assert {s: {v: set(m) for v, m in by.items()} for s, by in found.items()} == {
        s: {v: set(m) for v, m in by.items()} for s, by in expected.items()
    }
    for source, variables in expected.items():
        for variable, metrics in variables.items():
            for name, value in metrics.items():
                assert found[source][variable][name] == pytest.approx(value, abs=1e-12), name


def test_mean_is_over_prompts_not_over_samples():
    # prompt u: 1 of 1 right; prompt v: 0 of 1; the mean over prompts is 1/2
    found = validation.process_validation_metrics(
        ["s", "s"], ["u", "v"], {"acc": [1.0, 0.0], "pred": ["1", "2"]}
    )
    assert found["s"]["acc"]["mean@1"] == 0.5


def test_installed_where_the_trainer_looks(monkeypatch):
    monkeypatch.setattr(validation.ray_trainer, "process_validation_metrics", None)
    validation.install()
    assert (
        validation.ray_trainer.process_validation_metrics is validation.process_validation_metrics
    )
