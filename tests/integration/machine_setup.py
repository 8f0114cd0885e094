"""Configurations for a machine that a test makes up."""

from opdvr.integration.config import compose

BILLION = 10**9


def gpu_config(*overrides):
    return compose(["platform=cuda", "trainer.n_gpus_per_node=2", *overrides])


def demo_config(*overrides):
    return compose(["platform=cpu", "task=demo", *overrides])


def levels(findings):
    return [found.level for found in findings]
