"""sft.sh: every variable reaches its option, and mistakes are known by variable."""

import pytest
from launching import knob_lines
from omegaconf import OmegaConf

from opdvr.integration.sft.config import check, compose


def test_every_knob_reaches_its_option(launch, tmp_path):
    by_kind = {"bool": "True", "real": "0.25", "text": "it's, 12"}
    by_kind |= dict.fromkeys(("model", "data", "folder"), str(tmp_path))
    chosen = {}
    for variable, kind, _ in knob_lines("SFT_KNOBS"):
        last_choice = "3" if kind.startswith("int") else kind.removeprefix("one:").split("|")[-1]
        chosen[variable] = by_kind.get(kind, last_choice)
    config = compose(launch("sft.sh", **chosen).overrides)
    for variable, _, option in knob_lines("SFT_KNOBS"):
        arrived = OmegaConf.select(config, option, throw_on_missing=True)
        assert str(arrived) == chosen[variable], (variable, option)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OPDVR_DEVICE": "cpu"}, ("cpu", 1, "float32", True)),
        ({"NGPUS_PER_NODE": "8"}, ("cuda", 8, "bfloat16", False)),
    ],
)
def test_machines(launch, variables, expected):
    config = compose(launch("sft.sh", **variables).overrides)
    check(config)
    trainer = config.trainer
    found = (trainer.device, trainer.n_gpus_per_node, config.sft.model_dtype, config.sft.demo)
    assert found == expected
    assert config.engine.mixed_precision.param_dtype == expected[2]
    assert config.engine.strategy == "fsdp2"


def test_what_follows_wins_and_names_the_command(launch):
    command = launch("sft.sh", "optim.lr=3e-5", ACTOR_LR="1e-5")
    assert command.words[-1] == "optim.lr=3e-5" and "sft" in command.words
    assert compose(command.overrides).optim.lr == 3e-5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.n_gpus_per_node=3"], "BATCH_SIZE .* 64 does not split evenly over 3 devices"),
        (["engine.ulysses_sequence_parallel_size=2"], "PARALLEL_SIZE above 1"),
        (["model.lora_rank=4", "engine.strategy=fsdp"], "LORA_RANK .*fsdp2"),
        (["model.lora_rank=-1"], "LORA_RANK .* is -1"),
        (["trainer.test_freq=often"], "TEST_FREQ .* 'often'"),
        (["data.max_length=0"], "MAX_LENGTH .* is 0"),
    ],
)
def test_contradictions_are_refused(overrides, message):
    with pytest.raises(ValueError, match=message):
        check(compose(["platform=cuda", *overrides]))
