"""From override strings to one resolved, validated verl configuration, without torch or verl."""

from __future__ import annotations

import importlib.util
import os
import time
from functools import reduce
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict

from opdvr.integration.options import OWN_VERIFIER, OpdvrOptions, translate_published_names
from opdvr.integration.runs import interrupted_run
from opdvr.integration.teacher_settings import choose_teacher
from opdvr.verifier.custom import split_name
from opdvr.verifier.extract import BOXED

CONF_DIR = Path(__file__).parent / "conf"
REPO_ROOT = Path(__file__).parents[2]
OWN_VERIFIER_PATH = "pkg://opdvr.verifier"
SUPERVISED_MODEL = "model"
DEMO_MODELS = Path(__file__).parents[1] / "demo" / "models"


def compose(overrides: list[str]) -> DictConfig:
    """The whole configuration of a run, every interpolation resolved.

    Args:
        overrides: Hydra overrides; published dotted names are translated first, the last one wins.

    Raises:
        ValueError: a value of ours is out of range, or fields contradict each other.
    """
    ConfigStore.instance().store(group="opdvr", name="options", node=OpdvrOptions)
    register_resolvers()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF_DIR), version_base=None):
        config = hydra_compose(
            "opdvr_trainer",
            overrides=[
                f"hydra.searchpath=[file://{verl_config_dir()}]",
                *groups_first(translate_published_names(overrides)),
            ],
        )
    options: OpdvrOptions = OmegaConf.to_object(config.opdvr)
    options.validate()
    with open_dict(config):
        _fill_names(config, overrides)
        _choose_attention(config)
        _choose_student_logprobs(config, options)
        choose_teacher(config, options)
        _choose_verifier(config, options)
        _make_paths_absolute(config)
    OmegaConf.resolve(config)
    return config


def distills(config: DictConfig) -> bool:
    """Whether a teacher takes part."""
    return bool(config.reward_model.enable)


