"""OPDVR: on-policy distillation with verifiable reward, on unmodified verl."""

__version__ = "0.1.0"
