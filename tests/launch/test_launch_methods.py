"""What each launcher would start: its method, the caller's words, the device and the place."""

import os
import re
import shutil

import pytest
from launching import LAUNCHERS, ROOT, knob_lines

METHODS = {
    "opdvr.sh": {"opdvr.correctness_gated": True, "opdvr.correctness_gated_mode": "default"},
    "grpd.sh": {
        "opdvr.correctness_gated": True,
        "opdvr.correctness_gated_mode": "default",
        "opdvr.grpo_scaled": True,
        "opdvr.grpo_norm_by_std": False,
        "actor_rollout_ref.rollout.n": 8,
    },
    "opd_baseline.sh": {"opdvr.correctness_gated": False},
    "ablation_inverse_gated.sh": {
        "opdvr.correctness_gated": True,
        "opdvr.correctness_gated_mode": "inverse",
    },
    "grpo.sh": {
        "algorithm.adv_estimator": "grpo",
        "reward_model.enable": False,
        "opdvr.correctness_gated": False,
        "actor_rollout_ref.rollout.n": 8,
    },
}


def test_a_launcher_says_its_method_and_nothing_else(launch, launcher):
    assert launch(launcher).values == {"platform": "cuda", **METHODS[launcher]}


def test_variables_beat_the_launcher(launch):
    values = launch("opdvr.sh", CORRECTNESS_GATED="False").values
    assert values["opdvr.correctness_gated"] is False
    values = launch("grpd.sh", N_RESPONSES="4", GRPO_NORM_BY_STD="True").values
    assert values["actor_rollout_ref.rollout.n"] == 4
    assert values["opdvr.grpo_norm_by_std"] is True


def test_the_command_line_has_the_last_word(launch, launcher):
    arguments = ["opdvr.correctness_gated=null", "actor_rollout_ref.rollout.n=3", "+new.key=a b"]
    run = launch(launcher, *arguments, N_RESPONSES="5", CORRECTNESS_GATED="True")
    assert run.overrides[-3:] == arguments
    assert run.values["opdvr.correctness_gated"] is None
    assert run.values["actor_rollout_ref.rollout.n"] == 3


def test_an_empty_variable_says_nothing(launch):
    assert launch("opdvr.sh", TEMPERATURE="", CORRECTNESS_GATED="").values == {
        "platform": "cuda",
        **METHODS["opdvr.sh"],
    }


@pytest.mark.parametrize("dry", ["1", "true", "YES"])
def test_the_printed_command_is_what_a_shell_would_run(launch, dry):
    words = launch("opdvr.sh", "a=$HOME `x` \"'", DRY_RUN=dry, PYTHONPATH="/other place").words
    assert words[0] == "env"
    assert words[1] == f"PYTHONPATH={ROOT}:/other place"
    assert words[2:6] == [f"{ROOT}/.venv/bin/python", "-m", "opdvr", "train"]
    assert words[-1] == "a=$HOME `x` \"'"


def test_any_place_will_do(launch, launcher, tmp_path):
    clone = tmp_path / "my clone (copy)"
    clone.mkdir()
    shutil.copytree(ROOT / "scripts", clone / "scripts")
    shutil.copy(ROOT / launcher, clone)
    before = sorted(path for path in clone.rglob("*"))
    run = launch(launcher, root=clone, cwd="/", CDPATH=str(tmp_path))
    assert run.values == {"platform": "cuda", **METHODS[launcher]}
    assert run.words[1:3] == [f"PYTHONPATH={clone}", f"{clone}/.venv/bin/python"]
    assert sorted(path for path in clone.rglob("*")) == before, "a dry run touches nothing"

    link = tmp_path / "a link"
    link.symlink_to(ROOT)
    assert launch(launcher, root=link, cwd="/").words[1] == f"PYTHONPATH={link}"


def test_the_environments_name_may_be_relative_or_have_spaces(launch, tmp_path):
    run = launch("opdvr.sh", cwd=tmp_path, OPDVR_VENV="my env")
    assert run.words[2] == f"{tmp_path}/my env/bin/python"


@pytest.mark.parametrize(
    ("listing", "visible", "platform"),
    [
        ("echo 'GPU 0: Some Card (UUID: x)'", None, "cuda"),
        ("echo 'GPU 0: Some Card (UUID: x)'", "0,1", "cuda"),
        ("echo 'GPU 0: Some Card (UUID: x)'", "", "cpu"),
        ("echo 'GPU 0: Some Card (UUID: x)'", "-1", "cpu"),
        ("echo 'No devices were found'", None, "cpu"),
        ("echo 'GPU 0: Some Card' && exit 9", None, "cpu"),
        (None, None, "cpu"),
    ],
)
def test_the_device_is_found(launch, executable, tmp_path, listing, visible, platform):
    folder = tmp_path / "bin"
    if listing is not None:
        executable("bin/nvidia-smi", listing)
    visible = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    run = launch("opdvr.sh", OPDVR_DEVICE="", PATH=f"{folder}:/usr/bin:/bin", **visible)
    assert run.values["platform"] == platform
    assert run.values.get("task") == ("demo" if platform == "cpu" else None)