def register_resolvers() -> None:
    """What our YAML files compute with: products, sums and maxima, and the embedded models."""
    resolvers = {
        "opdvr_product": lambda *values: reduce(lambda a, b: int(a) * int(b), values, 1),
        "opdvr_sum": lambda *values: sum(int(value) for value in values),
        "opdvr_max": lambda *values: max(int(value) for value in values),
        "opdvr_demo_model": lambda role, kind: str(
            DEMO_MODELS / ("student" if kind == "careless" else f"{role}-{kind}")
        ),
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def verl_config_dir() -> Path:
    """verl's own configurations, found without importing verl."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("verl is not installed; run `bash scripts/setup.sh`")
    return Path(spec.submodule_search_locations[0]) / "trainer" / "config"


def groups_first(overrides: list[str]) -> list[str]:
    """Hydra applies group choices before values wherever they stand; keep the rest in order."""
    return sorted(overrides, key=lambda text: not text.startswith(("platform=", "task=")))


def _fill_names(config: DictConfig, overrides: list[str]) -> None:
    """EXPERIMENT_NAME's default: method_signal_model_time, or this command's interrupted run."""
    model = model_name(config.actor_rollout_ref.model.path)
    fill_name(config, f"{method_name(config)}_{signal_name(config)}_{model}", overrides)


def model_name(path: str) -> str:
    """A model's name for run folders; of the folder that a supervised run ends with, the run's."""
    folder = Path(str(path))
    return folder.parent.name if folder.name == SUPERVISED_MODEL else folder.name


def fill_name(config: DictConfig, prefix: str, overrides: list[str]) -> None:
    """A run without a name gets <prefix>_<time>, or that of this command's interrupted run."""
    if config.trainer.experiment_name in (None, ""):
        name = None
        if config.trainer.resume_mode == "auto":
            name = interrupted_run(
                REPO_ROOT / "checkpoints", prefix, overrides, config.trainer.total_training_steps
            )
        if name is not None:
            print(f"opdvr: going on with the interrupted run {name} (anew: set EXPERIMENT_NAME)")
        config.trainer.experiment_name = name or f"{prefix}_{time.strftime('%Y%m%d-%H%M%S')}"
    config.trainer.experiment_name = str(config.trainer.experiment_name)


def method_name(config: DictConfig) -> str:
    """Short name of the method for run folders: opdvr, grpd, opd, inverse or grpo."""
    if not distills(config):
        return str(config.algorithm.adv_estimator)
    options = config.opdvr
    if options.grpo_scaled:
        return "grpd"
    if not options.correctness_gated or options.correctness_gated_mode == "none":
        return "opd"
    mode = options.correctness_gated_mode
    return "opdvr" if mode == "default" else mode


def signal_name(config: DictConfig) -> str:
    """What is compared, for run folders: top0 the sampled token; top16, and with whatever is not
    the default top16-union-teacher_p-tail; else the divergence over the whole vocabulary.
    """
    options, default = config.opdvr, OpdvrOptions()
    if options.full_vocabulary != default.full_vocabulary:
        return str(options.full_vocabulary)
    parts = [f"top{options.log_prob_top_k}"]
    if options.log_prob_top_k:
        for name in ("top_k_strategy", "reward_weight_mode"):
            if options[name] != getattr(default, name):
                parts.append(str(options[name]))
        parts += ["tail"] * bool(options.tail_bucket)
    return "-".join(parts)


def _choose_attention(config: DictConfig) -> None:
    model = config.actor_rollout_ref.model
    choose_attention(model.override_config)
    teacher = config.reward_model.model
    if "attn_implementation" not in teacher.override_config:
        teacher.override_config["attn_implementation"] = model.override_config.attn_implementation


def choose_attention(override_config: DictConfig) -> None:
    """flash-attn where it is installed, else sdpa with one warning (packing is kept either way)."""
    if "attn_implementation" in override_config:
        return
    if importlib.util.find_spec("flash_attn") is None:
        print("opdvr: flash-attn is not installed; attention runs on PyTorch's sdpa (slower)")
        override_config["attn_implementation"] = "sdpa"
    else:
        override_config["attn_implementation"] = "flash_attention_2"


def _choose_student_logprobs(config: DictConfig, options: OpdvrOptions) -> None:
    """Resolve `auto`; refuse `update` where a single forward is not exact."""
    estimator = config.algorithm.adv_estimator
    if not distills(config) and estimator != "grpo":
        raise ValueError(
            f"algorithm.adv_estimator={estimator} needs a teacher: set reward_model.enable=True, "
            "or use algorithm.adv_estimator=grpo"
        )
    if config.algorithm.use_kl_in_reward:
        raise ValueError(
            "algorithm.use_kl_in_reward has no effect on token rewards; use USE_KL=True (a KL loss)"
        )
    if config.reward_model.launch_reward_fn_async:
        raise ValueError(
            "reward_model.launch_reward_fn_async=True goes past the truncation rule and swallows "
            "the verifier's errors; leave it at False"
        )
    actor = config.actor_rollout_ref.actor
    reasons = []
    if config.algorithm.rollout_correction is not None:
        reasons.append("algorithm.rollout_correction compares log-probs of before the update")
    if int(config.data.train_batch_size) != int(actor.ppo_mini_batch_size):
        reasons.append(
            f"a step has {config.data.train_batch_size / actor.ppo_mini_batch_size:g} mini-batches "
            "(data.train_batch_size over MINI_BATCH_SIZE)"
        )
    if actor.ppo_epochs != 1:
        reasons.append(f"actor.ppo_epochs is {actor.ppo_epochs}")
    if estimator == "token_grpo":
        reasons.append("token_grpo normalises over whole groups before the update")
    if options.student_logprobs == "update" and reasons:
        raise ValueError(
            f"STUDENT_LOGPROBS=update (opdvr.student_logprobs) is exact only with one mini-batch "
            f"and one epoch a step, but {'; '.join(reasons)}; use STUDENT_LOGPROBS=recompute"
        )
    _check_candidates(config, options, reasons)
    if options.student_logprobs == "auto":
        config.opdvr.student_logprobs = "recompute" if reasons else "update"
    config.actor_rollout_ref.rollout.calculate_log_probs = True


def _check_candidates(config: DictConfig, options: OpdvrOptions, reasons: list[str]) -> None:
    """Refuse what top-k distillation or a whole vocabulary cannot be combined with."""
    full = options.full_vocabulary != "none"
    if not full and not options.log_prob_top_k:
        return
    asked = f"LOG_PROB_TOP_K={options.log_prob_top_k} (opdvr.log_prob_top_k)"
    if full:
        asked = f"FULL_VOCABULARY={options.full_vocabulary} (opdvr.full_vocabulary)"
    if options.student_logprobs == "rollout":
        raise ValueError(
            f"{asked} needs more than the sampled token's log-prob, which is all the inference "
            "engine gives; use STUDENT_LOGPROBS=auto"
        )
    if full and (reasons or options.student_logprobs == "recompute"):
        why = "; ".join(reasons) or "STUDENT_LOGPROBS=recompute was asked for"
        raise ValueError(
            f"{asked} is made inside the update's own forward, with one mini-batch and one epoch a "
            f"step, but {why}; make it one of each, or use LOG_PROB_TOP_K"
        )
    loss = config.actor_rollout_ref.actor.policy_loss.loss_mode
    if loss != "vanilla":
        raise ValueError(
            f"{asked} has PPO's clipped loss for every candidate, but "
            f"actor_rollout_ref.actor.policy_loss.loss_mode is {loss}; use vanilla"
        )


def _choose_verifier(config: DictConfig, options: OpdvrOptions) -> None:
    """VERIFIER as verl's custom_reward_function; ANSWER_FORMS as our verifier's own argument."""
    reward = config.custom_reward_function
    if options.verifier != OWN_VERIFIER:
        if reward.path != OWN_VERIFIER_PATH:
            raise ValueError(
                "VERIFIER (opdvr.verifier) and custom_reward_function.path both name a verifier; "
                "leave one of them out"
            )
        try:
            source, function = split_name(options.verifier)
        except ValueError as reason:
            raise ValueError(f"VERIFIER (opdvr.verifier): {reason}") from None
        reward.path = source if source.endswith(".py") else f"pkg://{source}"
        reward.name = function
    own = reward.path == OWN_VERIFIER_PATH
    if options.answer_forms != BOXED:
        if not own:
            raise ValueError(
                f"ANSWER_FORMS={options.answer_forms} (opdvr.answer_forms) is for our own "
                "verifier, but another one is named; leave it out"
            )
        reward.reward_kwargs = {"answer_forms": options.answer_forms}


def _absolute(path: str) -> str:
    text = os.path.expanduser(str(path))
    if os.path.isabs(text) or "://" in text:
        return text
    if not Path(text).exists() and (REPO_ROOT / text).exists():
        return str(REPO_ROOT / text)
    return os.path.abspath(text)


def make_paths_absolute(config: DictConfig, models: list[DictConfig]) -> None:
    """Data files, `models` and run folder: relative to the caller or else the repository."""
    for key in ("train_files", "val_files"):
        value = config.data[key]
        if value is not None:
            config.data[key] = (
                _absolute(value) if isinstance(value, str) else [_absolute(item) for item in value]
            )
    for holder in models:
        text = os.path.expanduser(str(holder.path))
        if Path(text).is_dir() or text.startswith((".", "/")):
            holder.path = os.path.abspath(text)
    folder = os.path.expanduser(str(config.trainer.default_local_dir))
    config.trainer.default_local_dir = folder if os.path.isabs(folder) else str(REPO_ROOT / folder)


def _make_paths_absolute(config: DictConfig) -> None:
    """Ray workers run in other folders: relative paths are the caller's or the repository's."""
    make_paths_absolute(config, [config.actor_rollout_ref.model, config.reward_model.model])
    reward = config.custom_reward_function
    if reward.path and not str(reward.path).startswith("pkg://"):
        scheme = "file://" if str(reward.path).startswith("file://") else ""
        reward.path = scheme + _absolute(str(reward.path).removeprefix("file://"))
