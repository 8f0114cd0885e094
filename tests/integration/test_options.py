"""Our option group: published names, ranges, and what `auto` resolves to."""

import dataclasses

import pytest

from opdvr.core import MethodSpec
from opdvr.integration import options
from opdvr.integration.config import compose, method_name
from opdvr.integration.options import PUBLISHED_NAMES, OpdvrOptions, translate_published_names

DEMO = ["platform=cpu", "task=demo"]


@pytest.mark.parametrize("sign", ["", "+", "++"])
@pytest.mark.parametrize("published", PUBLISHED_NAMES)
def test_published_names_mean_our_options(sign, published):
    assert translate_published_names([f"{sign}{published}=3"]) == [
        f"opdvr.{PUBLISHED_NAMES[published]}=3"
    ]


def test_other_overrides_are_left_alone():
    untouched = ["actor_rollout_ref.rollout.n=4", "~data.seed", "+a.b={c: 1}", "x='a=b'"]
    assert translate_published_names(untouched) == untouched


def test_published_gate_switch_through_the_whole_composition():
    config = compose([*DEMO, "+actor_rollout_ref.rollout.correctness_gated=False"])
    assert config.opdvr.correctness_gated is False and method_name(config) == "opd"
    # the published name never reaches verl's rollout dataclass, which would refuse it
    assert "correctness_gated" not in config.actor_rollout_ref.rollout


def test_the_last_of_two_names_for_one_option_wins():
    config = compose(
        [
            *DEMO,
            "opdvr.correctness_threshold=0.5",
            "actor_rollout_ref.rollout.correctness_threshold=0.25",
        ]
    )
    assert config.opdvr.correctness_threshold == 0.25


def test_defaults_agree_with_the_cores():
    """The options cannot import the core (torch) for its defaults; they must not drift apart."""
    options = OpdvrOptions()
    assert options.method("token_reward_direct", distill=True) == MethodSpec()
    shared = {f.name for f in dataclasses.fields(MethodSpec)} & {
        f.name for f in dataclasses.fields(OpdvrOptions)
    }
    assert shared >= {"correctness_threshold", "grpo_scaled", "grpo_outcome_weight"}
    for name in shared:
        assert getattr(options, name) == getattr(MethodSpec(), name)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("opdvr.truncated_responses=sometimes", "TRUNCATED_RESPONSES"),
        ("opdvr.student_logprobs=guess", "STUDENT_LOGPROBS"),
        ("opdvr.model_dtype=int8", "MODEL_DTYPE"),
        ("opdvr.teacher_temperature=0", "TEACHER_TEMPERATURE"),
        ("opdvr.log_prob_top_k=-4", "LOG_PROB_TOP_K"),
        ("opdvr.full_vocabulary=kl", "FULL_VOCABULARY"),
        ("algorithm.use_kl_in_reward=True", "USE_KL"),
        ("reward_model.enable=False", "adv_estimator"),
        ("reward_model.launch_reward_fn_async=True", "launch_reward_fn_async"),
    ],
)
def test_a_bad_value_is_refused_by_name(override, named):
    with pytest.raises(ValueError, match=named) as error:
        compose([*DEMO, override])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "update"),
        (["data.train_batch_size=32"], "recompute"),  # two mini-batches
        (["actor_rollout_ref.actor.ppo_epochs=2"], "recompute"),
        (["algorithm.adv_estimator=token_grpo"], "recompute"),
        (["algorithm.adv_estimator=grpo", "reward_model.enable=False"], "update"),
        (["opdvr.student_logprobs=rollout"], "rollout"),
    ],
)
def test_student_logprobs(overrides, expected):
    assert compose([*DEMO, *overrides]).opdvr.student_logprobs == expected


def test_update_is_refused_where_it_is_not_exact():
    with pytest.raises(ValueError, match="STUDENT_LOGPROBS=update.*2 mini-batches"):
        compose([*DEMO, "data.train_batch_size=32", "opdvr.student_logprobs=update"])


def test_experiment_name_of_digits_stays_text():
    assert compose([*DEMO, "trainer.experiment_name=12"]).trainer.experiment_name == "12"