def test_without_gpu_and_model_the_embedded_task_runs_and_says_so(launch, launcher):
    run = launch(launcher, OPDVR_DEVICE="cpu")
    assert run.values["task"] == "demo"
    for word in ("ACTOR_MODEL_PATH=", "REWARD_MODEL_PATH=", "TRAIN_DATASET=", "TEST_DATASET="):
        assert word in run.stderr
    # The group size is the task's, unless the method needs a group of its own.
    assert ("actor_rollout_ref.rollout.n" in run.values) == (launcher in ("grpd.sh", "grpo.sh"))


def test_the_embedded_task_stays_away_from_named_models(launch):
    assert "task" not in launch("opdvr.sh", OPDVR_DEVICE="cpu", ACTOR_MODEL_PATH="a/b").values
    named = launch("opdvr.sh", "actor_rollout_ref.model.path=a/b", OPDVR_DEVICE="cpu")
    assert "task" not in named.values
    assert "task" not in launch("opdvr.sh", OPDVR_DEVICE="cpu", OPDVR_TASK="none").values
    assert launch("opdvr.sh", "task=none", OPDVR_DEVICE="cpu").values["task"] == "none"


def test_the_embedded_task_can_be_asked_for(launch):
    run = launch("opdvr.sh", OPDVR_TASK="demo", DEMO_TEACHER="good", DEMO_STUDENT="other-style")
    assert run.values["task"] == "demo"
    assert run.values["opdvr.demo_teacher"] == "good"
    assert run.values["opdvr.demo_student"] == "other-style"


def test_the_platform_of_the_command_line_is_heard(launch):
    run = launch("opdvr.sh", "platform=cuda", OPDVR_DEVICE="cpu")
    assert run.values["platform"] == "cuda"
    assert "task" not in run.values


def test_a_real_run_uses_an_environment_that_serves_and_keeps_the_place(
    launch, executable, tmp_path
):
    # The stand-in answers "yes" to the look for packages, and otherwise prints how it was called.
    executable(
        "my env/bin/python",
        'if [[ $1 == -I ]]; then exit 0; fi; printf "%s|" "$PWD" "$PYTHONPATH" "$@"',
    )
    run = launch("opdvr.sh", "x=1", cwd=tmp_path, DRY_RUN="0", VIRTUAL_ENV=f"{tmp_path}/my env")
    assert run.code == 0, run.stderr
    assert run.stdout.startswith(f"{tmp_path}|{ROOT}|-m|opdvr|train|platform=cuda|")
    assert run.stdout.endswith("|x=1|")


def test_an_environment_made_by_someone_else_is_not_touched(launch, executable, tmp_path):
    executable("their env/bin/python", "exit 1")
    run = launch("opdvr.sh", DRY_RUN="", OPDVR_VENV=f"{tmp_path}/their env")
    assert run.code == 2
    assert "was not made by this script" in run.stderr
    assert os.listdir(tmp_path / "their env") == ["bin"]


def shell_files():
    return [*ROOT.glob("*.sh"), *(ROOT / "scripts").glob("*.sh"), ROOT / ".ci" / "run"]


@pytest.mark.parametrize("path", shell_files(), ids=lambda path: path.name)
def test_scripts_leave_others_alone_and_no_debugging_behind(path):
    text = path.read_text()
    forbidden = r"ray stop|pkill|killall|miniconda|conda activate|CUDA_LAUNCH_BLOCKING|set -x|DEBUG"
    assert not re.search(forbidden, text)
    sources = re.search(r'^source "\$\(dirname -- "\$\{BASH_SOURCE\[0\]\}"\)', text, re.M)
    assert "set -euo pipefail" in text or sources or path.name == "knobs.sh"


def test_launchers_differ_in_their_method_alone():
    bodies = {}
    for name in LAUNCHERS:
        lines = (ROOT / name).read_text().splitlines()
        assert len(lines) <= 15
        assert os.access(ROOT / name, os.X_OK)
        bodies[name] = [line for line in lines if line and not line.startswith("#")]
    for name, body in bodies.items():
        assert body[0] == bodies["opdvr.sh"][0], name
        assert all(line.startswith("default ") for line in body[1:-1]), name
        assert body[-1].startswith("launch ") and body[-1].endswith('"$@"'), name


def test_every_knob_is_listed_once_and_goes_to_its_own_option():
    knobs = knob_lines()
    assert all(len(knob) == 3 for knob in knobs)
    assert len({variable for variable, _, _ in knobs}) == len(knobs)
    assert len({option for _, _, option in knobs}) == len(knobs)
