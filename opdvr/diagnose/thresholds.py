"""The thresholds of a diagnosis: our own choice; docs/recovery.md says what each was set on."""

from typing import NamedTuple


class Threshold(NamedTuple):
    """A threshold's default and its reason, which is also the option's help."""

    default: float
    reason: str


THRESHOLDS = {
    "min_agreement": Threshold(
        0.9,
        "probability that both models' likely tokens share; of the embedded pairs those that "
        "distil well have 0.95 and more, the student of another style 0.79 to 0.81",
    ),
    "min_overlap": Threshold(
        0.5,
        "share of the student's top K that is in the teacher's; a loose bound, not set on any "
        "pair of language models",
    ),
    "min_gain": Threshold(
        0.03,
        "teacher's accuracy minus the student's; smaller ones are lost in the noise of training",
    ),
    "min_divergence": Threshold(
        0.01, "mean |log-ratio|, nats; below it the two are one model on these responses"
    ),
    "min_teacher_accuracy": Threshold(
        0.1, "of both models; below it verdicts nearly always say wrong, which teaches little"
    ),
    "min_fitting_prompts": Threshold(
        0.25, "share of prompts that agree while the whole does not; enough to train on alone"
    ),
    "min_end_probability": Threshold(
        0.1,
        "the teacher's of the student's end token where the student ends; below it, and with "
        "another end token above it, training would unlearn to stop",
    ),
}
