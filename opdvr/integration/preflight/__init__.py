"""What is looked at before a training starts: findings, each with its place, reason and remedy."""

from opdvr.integration.preflight.configuration import run_preflight

__all__ = ["run_preflight"]
