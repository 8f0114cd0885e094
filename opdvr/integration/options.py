"""The `opdvr` option group: one dataclass, each default once, and the published names for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from opdvr.report.watch import MODES as WATCHDOG_MODES
from opdvr.teacher import ENGINES
from opdvr.teacher.engines import TeacherSettings
from opdvr.verifier.custom import OWN as OWN_VERIFIER
from opdvr.verifier.extract import ANSWER_FORMS, BOXED

if TYPE_CHECKING:
    from opdvr.core import MethodSpec

STUDENT_LOGPROBS = ("auto", "update", "recompute", "rollout")
TRUNCATED_RESPONSES = ("keep", "wrong", "mask")
TOP_K_STRATEGIES = ("only_stu", "only_tch", "intersection", "union", "union-intersection")
REWARD_WEIGHT_MODES = ("student_p", "teacher_p", "none")
FULL_VOCABULARY = ("none", "reverse_kl", "forward_kl", "jensen_shannon")
# float16 gradients underflow at a token-mean loss without a loss scaler, which the engine lacks
MODEL_DTYPES = ("bfloat16", "float32")
DEMO_STUDENTS = ("careless", "other-style", "other-pretraining")
DEMO_TEACHERS = ("faulty", "good")
PREFLIGHT_MODES = ("stop", "warn", "strict", "off")
# Before there were modes it was a switch.
_SWITCHED = {"true": "stop", "false": "off"}

# Published dotted names (forks of verl put them there) -> field of OpdvrOptions.
_ROLLOUT = "actor_rollout_ref.rollout"
PUBLISHED_NAMES = {
    f"{_ROLLOUT}.log_prob_top_k": "log_prob_top_k",
    f"{_ROLLOUT}.top_k_strategy": "top_k_strategy",
    f"{_ROLLOUT}.reward_weight_mode": "reward_weight_mode",
    f"{_ROLLOUT}.teacher_temperature": "teacher_temperature",
    f"{_ROLLOUT}.correctness_gated": "correctness_gated",
    f"{_ROLLOUT}.correctness_threshold": "correctness_threshold",
    f"{_ROLLOUT}.correctness_gated_mode": "correctness_gated_mode",
    f"{_ROLLOUT}.grpo_scaled": "grpo_scaled",
    f"{_ROLLOUT}.grpo_norm_by_std": "grpo_norm_by_std",
    f"{_ROLLOUT}.grpo_scale_baseline": "grpo_scale_baseline",
    "algorithm.grpo_outcome_weight": "grpo_outcome_weight",
    "data.max_val_response_length": "max_val_response_length",
}


@dataclass
class OpdvrOptions:
    """Every option of ours; `opdvr.<field>=value` on the command line.

    Attributes:
        correctness_gated: pass the teacher's signal through the gate; False is plain OPD.
        correctness_gated_mode: gate by name, a key of `opdvr.core.gates.GATES`.
        correctness_threshold: a response is correct if its verifier score is strictly greater.
        grpo_scaled: GRPD, scale the gated signal by |a| + grpo_scale_baseline.
        grpo_norm_by_std: a = (c - mean) / (std + 1e-6) instead of c - mean.
        grpo_scale_baseline: u in |a| + u.
        grpo_outcome_weight: w in A = r + w * GRPO advantage (token_reward_direct_plus_grpo).
        log_prob_top_k: K of top-k OPD; 0 is sampled-token OPD.
        top_k_strategy, reward_weight_mode: candidates and weights of top-k OPD.
        tail_bucket: one more candidate, all other tokens together.
        top_k_overlap: also report `val-topk/...`, for which both models' top K are needed.
        full_vocabulary: a divergence over the whole vocabulary instead of sampled tokens or
            candidates; single forward only, and the teacher's last hidden states travel.
        gate_temperature, gate_margin, gate_floor: of the gates soft, margin and leaky.
        teacher_temperature: divides the teacher's logits.
        teacher_engine: what computes the teacher's log-probs, a key of `opdvr.teacher.ENGINES`:
            fsdp (beside the student, or on verl's own pool), vllm (engines of ours) or server.
        teacher_urls: of running servers, comma-separated, or data_source=url pairs.
        teacher_devices: GPUs (on the CPU: engines) of the teacher's own with vllm; 0 shares the
            rollout's, taking turns. reward_model.enable_resource_pool sets it too.
        teacher_parallel_size: devices that one vllm engine spreads over.
        teacher_timeout: seconds that one request to a server may take.
        teacher_patience: seconds to wait for a lost server before the run stops.
        teacher_max_in_flight: requests under way at once to one server.
        teacher_entropy: also report `teacher/entropy` (nats), at the cost of one more pass over
            each chunk of logits.
        student_logprobs: where log pi_student in the reward comes from. `update`: the update's own
            forward (no old-log-prob pass); exact with one mini-batch and one epoch a step.
            `recompute`: a separate forward, as verl does. `rollout`: the inference engine's values.
            `auto`: update where it is exact, else recompute.
        log_entropy: report `actor/entropy` in `update` mode.
        gate_anatomy: report quantiles of the log-ratio and its mean by position, and write
            anatomy.jsonl: distributions, and the tokens most often pushed up and down.
        token_samples: responses a step, of 48 steps at most, that are written token by token to
            token_samples.jsonl; 0 for none.
        truncated_responses: what a response cut at the length limit counts as. `keep`: the verifier
            decides; `wrong`: incorrect whatever it says; `mask`: no signal, and out of its group.
        head_chunk_tokens: tokens in a tile of logits; None lets the device choose. Tiles are cut
            over the vocabulary too, so no [tokens, V] is ever held.
        max_val_response_length: response limit in validation; None takes data.max_response_length.
        parallel_size: tensor parallel size of the rollout and Ulysses size of student and teacher.
        model_dtype: dtype of computation, of the rollout and of the teacher's weights.
        use_kl: KL loss to the initial student, verl's 0.005 low_var_kl.
        in_process_rollout: run the agent loop inside the trainer's process (one machine, no GPU).
        verifier: `module:function` or `file.py:function`, verl's contract of a custom reward
            function; the same as custom_reward_function.path and .name.
        answer_forms: what our verifier reads: boxed, or any ("Answer: ..." where there is no box).
        watchdog: what a step's metrics that look wrong do: warn, stop (after saving), or off.
        demo: this is the embedded task: make its data, measure its teacher at the end.
        demo_student: student of the embedded task; other-style writes its steps in another order,
            other-pretraining in another notation.
        demo_teacher: teacher of the embedded task: faulty on purpose, or good.
        preflight: what is looked at before Ray starts, and what stops the run. `stop`: errors do.
            `strict`: warnings too. `warn`: neither. `off`: nothing is looked at but names.
    """

    correctness_gated: bool = True
    correctness_gated_mode: str = "default"
    correctness_threshold: float = 0.0
    grpo_scaled: bool = False
    grpo_norm_by_std: bool = False
    grpo_scale_baseline: float = 0.0
    grpo_outcome_weight: float = 1.0
    log_prob_top_k: int = 0
    top_k_strategy: str = "only_stu"
    reward_weight_mode: str = "student_p"
    tail_bucket: bool = False
    top_k_overlap: bool = True
    full_vocabulary: str = "none"
    gate_temperature: float = 1.0
    gate_margin: float = 0.1
    gate_floor: float = 0.1
    teacher_temperature: float = 1.0
    teacher_engine: str = "fsdp"
    teacher_urls: str = ""
    teacher_devices: int = 0
    teacher_parallel_size: int = 1
    teacher_timeout: float = TeacherSettings.timeout_s
    teacher_patience: float = TeacherSettings.patience_s
    teacher_max_in_flight: int = TeacherSettings.max_in_flight
    teacher_entropy: bool = True
    student_logprobs: str = "auto"
    log_entropy: bool = True
    gate_anatomy: bool = True
    token_samples: int = 4
    truncated_responses: str = "keep"
    head_chunk_tokens: int | None = None
    max_val_response_length: int | None = None
    parallel_size: int = 1
    model_dtype: str = "bfloat16"
    use_kl: bool = False
    in_process_rollout: bool = False
    verifier: str = OWN_VERIFIER
    answer_forms: str = BOXED
    watchdog: str = "warn"
    demo: bool = False
    demo_student: str = "careless"
    demo_teacher: str = "faulty"
    preflight: str = "stop"

    def validate(self) -> None:
        """Raise ValueError, naming variable and option, if a value is out of its range."""
        _one_of("STUDENT_LOGPROBS", "student_logprobs", self.student_logprobs, STUDENT_LOGPROBS)
        _one_of(
            "TRUNCATED_RESPONSES",
            "truncated_responses",
            self.truncated_responses,
            TRUNCATED_RESPONSES,
        )
        _one_of("TOP_K_STRATEGY", "top_k_strategy", self.top_k_strategy, TOP_K_STRATEGIES)
        _one_of(
            "REWARD_WEIGHT_MODE", "reward_weight_mode", self.reward_weight_mode, REWARD_WEIGHT_MODES
        )
        _one_of("FULL_VOCABULARY", "full_vocabulary", self.full_vocabulary, FULL_VOCABULARY)
        _one_of("TEACHER_ENGINE", "teacher_engine", self.teacher_engine, tuple(ENGINES))
        _one_of("ANSWER_FORMS", "answer_forms", self.answer_forms, ANSWER_FORMS)
        _one_of("MODEL_DTYPE", "model_dtype", self.model_dtype, MODEL_DTYPES)
        _one_of("WATCHDOG", "watchdog", self.watchdog, WATCHDOG_MODES)
        _one_of("DEMO_STUDENT", "demo_student", self.demo_student, DEMO_STUDENTS)
        _one_of("DEMO_TEACHER", "demo_teacher", self.demo_teacher, DEMO_TEACHERS)
        preflight_mode(self.preflight)
        for variable, name, least in (
            ("TEACHER_TEMPERATURE", "teacher_temperature", 1e-6),
            ("TEACHER_DEVICES", "teacher_devices", 0),
            ("TEACHER_PARALLEL_SIZE", "teacher_parallel_size", 1),
            ("TEACHER_TIMEOUT", "teacher_timeout", 1e-3),
            ("TEACHER_PATIENCE", "teacher_patience", 0),
            ("TEACHER_MAX_IN_FLIGHT", "teacher_max_in_flight", 1),
            ("HEAD_CHUNK_TOKENS", "head_chunk_tokens", 1),
            ("PARALLEL_SIZE", "parallel_size", 1),
            ("LOG_PROB_TOP_K", "log_prob_top_k", 0),
            ("TOKEN_SAMPLES", "token_samples", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{variable} (opdvr.{name}) must be at least {least:g}")

    def method(self, estimator: str, distill: bool) -> MethodSpec:
        """The method as data, for `opdvr.core` (which validates gate and estimator names)."""
        from opdvr.core import MethodSpec  # here: torch must not load before the first checks

        return MethodSpec(
            estimator=estimator,
            distill=distill,
            gate=self.correctness_gated_mode if self.correctness_gated else "none",
            correctness_threshold=self.correctness_threshold,
            grpo_scaled=self.grpo_scaled,
            grpo_norm_by_std=self.grpo_norm_by_std,
            grpo_scale_baseline=self.grpo_scale_baseline,
            grpo_outcome_weight=self.grpo_outcome_weight,
            gate_temperature=self.gate_temperature,
            gate_margin=self.gate_margin,
            gate_floor=self.gate_floor,
            log_prob_top_k=self.log_prob_top_k,
            top_k_strategy=self.top_k_strategy,
            reward_weight_mode=self.reward_weight_mode,
            tail_bucket=self.tail_bucket,
            full_vocabulary=self.full_vocabulary,
        )


def name_variables(message: str) -> str:
    """A message of the core with its options as users set them: variable, then option."""
    estimator = "algorithm.adv_estimator"
    message = message.replace(f"{estimator}=", f"ADV_ESTIMATOR ({estimator})=")
    for name in _WITH_A_VARIABLE:
        message = re.sub(rf"\b{name}=", f"{name.upper()} (opdvr.{name})=", message)
    return message


def preflight_mode(value: str) -> str:
    """One of PREFLIGHT_MODES; the old True and False are `stop` and `off`.

    Raises:
        ValueError: it is none of these.
    """
    mode = _SWITCHED.get(str(value).lower(), str(value))
    _one_of("PREFLIGHT", "preflight", mode, PREFLIGHT_MODES)
    return mode


def without_effect(options: OpdvrOptions) -> list[str]:
    """One line for every option that was set and that this method does not read."""
    gate, default = options.correctness_gated_mode, OpdvrOptions()
    lines = []
    if not options.correctness_gated and gate not in (default.correctness_gated_mode, "none"):
        lines.append(
            f"CORRECTNESS_GATED_MODE={gate} has no effect with CORRECTNESS_GATED=False, which "
            "switches the gate off"
        )
    reads = {
        "gate_temperature": options.correctness_gated and gate == "soft",
        "gate_margin": options.correctness_gated and gate == "margin",
        "gate_floor": options.correctness_gated and gate == "leaky",
        "top_k_strategy": options.log_prob_top_k > 0,
        "reward_weight_mode": options.log_prob_top_k > 0,
    }
    for name, is_read in reads.items():
        value = getattr(options, name)
        if not is_read and value != getattr(default, name):
            needs = "LOG_PROB_TOP_K above 0" if "gate" not in name else _GATE_OF[name]
            lines.append(f"{name.upper()}={value} (opdvr.{name}) has no effect without {needs}")
    return lines


_GATE_OF = {
    "gate_temperature": "CORRECTNESS_GATED_MODE=soft",
    "gate_margin": "CORRECTNESS_GATED_MODE=margin",
    "gate_floor": "CORRECTNESS_GATED_MODE=leaky",
}
_WITH_A_VARIABLE = (
    "correctness_gated_mode",
    "correctness_threshold",
    "grpo_scaled",
    "grpo_norm_by_std",
    "grpo_scale_baseline",
    "log_prob_top_k",
    "top_k_strategy",
    "reward_weight_mode",
    "tail_bucket",
    "full_vocabulary",
    "gate_temperature",
    "gate_margin",
    "gate_floor",
)


def _one_of(variable: str, name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(
            f"{variable} (opdvr.{name}) is {value!r}; it must be one of {', '.join(allowed)}"
        )


_OVERRIDE = re.compile(r"^(?P<sign>\+\+|\+)?(?P<key>[^=~+@]+)=(?P<value>.*)$", re.DOTALL)


def translate_published_names(overrides: list[str]) -> list[str]:
    """Rewrite published dotted names, with or without a plus, to `opdvr.<field>`."""
    translated = []
    for override in overrides:
        match = _OVERRIDE.match(override)
        field = PUBLISHED_NAMES.get(match["key"].strip()) if match else None
        translated.append(f"opdvr.{field}={match['value']}" if match and field else override)
    return translated


assert set(PUBLISHED_NAMES.values()) <= {field.name for field in fields(OpdvrOptions)}