@pytest.mark.parametrize(
    ("override", "variable", "known"),
    [
        ("opdvr.correctness_gated_mode=sideways", "CORRECTNESS_GATED_MODE", "inverse"),
        ("algorithm.adv_estimator=gae", "ADV_ESTIMATOR", "token_reward_direct"),
    ],
)
def test_an_unknown_name_is_refused_before_ray_starts(override, variable, known, capsys, tmp_path):
    from opdvr.integration.launch import main

    assert main([*DEMO, override, f"trainer.default_local_dir={tmp_path}"]) == 2
    line = capsys.readouterr().err.strip()
    assert variable in line and override.split("=")[1] in line and known in line


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["platform=cpu", "trainer.n_gpus_per_node=1"], "REWARD_MODEL_PATH"),
        ([*DEMO, "trainer.nnodes=2"], "RAY_ADDRESS"),
    ],
)
def test_what_was_never_named_is_asked_for(overrides, named, capsys, monkeypatch):
    from opdvr.integration.launch import main

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(overrides) == 2
    assert named in capsys.readouterr().err


def test_a_length_limit_that_leaves_too_little_is_named():
    from opdvr.integration.prompts import refuse_too_few

    config = compose(DEMO)
    refuse_too_few(config, 16, 1)
    with pytest.raises(ValueError, match="15 training.*MAX_PROMPT_LENGTH.*MINI_BATCH_SIZE"):
        refuse_too_few(config, 15, 1)


MANY_MINI_BATCHES = ["data.train_batch_size=32", "actor_rollout_ref.actor.ppo_mini_batch_size=16"]


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["opdvr.log_prob_top_k=4", "opdvr.student_logprobs=rollout"], "LOG_PROB_TOP_K=4"),
        (["opdvr.full_vocabulary=reverse_kl", *MANY_MINI_BATCHES], "2 mini-batches"),
        (
            ["opdvr.full_vocabulary=reverse_kl", "opdvr.student_logprobs=recompute"],
            "FULL_VOCABULARY=reverse_kl",
        ),
        (
            [
                "opdvr.log_prob_top_k=4",
                "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
            ],
            "loss_mode is gspo",
        ),
    ],
)
def test_what_top_k_cannot_be_combined_with_is_refused(overrides, named):
    with pytest.raises(ValueError, match=named) as error:
        compose([*DEMO, *overrides])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "top0"),
        (["opdvr.top_k_strategy=union"], "top0"),  # without effect, so not named
        (["opdvr.log_prob_top_k=16"], "top16"),
        (
            [
                "opdvr.log_prob_top_k=4",
                "opdvr.top_k_strategy=union",
                "opdvr.reward_weight_mode=teacher_p",
                "opdvr.tail_bucket=True",
            ],
            "top4-union-teacher_p-tail",
        ),
        (["opdvr.full_vocabulary=forward_kl"], "forward_kl"),
    ],
)
def test_the_run_is_named_by_what_it_compares(overrides, expected):
    config = compose([*DEMO, "trainer.resume_mode=disable", *overrides])
    assert config.trainer.experiment_name.startswith(f"opdvr_{expected}_student_")


def test_what_has_no_effect_is_said():
    assert options.without_effect(OpdvrOptions()) == []
    assert options.without_effect(OpdvrOptions(log_prob_top_k=4, top_k_strategy="union")) == []
    soft = OpdvrOptions(correctness_gated_mode="soft", gate_temperature=2.0)
    assert options.without_effect(soft) == []
    (line,) = options.without_effect(OpdvrOptions(gate_floor=0.5))
    assert "GATE_FLOOR=0.5" in line and "leaky" in line
    (line,) = options.without_effect(OpdvrOptions(top_k_strategy="union"))
    assert "TOP_K_STRATEGY=union" in line and "LOG_PROB_TOP_K" in line
    off = OpdvrOptions(correctness_gated=False, correctness_gated_mode="mixed")
    (line,) = options.without_effect(off)
    assert "CORRECTNESS_GATED_MODE=mixed" in line


def test_a_message_of_the_core_names_variable_and_option():
    with pytest.raises(ValueError) as error:
        OpdvrOptions(tail_bucket=True).method("token_reward_direct", distill=True)
    text = options.name_variables(str(error.value))
    assert text.startswith("TAIL_BUCKET (opdvr.tail_bucket)=True")


def test_top_k_recomputes_with_several_mini_batches():
    config = compose([*DEMO, "opdvr.log_prob_top_k=4", *MANY_MINI_BATCHES])
    assert config.opdvr.student_logprobs == "recompute"
