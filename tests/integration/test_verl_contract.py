"""Every verl symbol that we override or lean on, as verl 0.7.0 has it: another fails here."""

import importlib
import importlib.metadata
import inspect

import pytest

pytest.importorskip("verl")

from opdvr.integration.platform import import_verl_without_the_harmony_vocabulary  # noqa: E402

import_verl_without_the_harmony_vocabulary()

SIGNATURES = {
    # vLLM's, read from its core by the teacher's engines
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_prompt_logprobs_dict": (
        "self hidden_states num_scheduled_tokens"
    ),
    "vllm.v1.engine.core_client:InprocClient.get_output": "self",
    "vllm.v1.engine.core_client:InprocClient.add_request": "self request",
    "verl.trainer.main_ppo:TaskRunner.add_actor_rollout_worker": "self config",
    "verl.trainer.main_ppo:TaskRunner.add_critic_worker": "self config",
    "verl.trainer.main_ppo:TaskRunner.add_reward_model_worker": "self config",
    "verl.trainer.main_ppo:TaskRunner.init_resource_pool_mgr": "self config",
    "verl.trainer.main_ppo:TaskRunner.run": "self config",
    "verl.trainer.main_ppo:run_ppo": "config task_runner_class",
    "verl.trainer.ppo.ray_trainer:ResourcePoolManager.create_resource_pool": "self",
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer.__init__": (
        "self config tokenizer role_worker_mapping resource_pool_manager "
        "ray_worker_group_cls processor reward_fn val_reward_fn train_dataset val_dataset "
        "collate_fn train_sampler device_name"
    ),
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer.init_workers": "self",
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer.fit": "self",
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._compute_or_extract_reward": (
        "self batch reward_fn return_dict sum_reward"
    ),
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._compute_old_log_prob": "self batch",
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._update_actor": "self batch",
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._validate": "self",
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._get_gen_batch": "self batch",
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._maybe_log_val_generations": (
        "self inputs outputs scores"
    ),
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._save_checkpoint": "self",
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._load_checkpoint": "self",
    "verl.trainer.ppo.core_algos:register_adv_est": "name_or_enum",
    "verl.utils.tracking:Tracking.__init__": (
        "self project_name experiment_name default_backend config"
    ),
    "verl.utils.tracking:Tracking.log": "self data step backend",
    "verl.workers.engine_workers:TrainingWorker.__init__": "self config",
    "verl.workers.engine_workers:TrainingWorker.infer_batch": "self data",
    "verl.workers.engine_workers:TrainingWorker.reset": "self",
    "verl.workers.engine_workers:ActorRolloutRefWorker.__init__": "self config role kwargs",
    "verl.workers.engine_workers:ActorRolloutRefWorker.init_model": "self",
    "verl.workers.engine_workers:ActorRolloutRefWorker.set_loss_fn": "self loss_fn",
    "verl.utils.distributed:initialize_global_process_group_ray": "timeout_second",
    "verl.utils.memory_utils:aggressive_empty_cache": "force_sync max_retries",
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_inputs": (
        "self micro_batch"
    ),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.forward_step": (
        "self micro_batch loss_function forward_only"
    ),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_module": "self",
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_fsdp_module": "self module",
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.get_per_tensor_param": (
        "self layered_summon base_sync_done"
    ),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.save_checkpoint": (
        "self local_path hdfs_path global_step max_ckpt_to_keep kwargs"
    ),
    "verl.workers.engine_workers:ActorRolloutRefWorker.compute_ref_log_prob": "self data",
    "verl.trainer.sft_trainer:SFTTrainer.__init__": "self config",
    "verl.trainer.sft_trainer:SFTTrainer._build_engine": "self",
    "verl.trainer.sft_trainer:SFTTrainer._build_dataloader": "self",
    "verl.trainer.sft_trainer:SFTTrainer._build_ckpt_handler": "self",
    "verl.trainer.sft_trainer:SFTTrainer.fit": "self",
    "verl.utils.checkpoint:CheckpointHandler.save_checkpoint": "self step",
    "verl.utils.checkpoint:CheckpointHandler._load_dataloader_state": "self checkpoint_path",
    "verl.workers.utils.losses:sft_loss": "config model_output data dp_group",
    "verl.workers.engine.base:EngineRegistry.register": "model_type backend device",
    "verl.workers.utils.losses:ppo_loss": "config model_output data dp_group",
    "verl.trainer.ppo.core_algos:agg_loss": (
        "loss_mat loss_mask loss_agg_mode dp_size batch_num_tokens global_batch_size "
        "loss_scale_factor"
    ),
    "verl.workers.utils.padding:left_right_2_no_padding": "data",
    "verl.utils.attention_utils:_get_attention_functions": "",
    "verl.utils.ulysses:ulysses_pad_and_slice_inputs": (
        "input_ids_rmpad position_ids_rmpad sp_size skip_position_ids_rmpad"
    ),
    "verl.utils.ulysses:gather_outputs_and_unpad": (
        "x gather_dim unpad_dim padding_size grad_scaler group"
    ),
    "verl.experimental.agent_loop.agent_loop:AgentLoopManager.__init__": (
        "self config worker_group rm_resource_pool"
    ),
    "verl.experimental.agent_loop.agent_loop:AgentLoopManager._init_agent_loop_workers": "self",
    "verl.experimental.agent_loop.agent_loop:AgentLoopManager.generate_sequences": "self prompts",
    "verl.experimental.agent_loop.agent_loop:AgentLoopWorkerBase.__init__": (
        "self config server_handles reward_router_address"
    ),
    "verl.experimental.agent_loop.agent_loop:AgentLoopWorkerBase.generate_sequences": "self batch",
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServerBase.__init__": (
        "self config model_config rollout_mode workers replica_rank node_rank gpus_per_node nnodes"
    ),
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica.__init__": (
        "self replica_rank config model_config gpus_per_node is_reward_model"
    ),
    "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica.launch_servers": "self",
    "verl.workers.reward_manager.abstract:AbstractRewardManager.__init__": (
        "self tokenizer num_examine compute_score reward_fn_key kwargs"
    ),
}

