"""From the command to Ray: one line for a mistake, a Ray of its own, short sockets, own scorers."""

import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from omegaconf import OmegaConf

pytest.importorskip("verl")

from case_setup import Letters, rollout, text_ids, with_questions  # noqa: E402

from opdvr.integration import launch  # noqa: E402
from opdvr.integration.config import REPO_ROOT, compose  # noqa: E402
from opdvr.integration.options import OpdvrOptions  # noqa: E402

LONGEST_SOCKET_PATH = 107  # bytes of a Unix socket's path on Linux
# What Ray puts behind TMPDIR; process ids go up to 4194304.
RAY_SOCKET = "ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"


@pytest.fixture(autouse=True)
def environment():
    with mock.patch.dict(os.environ):
        os.environ.pop("RAY_ADDRESS", None)
        yield


def ray_config(**options):
    return OmegaConf.create({"ray_kwargs": {"ray_init": {"include_dashboard": False, **options}}})


def variables_for_workers(config):
    launch.set_environment(config)
    return config.ray_kwargs.ray_init.runtime_env.env_vars


# Before Ray


def run_main(*overrides, cwd):
    """main() in a process of its own: exit code, stderr, and which heavy modules it imported."""
    code = (
        "import sys; from opdvr.integration.launch import main; "
        "code = main(sys.argv[1:]); "
        "print([name for name in ('ray', 'torch', 'vllm', 'verl') if name in sys.modules]); "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *overrides],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPO_ROOT)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr, done.stdout.splitlines()[-1]


def test_what_is_missing_is_a_line_each_before_anything_heavy(tmp_path):
    code, said, heavy = run_main(
        "platform=cpu",
        "actor_rollout_ref.model.path=/no/such/dir",
        "reward_model.model.path=owner/teacher",
        f"trainer.default_local_dir={tmp_path}/run",
        cwd=tmp_path,
    )
    assert code == 2 and heavy == "[]"
    lines = said.splitlines()  # one for everything that is missing, data files included
    assert all(line.startswith("opdvr: ") for line in lines)
    assert [line.split()[1] for line in lines] == [
        "ACTOR_MODEL_PATH",
        "TRAIN_DATASET",
        "TEST_DATASET",
    ]
    assert lines[0].endswith("student model folder not found: /no/such/dir")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("opdvr.correctness_gated=maybe", "correctness_gated"),
        ("opdvr.no_such_option=1", "no_such_option"),
        ("opdvr.log_prob_top_k=-1", "LOG_PROB_TOP_K"),
        ("actor_rollout_ref.rollout.log_prob_top_k=-1", "LOG_PROB_TOP_K"),
    ],
)
def test_a_mistaken_option_is_refused_by_name(override, names, capsys):
    assert launch.main(["platform=cpu", override]) == 2
    assert names in capsys.readouterr().err


@pytest.mark.parametrize("value", ["true", "True", "TRUE", "false", "False", "FALSE"])
def test_booleans_of_the_command_line_come_in_any_case(value):
    config = compose(["platform=cpu", f"actor_rollout_ref.rollout.correctness_gated={value}"])
    assert config.opdvr.correctness_gated is (value.lower() == "true")


def test_a_top_k_of_64_is_taken_whole():
    config = compose(["platform=cpu", "actor_rollout_ref.rollout.log_prob_top_k=64"])
    assert config.opdvr.log_prob_top_k == 64
    OpdvrOptions(log_prob_top_k=64).validate()


def test_temperatures_reach_both_sides_and_the_rollouts_log_probs_are_after_them():
    config = compose(
        [
            "platform=cpu",
            "actor_rollout_ref.rollout.temperature=0.5",
            "actor_rollout_ref.rollout.teacher_temperature=0.7",
            "actor_rollout_ref.rollout.calculate_log_probs=False",
        ]
    )
    assert config.reward_model.temperature == 0.7
    rollout_options = config.actor_rollout_ref.rollout
    assert rollout_options.temperature == 0.5
    assert rollout_options.logprobs_mode == "processed_logprobs"
    assert rollout_options.calculate_log_probs is True  # without them there is no stand-in


