"""Sampling from a model with vLLM: token ids in, finished completions out, on CPU or GPUs.

Knows nothing of prompts' text, of scoring or of files. Importing it imports neither vLLM nor Ray.
"""

from opdvr.inference.requests import Completion, EngineSettings, Request, Sampling
from opdvr.inference.runner import generate

__all__ = ["Completion", "EngineSettings", "Request", "Sampling", "generate"]
