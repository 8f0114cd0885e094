"""What is looked at before a training starts: findings, each with its place, reason and remedy."""

from opdvr.integration.preflight.checks import Report, look, refuse, summary
from opdvr.integration.preflight.finding import Finding, Refusal

__all__ = ["Finding", "Refusal", "Report", "look", "refuse", "summary"]