# Where we lean on what a function does inside: the text that must still be there, and why.
SOURCE = {
    # what stands in its place reads the same state and answers in the same form
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_prompt_logprobs_dict": [
        "self.num_prompt_logprobs",
        "request.num_computed_tokens",
        "self.query_start_loc.np[req_idx].item()",
        "if num_tokens <= num_remaining_tokens:",
    ],
    # a request with prompt_logprobs reads no prefix cache
    "vllm.sampling_params:SamplingParams.__post_init__": [
        "self.skip_reading_prefix_cache = self.prompt_logprobs is not None"
    ],
    # shared devices are asked for as verl's own workers are
    "verl.single_controller.ray.base:RayWorkerGroup._create_worker": [
        "num_gpus = 1 / resource_pool.max_colocate_count"
    ],
    # fit takes the class from this module at call time, so that it can be replaced for one fit
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer.fit": [
        "from verl.utils.tracking import Tracking",
        "self.rm_wg.compute_rm_score(batch)",
        'if self.use_rm and "rm_scores" not in batch.batch.keys():',  # set where we have engines
        "self._compute_or_extract_reward(",
        "self._compute_old_log_prob(batch)",
        "self._update_actor(batch)",
        'reduce_metrics(actor_output.meta_info["metrics"])',
        "metrics.update(compute_data_metrics(batch=batch",
        "current_epoch = self.global_steps // len(self.train_dataloader)",
        # a watchdog raises where a step is logged: saved by then, and not yet counted up
        "logger.log(data=metrics, step=self.global_steps)\n\n"
        "                progress_bar.update(1)\n                self.global_steps += 1",
    ],
    # a validation's record: asked, judged and logged in one order
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._validate": [
        "test_gen_batch = self._get_gen_batch(test_batch)",
        "self._compute_or_extract_reward(test_batch, reward_fn=self.val_reward_fn",
        "inputs=sample_inputs, outputs=sample_outputs, scores=sample_scores",
    ],
    # run names its trainer by a module global
    "verl.trainer.main_ppo:TaskRunner.run": ["trainer = RayPPOTrainer(", "trainer.fit()"],
    # our extra key beside model, actor and rollout never reaches verl's dataclasses
    "verl.workers.engine_workers:ActorRolloutRefWorker.init_model": [
        "omega_conf_to_dataclass(self.config.model)",
        "omega_conf_to_dataclass(self.config.rollout)",
        "partial(ppo_loss, config=actor_config)",
    ],
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine._build_fsdp_module": [
        "self.engine_config.offload_policy or self.engine_config.forward_only",
        "CPUOffloadPolicy(pin_memory=True)",
    ],
    "verl.workers.engine_workers:TrainingWorker.train_mini_batch": ["chain.from_iterable(val)"],
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._update_actor": [
        'rename_dict(actor_output, "actor/")'
    ],
    # the state after the last complete step is saved from within the next one
    "verl.trainer.ppo.ray_trainer:RayPPOTrainer._save_checkpoint": [
        "self.train_dataloader.state_dict()",
        'f"global_step_{self.global_steps}"',
        "latest_checkpointed_iteration.txt",
    ],
    # the SFT trainer takes its logger from this module's globals, and the class of the data set
    # from the configuration; what our loader replaces is read under these names
    "verl.trainer.sft_trainer:SFTTrainer.fit": [
        "tracking = Tracking(",
        "start_epoch = global_step // self.steps_per_epoch",
        "self.train_sampler.set_epoch(epoch=epoch)",
        "for val_data in self.val_dataloader:",
        "output = self.training_client.train_batch(data=data)",
        "self.ckpt_handler.save_checkpoint(step=global_step)",
    ],
    "verl.trainer.sft_trainer:create_sft_dataset": ["data_config.custom_cls.path"],
    "verl.workers.utils.losses:sft_loss": ["torch.roll(loss_mask_flatten, shifts=-1, dims=0)"],
    # with LoRA the rollout is given merged weights and no adapter
    "verl.workers.engine_workers:ActorRolloutRefWorker.wake_up": [
        "per_tensor_param, peft_config = self.actor.engine.get_per_tensor_param()"
    ],
    "verl.workers.rollout.vllm_rollout.vllm_rollout:vLLMAsyncRollout.__init__": [
        "self.lora_config = ("
    ],
    "verl.workers.utils.losses:ppo_loss": [
        'data["old_log_probs"]',
        'data["advantages"]',
        'data["batch_num_tokens"]',
        # the candidates' loss is aggregated by what this call leaves there
        'config.global_batch_info["batch_num_tokens"]',
    ],
}


def resolve(symbol):
    module, name = symbol.split(":")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def test_version():
    assert importlib.metadata.version("verl") == "0.7.0"


@pytest.mark.parametrize("symbol", SIGNATURES)
def test_signature(symbol):
    names = [n for n in inspect.signature(resolve(symbol)).parameters if n != "_ray_trace_ctx"]
    assert " ".join(names) == SIGNATURES[symbol]


@pytest.mark.parametrize("symbol", SOURCE)
def test_inside(symbol):
    source = inspect.getsource(resolve(symbol))
    missing = [text for text in SOURCE[symbol] if text not in source]
    assert not missing, f"{symbol} no longer contains {missing}"


def test_modules_have_the_globals_that_are_rebound():
    fsdp = importlib.import_module("verl.workers.engine.fsdp.transformer_impl")
    workers = importlib.import_module("verl.workers.engine_workers")
    assert callable(fsdp.CPUOffloadPolicy) and hasattr(fsdp.gc, "collect")
    assert callable(workers.aggressive_empty_cache)
    assert {"language_model", "value_model"} <= set(
        importlib.import_module("verl.workers.engine").EngineRegistry._engines
    )