# Ray


class FakeRay:
    """ray.init and ray.shutdown, kept instead of run."""

    def __init__(self, monkeypatch):
        import ray

        self.started, self.stopped = [], 0
        monkeypatch.setattr(ray, "init", lambda **options: self.started.append(options))
        monkeypatch.setattr(ray, "shutdown", self._stop)

    def _stop(self):
        self.stopped += 1


@pytest.mark.parametrize("fails", [False, True])
def test_ray_is_private_and_the_only_thing_stopped(monkeypatch, fails):
    from opdvr.integration import task_runner

    def run(self, config):
        if fails:
            raise RuntimeError("in training")

    monkeypatch.setattr(task_runner.OpdvrTaskRunner, "run", run)
    ray = FakeRay(monkeypatch)
    config = ray_config(num_cpus=3, runtime_env={"env_vars": {}})
    config.opdvr = {"in_process_rollout": False}
    if fails:
        with pytest.raises(RuntimeError, match="in training"):
            launch.run_on_local_ray(config)
    else:
        launch.run_on_local_ray(config)
    assert ray.started == [{"address": "local", "include_dashboard": False, "num_cpus": 3}]
    assert ray.stopped == 1


def test_nothing_reaches_for_the_processes_of_others():
    forbidden = r"ray stop|pkill|killall|CUDA_LAUNCH_BLOCKING|HYDRA_FULL_ERROR|NCCL_DEBUG"
    files = [*REPO_ROOT.glob("opdvr/**/*.py"), *REPO_ROOT.glob("opdvr/**/*.yaml")]
    assert len(files) > 50
    assert not [file.name for file in files if re.search(forbidden, file.read_text())]


def test_no_network_is_passed_on_to_the_workers():
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": "/models"}
    os.environ.pop("TRANSFORMERS_OFFLINE", None)
    variables = variables_for_workers(ray_config())
    assert variables["HF_HUB_OFFLINE"] == "1" and variables["HF_HOME"] == "/models"
    assert "TRANSFORMERS_OFFLINE" not in variables
    assert variables["PYTHONPATH"].split(os.pathsep)[0] == str(REPO_ROOT)


def test_the_callers_variables_beat_the_platforms():
    os.environ["OMP_NUM_THREADS"] = "7"
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)
    platform = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    variables = variables_for_workers(ray_config(runtime_env={"env_vars": platform}))
    assert variables["OMP_NUM_THREADS"] == "7"
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == os.environ["VLLM_CPU_KVCACHE_SPACE"] == "1"


# Sockets


def test_a_socket_fits_behind_the_longest_folder_that_is_used():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        base = os.path.join(folder, "x" * (launch.LONGEST_TEMP_DIR - len(folder) - 1))
        assert len(base) == launch.LONGEST_TEMP_DIR
        path = Path(base) / RAY_SOCKET
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


LONG_FOLDERS = [
    "x" * 90,
    # 20 characters of 3 bytes
    "实" * 20,
]


