"""accuracy.png of models with any name."""

import warnings

import pytest

from opdvr.eval.chart import drawable

pytest.importorskip("matplotlib")


def test_letters_without_a_glyph_become_squares():
    # the font that matplotlib brings has Latin, Greek and signs, and no Chinese
    assert drawable("a β ≤ 模型\n0.5", ["DejaVu Sans"]) == "a β ≤ □□\n0.5"


def test_a_name_in_another_script_draws_without_a_warning(tmp_path):
    from opdvr.eval.chart import draw_accuracy

    found = {"n": 1, "avg": 0.5, "avg_95": (0.4, 0.6)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_accuracy({"数学": found, "mean": found}, "模型 \U0001f600\t$x$", tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
