"""Each launcher's command gives a whole, valid configuration on every size of machine."""

import pytest
from launching import knob_lines
from omegaconf import OmegaConf

from opdvr.core.advantages import ESTIMATORS
from opdvr.core.gates import GATES
from opdvr.integration import options
from opdvr.integration.config import compose, method_name
from opdvr.teacher import ENGINES

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
    """All variables at once, each unlike its default, found again where the table says."""
    by_kind = {"bool": "True", "real": "0.25", "text": "it's, 12"}
    by_kind |= dict.fromkeys(("model", "data", "folder"), str(tmp_path))
    # Top-k is left at a value that every version takes; the others have to suit each other.
    by_name = {
        "LOG_PROB_TOP_K": "0",
        "FULL_VOCABULARY": "none",  # needs STUDENT_LOGPROBS=update
        "CORRECTNESS_GATED": "False",
    }
    by_name |= {"STUDENT_LOGPROBS": "recompute", "ADV_ESTIMATOR": "token_reward_direct_plus_grpo"}
    by_name |= {"VERIFIER": "mine.py:grade", "ANSWER_FORMS": "boxed"}
    by_name |= {"TEACHER_ENGINE": "vllm", "TEACHER_URLS": ""}  # addresses: the test below
    chosen = {}
    for variable, kind, _ in knob_lines():
        last_choice = "3" if kind.startswith("int") else kind.removeprefix("one:").split("|")[-1]
        chosen[variable] = by_name.get(variable, by_kind.get(kind, last_choice))
    config = compose(launch("opdvr.sh", **chosen).overrides)
    for variable, _, option in knob_lines():
        arrived = OmegaConf.select(config, option, throw_on_missing=True)
        assert str(arrived) == chosen[variable], (variable, option)


def test_addresses_of_teachers_reach_their_option(launch):
    urls = "AIME24=http://[::1]:8000,it's=http://host:8001/v1"
    command = launch("opdvr.sh", TEACHER_ENGINE="server", TEACHER_URLS=urls)
    assert compose(command.overrides).opdvr.teacher_urls == urls


def test_the_shell_and_python_know_the_same_names():
    known = {
        "TOP_K_STRATEGY": options.TOP_K_STRATEGIES,
        "REWARD_WEIGHT_MODE": options.REWARD_WEIGHT_MODES,
        "FULL_VOCABULARY": options.FULL_VOCABULARY,
        "CORRECTNESS_GATED_MODE": GATES,
        "TRUNCATED_RESPONSES": options.TRUNCATED_RESPONSES,
        "STUDENT_LOGPROBS": options.STUDENT_LOGPROBS,
        "ANSWER_FORMS": options.ANSWER_FORMS,
        "TEACHER_ENGINE": ENGINES,
        "MODEL_DTYPE": options.MODEL_DTYPES,
        "ADV_ESTIMATOR": ESTIMATORS,
        "PREFLIGHT": options.PREFLIGHT_MODES,
        "WATCHDOG": options.WATCHDOG_MODES,
        "DEMO_STUDENT": options.DEMO_STUDENTS,
        "DEMO_TEACHER": options.DEMO_TEACHERS,
    }
    listed = {}
    for variable, kind, _ in knob_lines():
        if kind.startswith("one:"):
            listed[variable] = set(kind[len("one:") :].split("|"))
    assert listed == {variable: set(names) for variable, names in known.items()}
