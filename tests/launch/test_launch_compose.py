"""Each launcher's command gives a whole, valid configuration on every size of machine."""

import pytest
from launching import knob_lines

from opdvr.core.advantages import ESTIMATORS
from opdvr.core.gates import GATES
from opdvr.integration import options
from opdvr.integration.config import compose, method_name

MACHINES = {
    "cpu and embedded task": {"OPDVR_DEVICE": "cpu"},
    "1 GPU": {"NGPUS_PER_NODE": "1"},
    "8 GPUs": {"NGPUS_PER_NODE": "8"},
    "2 nodes": {"NGPUS_PER_NODE": "8", "NNODES": "2", "PARALLEL_SIZE": "2"},
}
NAMES = {
    "opdvr.sh": "opdvr",
    "grpd.sh": "grpd",
    "opd_baseline.sh": "opd",
    "ablation_inverse_gated.sh": "inverse",
    "grpo.sh": "grpo",
}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_command_composes(launch, launcher, machine):
    config = compose(launch(launcher, **MACHINES[machine]).overrides)
    expected = MACHINES[machine]
    assert method_name(config) == NAMES[launcher]
    assert config.trainer.device == expected.get("OPDVR_DEVICE", "cuda")
    assert config.trainer.n_gpus_per_node == int(expected.get("NGPUS_PER_NODE", 1))
    assert config.trainer.nnodes == int(expected.get("NNODES", 1))
    parallel = int(expected.get("PARALLEL_SIZE", 1))
    batch = config.actor_rollout_ref.actor.ppo_mini_batch_size * parallel
    assert config.data.train_batch_size == batch
    assert config.reward_model.enable == (launcher != "grpo.sh")
    groups = {"grpd.sh": 8, "grpo.sh": 8}
    default = 8 if machine.startswith("cpu") else 1
    assert config.actor_rollout_ref.rollout.n == groups.get(launcher, default)


def test_every_knob_reaches_its_option(launch, tmp_path):
    """Each variable is set to a value unlike its default and found again where it belongs."""
    folder = str(tmp_path)
    samples = {"bool": ["True", "False"], "real": ["0.25"], "text": ["it's, 12"]}
    for variable, kind, option in knob_lines():
        choices = samples.get(kind, [])
        if kind.startswith("int"):
            choices = ["3"]
        elif kind.startswith("one:"):
            choices = kind[len("one:") :].split("|")
        elif kind in ("model", "data", "folder"):
            choices = [folder]
        if variable == "LOG_PROB_TOP_K":
            choices = ["0"]  # a value that every version accepts
        for choice in choices:
            overrides = launch("opdvr.sh", **{variable: choice}).overrides
            expected = [item for item in overrides if item.startswith(f"{option}=")]
            assert len(expected) == 1, variable
            base = [item for item in overrides if item != expected[0]]
            check_lands(base, expected[0], option, choice)


def check_lands(base, override, option, choice):
    try:
        config = compose([*base, override])
    except ValueError as error:  # a real conflict between options, said in words of ours
        assert "opdvr." in str(error) or "algorithm." in str(error)
        return
    node = config
    for key in option.split("."):
        assert key in node, f"{option} does not exist"
        node = node[key]
    assert str(node).lower() == choice.lower() or option == "opdvr.student_logprobs"


def test_the_shell_and_python_know_the_same_names():
    known = {
        "TOP_K_STRATEGY": options.TOP_K_STRATEGIES,
        "REWARD_WEIGHT_MODE": options.REWARD_WEIGHT_MODES,
        "CORRECTNESS_GATED_MODE": GATES,
        "TRUNCATED_RESPONSES": options.TRUNCATED_RESPONSES,
        "STUDENT_LOGPROBS": options.STUDENT_LOGPROBS,
        "MODEL_DTYPE": options.MODEL_DTYPES,
        "ADV_ESTIMATOR": ESTIMATORS,
        "DEMO_TEACHER": options.DEMO_TEACHERS,
    }
    listed = {}
    for variable, kind, _ in knob_lines():
        if kind.startswith("one:"):
            listed[variable] = set(kind[len("one:") :].split("|"))
    assert listed == {variable: set(names) for variable, names in known.items()}
