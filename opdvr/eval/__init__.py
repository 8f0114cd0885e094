"""Offline evaluation: sample, score with the verifier, compare. See docs/evaluation.md.

`opdvr.eval.command` is the command line; nothing here imports torch or vLLM before it samples.
"""