@pytest.mark.parametrize("name", LONG_FOLDERS, ids=["long", "long in bytes"])
def test_sockets_get_a_short_folder_of_their_own(monkeypatch, name, capsys):
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        folder = Path(parent) / name
        folder.mkdir()
        os.environ["TMPDIR"] = str(folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        launch.set_environment(ray_config())
        used = tempfile.gettempdir()
        assert used == os.environ["TMPDIR"] != str(folder)  # as this process and its workers see it
        assert len(f"{used}/{RAY_SOCKET}".encode()) <= LONGEST_SOCKET_PATH
        assert not os.listdir(used) and os.stat(used).st_mode & 0o777 == 0o700
        os.rmdir(used)
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and str(folder) in said and used in said


def test_a_short_temporary_folder_is_kept(monkeypatch, capsys):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.environ["TMPDIR"] = folder
        monkeypatch.setattr(tempfile, "tempdir", None)
        launch.set_environment(ray_config())
        assert os.environ["TMPDIR"] == tempfile.gettempdir() == folder
    assert capsys.readouterr().out == ""


# A scorer of one's own

SCORER = """
def grade(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    return {"score": float(solution_str == ground_truth) + bonus}
"""


@pytest.mark.parametrize(
    "written",
    [
        "rewards/my.py",
        "./rewards/my.py",
        "file://rewards/my.py",
    ],
)
def test_a_relative_scorer_is_found_from_any_folder(tmp_path, monkeypatch, written):
    from verl.trainer.ppo.reward import load_reward_manager

    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "my.py").write_text(SCORER)
    monkeypatch.chdir(tmp_path)
    config = compose(
        [
            "platform=cpu",
            f"custom_reward_function.path={written}",
            "custom_reward_function.name=grade",
            "+custom_reward_function.reward_kwargs.bonus=0.5",
        ]
    )
    monkeypatch.chdir("/")
    assert config.custom_reward_function.path.endswith(str(tmp_path / "rewards" / "my.py"))
    batch = with_questions(rollout([text_ids("7"), text_ids("8")]))
    for _ in ("training", "validation"):  # verl loads the file once for each
        manager = load_reward_manager(config, Letters(), num_examine=0)
        assert manager(batch).sum(-1).tolist() == [1.5, 0.5]


def test_a_verifier_by_its_name(tmp_path, monkeypatch):
    from verl.trainer.ppo.reward import load_reward_manager

    (tmp_path / "own_scorer.py").write_text(SCORER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    batch = with_questions(rollout([text_ids("7"), text_ids("8")]))
    for name in ("own_scorer.py:grade", "own_scorer:grade"):
        config = compose(["platform=cpu", f"opdvr.verifier={name}"])
        manager = load_reward_manager(config, Letters(), num_examine=0)
        assert manager(batch).sum(-1).tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match="VERIFIER .* both name a verifier"):
        compose(
            ["platform=cpu", "opdvr.verifier=own_scorer:grade", "custom_reward_function.path=x.py"]
        )
    with pytest.raises(ValueError, match="module:function or file.py:function"):
        compose(["platform=cpu", "opdvr.verifier=own_scorer"])


def test_other_answer_forms_reach_the_verifier():
    from verl.trainer.ppo.reward import load_reward_manager

    batch = with_questions(rollout([text_ids("Answer: 7")], response_width=12))
    for forms, score in (("boxed", 0.0), ("any", 1.0)):
        config = compose(["platform=cpu", f"opdvr.answer_forms={forms}"])
        manager = load_reward_manager(config, Letters(), num_examine=0)
        assert manager(batch).sum(-1).tolist() == [score]
    with pytest.raises(ValueError, match="ANSWER_FORMS=any .* is for our own verifier"):
        compose(["platform=cpu", "opdvr.answer_forms=any", "opdvr.verifier=a.py:b"])


def test_the_projects_own_scorer_is_the_default():
    from verl.trainer.ppo.reward import load_reward_manager

    manager = load_reward_manager(compose(["platform=cpu"]), Letters(), num_examine=0)
    batch = with_questions(rollout([text_ids(r"\box"), text_ids("\\boxed{7}")], response_width=12))
    assert manager(batch).sum(-1).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("python", "runtime_env"),
    [("/a/bin/python", None), ("/a b/bin/python", {"py_executable": "'/a b/bin/python'"})],
)
def test_a_python_whose_path_has_spaces_is_quoted_for_rays_shell(monkeypatch, python, runtime_env):
    import ray

    asked = {}

    def init(**options):
        asked.update(options)
        raise InterruptedError("far enough")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(launch.sys, "executable", python)
    config = compose(["platform=cpu", "task=demo"])
    with pytest.raises(InterruptedError):
        launch.run_on_local_ray(config)
    assert asked.get("runtime_env") == runtime_env and asked["address"] == "local"
