"""verl's TaskRunner with our workers, trainer and, on CPU, a pool that asks for no GPU."""

from __future__ import annotations

import ray
import verl.trainer.main_ppo as main_ppo
from omegaconf import DictConfig
from verl.single_controller.ray import RayResourcePool
from verl.trainer.ppo.ray_trainer import ResourcePoolManager, Role

from opdvr.integration.platform import unpad_without_flash_attn
from opdvr.integration.teacher_settings import has_own_engine
from opdvr.integration.terminal import show_own_warnings, stage
from opdvr.integration.trainer import OpdvrTrainer


class CpuResourcePoolManager(ResourcePoolManager):
    """verl's manager without GPUs."""

    def create_resource_pool(self) -> None:
        """One pool each, of bundles of one CPU: student and teacher share a process."""
        for name, processes in self.resource_pool_spec.items():
            self.resource_pool_dict[name] = RayResourcePool(
                process_on_nodes=processes,
                use_gpu=False,
                max_colocate_count=1,
                name_prefix=name,
            )


class OpdvrTaskRunner(main_ppo.TaskRunner):
    """Plugs student, teacher and trainer into verl's `run`."""

    def add_actor_rollout_worker(self, config: DictConfig) -> tuple[type, type]:
        """verl chooses the role; the worker is ours."""
        from opdvr.integration.workers import StudentWorker

        _, group_class = super().add_actor_rollout_worker(config)
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(StudentWorker)
        return StudentWorker, group_class

    def add_critic_worker(self, config: DictConfig) -> None:
        """No method here has a critic."""

    def add_reward_model_worker(self, config: DictConfig) -> None:
        """The teacher, in the reward model's place."""
        if not config.reward_model.enable or has_own_engine(config):
            return
        from opdvr.integration.workers import TeacherWorker

        self.role_worker_mapping[Role.RewardModel] = ray.remote(TeacherWorker)
        own_pool = config.reward_model.enable_resource_pool
        self.mapping[Role.RewardModel] = "reward_pool" if own_pool else "global_pool"

    def init_resource_pool_mgr(self, config: DictConfig) -> ResourcePoolManager:
        """verl's pools; on CPU the same without GPUs."""
        manager = super().init_resource_pool_mgr(config)
        if config.trainer.device != "cpu":
            return manager
        return CpuResourcePoolManager(manager.resource_pool_spec, manager.mapping)

    def run(self, config: DictConfig) -> None:
        """verl's `run`, which names its trainer class by a module global."""
        show_own_warnings()
        stage("reading the data")
        main_ppo.RayPPOTrainer = OpdvrTrainer
        unpad_without_flash_attn()
        super().run(config)
