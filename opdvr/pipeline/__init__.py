"""Recovery of a student in one command: rollouts, cold start, distillation, evaluation, summary."""
