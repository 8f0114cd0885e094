"""verl's PPO trainer with the teacher's signal: small overrides, verl's own `fit`."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from opdvr.core import NonFiniteError, TokenRewards, add_sums, metrics_from_sums
from opdvr.core.spec import SAMPLED_ONLY
from opdvr.integration import checkpoints, scoring, signal, validation, watchdog
from opdvr.integration.config import distills
from opdvr.integration.loss import SUMS, ForwardLoss
from opdvr.integration.observed import OBSERVED, SAMPLE_SLOT, Observed, combined, observe
from opdvr.integration.options import OpdvrOptions
from opdvr.integration.prompts import refuse_long_prompts, refuse_too_few
from opdvr.integration.recorder import Recorder
from opdvr.integration.reward_manager import verifier_failures
from opdvr.integration.teacher import TeacherPool
from opdvr.integration.teacher_settings import has_own_engine, teacher_wanted
from opdvr.integration.terminal import say, stage
from opdvr.integration.tracking import logging_to_run_folder
from opdvr.integration.truncation import end_tokens, truncated_responses, without_end
from opdvr.teacher.engines import TeacherError

ADVANTAGE_METRICS = ("mean", "max", "min")


class OpdvrTrainer(validation.RecordedValidation, RayPPOTrainer):
    """One step: generate, ask the teacher, ask the verifier, update. See docs/verl.md."""

    teacher_pool: TeacherPool | None = None  # engines outside verl's worker groups
    data_state: dict | None = None  # position in the data after the last complete step

    def __init__(self, *args: object, **kwargs: object):
        super().__init__(*args, **kwargs)
        signal.register_estimators()
        validation.install()
        options: OpdvrOptions = OmegaConf.to_object(self.config.opdvr)
        self.options = options
        self.spec = options.method(self.config.algorithm.adv_estimator, distills(self.config))
        k = self.spec.log_prob_top_k
        if k > self._vocabulary:
            say(f"LOG_PROB_TOP_K={k} is cut to the {self._vocabulary} tokens that there are")
            self.spec = replace(self.spec, log_prob_top_k=self._vocabulary)
        self.run_folder = Path(self.config.trainer.default_local_dir)
        self.corrections: dict[str, float | None] = {}  # applied to what fit logs; None drops
        # (file name, line) of what lies beside metrics.jsonl; written when the step is logged,
        # because only then is the run folder at the step that training goes on from.
        self.pending_records: list[tuple[str, dict[str, Any]]] = []
        self.resumed_from: int | None = None
        self.verifier_seconds = 0.0  # of the last batch, training or validation
        self.scorer: scoring.Scorer | None = None

    def _create_dataloader(self, *args: object, **kwargs: object) -> None:
        """verl's; without its filter, a prompt over the limit is refused now, not when it comes."""
        train_dataset, val_dataset = args[:2]
        refuse_too_few(self.config, len(train_dataset), len(val_dataset))
        super()._create_dataloader(*args, **kwargs)
        self._data = checkpoints.data_fingerprint(self.config)  # now: files may move during a run
        possible = len(self.train_dataloader) * self.config.trainer.total_epochs
        if self.total_training_steps > possible:
            raise ValueError(
                f"TOTAL_STEPS (trainer.total_training_steps) is {self.total_training_steps}, but "
                f"TOTAL_EPOCHS (trainer.total_epochs) = {self.config.trainer.total_epochs} gives "
                f"{possible} steps; raise TOTAL_EPOCHS"
            )
        if not self.config.data.filter_overlong_prompts:
            for option, dataset in (
                ("data.train_files", self.train_dataset),
                ("data.val_files", self.val_dataset),
            ):
                refuse_long_prompts(option, dataset, self.config.data.max_prompt_length)

    # ---- workers -------------------------------------------------------------------------

    def init_workers(self) -> None:
        """verl's, then our loss and the slim teacher."""
        models = "student and teacher" if self.spec.distill else "the student"
        stage(f"starting workers, loading {models}")
        mode = self.options.student_logprobs
        passes = scoring.plan(self.spec, mode, self.options.top_k_overlap)
        if self.spec.distill and has_own_engine(self.config):
            wanted = teacher_wanted(self.options, passes, self._vocabulary)
            self.teacher_pool = TeacherPool(self.config, wanted)
            self.teacher_pool.start_on_own_devices()  # it loads while verl's workers do
        super().init_workers()
        if self.teacher_pool is not None:
            stage("waiting for the teacher's engine")
            self.teacher_pool.join(
                self.resource_pool_manager.resource_pool_dict.values(),
                self.async_rollout_manager.server_handles,
                student_first=passes.student_first,
            )
            self.use_rm = True  # fit then asks rm_wg
        stage("ready")
        say(passes.describe())
        if self.spec.distill:
            temperature = self.config.actor_rollout_ref.rollout.temperature
            teacher = self.teacher_pool or self.rm_wg
            self.scorer = self.rm_wg = scoring.Scorer(
                passes, self.actor_rollout_wg, teacher, self._vocabulary, temperature
            )
        if mode != "recompute" or not self.spec.samples_only:
            loss = ForwardLoss(self.spec, mode, observes=self.options.gate_anatomy)
            self.actor_rollout_wg.set_loss_fn(loss)
        if self.spec.full_vocabulary != SAMPLED_ONLY:
            self._give_students_the_teachers_layer()

    @cached_property
    def recorder(self) -> Recorder:
        """Late: the run's last step is known once its data is."""
        return Recorder(
            self.tokenizer,
            self.config.data.reward_fn_key,
            self.options.token_samples,
            self.total_training_steps,
        )

    @cached_property
    def _vocabulary(self) -> int:
        """Ids below this are the tokenizer's; the rest of the embedding is padding."""
        return max(self.tokenizer.get_vocab().values()) + 1

    def _give_students_the_teachers_layer(self) -> None:
        layer = replace(self.rm_wg.output_layer()[0], vocabulary=self._vocabulary)
        self.actor_rollout_wg.set_teacher_layer(self.spec, layer, self.options.teacher_temperature)

    def fit(self) -> None:
        """verl's loop, its log lines going through the run folder."""
        with logging_to_run_folder(self):
            try:
                super().fit()
            except TeacherError as error:
                raise type(error)(f"{error}; {self._save_after_last_step()}") from error
            except watchdog.WatchdogStop as stop:
                raise watchdog.ended(self, stop) from None
            except NonFiniteError as error:
                raise watchdog.broken(self, error) from error

    # ---- one step, in fit's order -----------------------------------------------------------

    def _compute_or_extract_reward(
        self,
        batch: DataProto,
        reward_fn: Any = None,  # noqa: ANN401
        return_dict: bool = False,
        sum_reward: bool = False,
    ) -> Any:  # noqa: ANN401
        """The verifier's scores; errors propagate (verl would print and call again)."""
        if sum_reward or "rm_scores" in batch.batch.keys():
            return super()._compute_or_extract_reward(batch, reward_fn, return_dict, sum_reward)
        self._refuse_unknown_tokens(batch)
        started = time.perf_counter()
        result = reward_fn(batch, return_dict=True)
        self.verifier_seconds = time.perf_counter() - started
        truncated = self._truncated(batch)
        rewards, extra = result["reward_tensor"], result["reward_extra_info"]
        if return_dict:
            extra["truncated"] = truncated.float().tolist()
            self._see_verdicts(extra.get("acc", rewards.sum(-1).tolist()))
            return result
        if self.options.truncated_responses == "wrong":
            rewards[truncated] = rewards[truncated].clamp(max=0.0)
            batch.batch[signal.COUNTS_WRONG] = truncated
        elif self.options.truncated_responses == "mask":
            batch.batch[signal.SIGNAL_MASK] = batch.batch["response_mask"] * ~truncated[:, None]
        return rewards, extra

    def _refuse_unknown_tokens(self, batch: DataProto) -> None:
        """An id in the vocabulary's padding means the engine sampled what no tokenizer can read."""
        largest = int((batch.batch["responses"] * batch.batch["response_mask"]).max())
        if largest >= self._vocabulary:
            raise ValueError(
                f"a response holds token id {largest}, but the student's tokenizer ends at "
                f"{self._vocabulary - 1}: the rollout samples from the vocabulary's padding"
            )

    def _truncated(self, batch: DataProto) -> torch.Tensor:
        return truncated_responses(batch, self._end_tokens)

    def _end_tokens(self) -> set[int]:
        return end_tokens(self.tokenizer, self.config.actor_rollout_ref.model.path)

    def _compute_old_log_prob(self, batch: DataProto) -> tuple[DataProto, float]:
        """verl's pass where log-probs are recomputed; else the rollout's values stand in.

        The stand-ins feed only fit's own metrics, which `_update_actor` corrects from the update.
        A student's pass for top-k candidates has made them already.
        """
        if self.scorer is not None and self.scorer.old is not None:
            self.corrections["perf/mfu/actor_infer"] = None
            return self.scorer.old, 0.0
        if self.options.student_logprobs == "recompute":
            if self.scorer is not None:
                self.scorer.passes["student"] += 1
            slim = batch.select(
                batch_keys=[*scoring.SCORE_KEYS, "prompts", "responses"],
                non_tensor_batch_keys=[],
            )
            return super()._compute_old_log_prob(slim)
        self.corrections["perf/mfu/actor_infer"] = None
        stand_in = batch.batch["rollout_log_probs"]
        tensors = {"old_log_probs": stand_in, "entropys": torch.zeros_like(stand_in)}
        return DataProto.from_dict(tensors=tensors), 0.0

    def _compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        """verl's, on a slim batch, over the same ids as the update's own log-probs."""
        slim = batch.select(
            batch_keys=[*scoring.SCORE_KEYS, "prompts", "responses"], non_tensor_batch_keys=[]
        )
        if not self.spec.samples_only:
            slim.meta_info["vocabulary"] = self._vocabulary
        return super()._compute_ref_log_prob(slim)

    def _update_actor(self, batch: DataProto) -> DataProto:
        """Advantages, then verl's update on the tensors it needs, then real metrics."""
        facts = signal.read_signal(
            self.spec, batch, bool(self.config.algorithm.norm_adv_by_std_in_grpo)
        )
        student = None
        if not signal.made_by_the_loss(self.spec, self.options.student_logprobs):
            student = batch.batch["old_log_probs"]
        rewards = signal.attach(self.spec, batch, facts, student)
        batch.batch[SAMPLE_SLOT] = self.recorder.choose(self.global_steps, facts.correct)
        slim = batch.select(
            batch_keys=[key for key in _UPDATE if key in batch.batch.keys()],
            non_tensor_batch_keys=[],
        )
        slim.batch["response_mask"] = signal.signal_mask(batch).to(
            slim.batch["response_mask"].dtype
        )
        slim.meta_info["log_entropy"] = self.options.log_entropy
        slim.meta_info["advantages_given"] = student is not None
        slim.meta_info.update(self._candidate_options(batch))
        output = super()._update_actor(slim)
        metrics = output.meta_info["metrics"]
        parts = metrics.pop(f"actor/{SUMS}", None)
        if parts is None:
            parts = [signal.trainer_side_sums(batch, facts, rewards, batch.batch["old_log_probs"])]
        real = metrics_from_sums(add_sums(parts)) | signal.response_metrics(batch, facts)
        real |= self._record(batch, facts, rewards, metrics.pop(f"actor/{OBSERVED}", []))
        real |= verifier_failures("verifier")
        real["verifier/seconds"] = self.verifier_seconds
        real["opd/no_end_frac"] = without_end(batch, self._end_tokens).double().mean().item()
        if self.scorer is not None:
            real |= self.scorer.metrics()
            self.data_state = copy.deepcopy(self.train_dataloader.state_dict())
        if self.teacher_pool is not None:
            real |= self.teacher_pool.metrics()
            real["opd/engine_floor"] = real["opd/rollout_logprob_diff_mean"]
        metrics.update({name: [value] for name, value in real.items()})
        for name in ADVANTAGE_METRICS:  # fit logs the stand-ins' values after this
            value = real.get(f"critic/advantages/{name}")
            self.corrections[f"critic/advantages/{name}"] = value
            self.corrections[f"critic/returns/{name}"] = value
        return output

    def _record(
        self,
        batch: DataProto,
        facts: signal.Signal,
        rewards: TokenRewards | None,
        parts: list[Observed],
    ) -> dict[str, float]:
        """Metrics of the gate's anatomy; its line and the traced responses wait for the log."""
        if not parts and rewards is not None and self.options.gate_anatomy:
            mask, slots = signal.signal_mask(batch), batch.batch[SAMPLE_SLOT]
            ids = batch.batch["responses"]
            parts = [observe(rewards.log_ratio, rewards, ids, mask, facts.correct, slots)]
        observed = combined(parts)
        self.pending_records += self.recorder.records(
            self.global_steps, batch, facts, batch.batch[SAMPLE_SLOT], observed
        )
        return self.recorder.metrics(observed)

    def _candidate_options(self, batch: DataProto) -> dict[str, object]:
        """What the update's forward has to know beside the sampled tokens."""
        if self.spec.samples_only:
            return {}
        options: dict[str, object] = {"vocabulary": self._vocabulary}
        if self.spec.log_prob_top_k:
            options["strategy"] = self.spec.top_k_strategy
            if self.options.top_k_overlap and scoring.STUDENT_TOP_IDS not in batch.batch.keys():
                options["top_k"] = self.spec.log_prob_top_k
        return options

    def _validate(self) -> dict:
        """verl's; its reward-model rows (style "model") do not exist where the teacher is one."""
        enabled = self.config.reward_model.enable
        self.config.reward_model.enable = False
        verifier_failures("")  # what came before is not validation's
        try:
            metrics = super()._validate()
        finally:
            self.config.reward_model.enable = enabled
        return metrics | verifier_failures("val-aux/verifier")

    # ---- checkpoints ------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        keep = self.config.trainer.max_actor_ckpt_to_keep
        checkpoints.begin(self.run_folder, self.global_steps)
        self.config.trainer.max_actor_ckpt_to_keep = None  # verl deletes too early
        super()._save_checkpoint()
        step = self.run_folder / f"global_step_{self.global_steps}"
        checkpoints.state_dtype(step / "actor" / checkpoints.WHOLE_MODEL, self.options.model_dtype)
        self.config.trainer.max_actor_ckpt_to_keep = keep
        watchdog.refuse_broken_weights(step)
        checkpoints.mark_complete(self.run_folder, self.global_steps, self._data)
        checkpoints.remove_old(self.run_folder, keep)

    def _save_after_last_step(self) -> str:
        """Save what the last complete step left, from within the step after it; says what it did.

        The rows of the step under way are to come again, so the position in the data is that of
        the last update.
        """
        step = self.global_steps - 1
        if self.data_state is None:
            return f"no step was done since step {self.resumed_from or 0}, so nothing is lost"
        if step not in checkpoints.complete_steps(self.run_folder):
            position = checkpoints.Position(self.data_state)
            loader, self.train_dataloader = self.train_dataloader, position
            self.global_steps = step
            self._save_checkpoint()
            self.global_steps, self.train_dataloader = step + 1, loader
        return f"the state after step {step} is saved, and the same command goes on from there"

    def _load_checkpoint(self) -> None:
        chosen = checkpoints.choose_resume(self.run_folder, self.config, self._data)
        super()._load_checkpoint()
        if chosen is None:
            return
        self.resumed_from = self.global_steps
        if self.global_steps % len(self.train_dataloader) == 0:
            # the saved iterator has ended: run it out, so that fit's next epoch is a whole one
            leftover = sum(1 for _ in self.train_dataloader)
            assert leftover == 0, f"{leftover} batches left at the end of an epoch"


_UPDATE = (
    *scoring.SCORE_KEYS,
    "prompts",
    "responses",
    "rollout_log_probs",
    "old_log_probs",
    "advantages",
    "ref_log_prob",
    "rollout_is_weights",
    "teacher_log_probs",
    "teacher_entropy",
    "correct",
    "reward_scale",
    "outcome",
    "group_correct_frac",
    "sample_index",
    SAMPLE_SLOT,
    "truncated",
    *scoring.UPDATE_KEYS,
)
