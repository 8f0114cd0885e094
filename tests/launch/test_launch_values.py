"""Values of the variables: they arrive as they are, or are refused by one line that names them."""

import random
import subprocess

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from launching import ROOT

AWKWARD = [
    "/data/my models/Qwen3",
    "epoch=3-step=10",
    "run(1)",
    "a,b",
    "it's",
    'say "hi"',
    """it's "both" ''twice''""",
    "a#b",
    "#a",
    "实验1",
    "naïve–é",
    "~/x",
    "~x",
    "true",
    "False",
    "null",
    "12",
    "007",
    "1e3",
    "nan",
    "[a,b]",
    "{a:b}",
    "choice(a,b)",
    "a:b",
    "a|b;c&d>e<f",
    "$HOME `id` $(id) !x *?",
    "$x",
    "a$",
    " two  spaces ",
    "\ttab",
    "\\",
    "\\\\",
    "\\\\\\",
    "\\leading",
    "trailing\\",
    "trailing two\\\\",
    "mid\\dle",
    "\\'",
    "a\\'b",
    "a\\\\'b",
    "'",
    "''",
    '"',
    "'\\",
    "\\'\\\\''\\",
    "-x",
    "--help",
    "%s%d",
    "a\\nb",
    "@a",
    "+a",
    "=",
    "",
]


@pytest.mark.parametrize("text", AWKWARD[:-1])
@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_text_arrives_as_the_same_text(launch, text, locale):
    run = launch("opdvr.sh", EXPERIMENT_NAME=text, PROJECT_NAME=text, LC_ALL=locale)
    assert run.values["trainer.experiment_name"] == text
    assert run.values["trainer.project_name"] == text


def test_random_text_arrives_as_the_same_text():
    # 2000 strings of up to 10 characters, mostly those that the grammar treats specially.
    draw = random.Random(7)
    texts = [
        "".join(draw.choices("\\\\\\'''\"=,()[]{}:# $~a1é", k=draw.randint(1, 10)))
        for _ in range(2000)
    ]
    script = 'source "$1"; while IFS= read -r text; do quote_text "$text"; echo; done'
    quoted = subprocess.run(
        ["bash", "-c", script, "-", ROOT / "scripts" / "knobs.sh"],
        input="\n".join(texts) + "\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")[:-1]
    parser = OverridesParser.create()
    assert [parser.parse_override(f"key={text}").value() for text in quoted] == texts


@pytest.mark.parametrize("name", ["my model", "a,b=c", "it's (1)", "实验\\", "[x]", "#1"])
def test_paths_arrive_as_the_same_text(launch, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    data = tmp_path / f"{name}.parquet"
    data.touch()
    run = launch(
        "opdvr.sh",
        ACTOR_MODEL_PATH=str(folder),
        REWARD_MODEL_PATH=f"./{name}",
        TRAIN_DATASET=str(data),
        TEST_DATASET=f"./{name}.parquet",
        FINAL_CKPT_DIR=f"/not/yet/{name}",
        cwd=tmp_path,
    )
    assert run.values["actor_rollout_ref.model.path"] == str(folder)
    assert run.values["reward_model.model.path"] == f"./{name}"
    assert run.values["data.train_files"] == str(data)
    assert run.values["data.val_files"] == f"./{name}.parquet"
    assert run.values["trainer.default_local_dir"] == f"/not/yet/{name}"


def test_a_tilde_is_the_home_folder(launch):
    (launch.home / "student").mkdir()
    run = launch("opdvr.sh", ACTOR_MODEL_PATH="~/student", FINAL_CKPT_DIR="~/new")
    assert run.values["actor_rollout_ref.model.path"] == f"{launch.home}/student"
    assert run.values["trainer.default_local_dir"] == f"{launch.home}/new"


@pytest.mark.parametrize("name", ["Qwen3-4B", "Qwen/Qwen3-4B", "org.name/model_1.5", "hdfs://a/b"])
def test_hub_names_pass(launch, name):
    run = launch("opdvr.sh", ACTOR_MODEL_PATH=name, REWARD_MODEL_PATH=name)
    assert run.values["reward_model.model.path"] == name


def test_a_list_of_data_files_is_passed_on(launch):
    run = launch("opdvr.sh", TRAIN_DATASET="[/a/x.parquet, '/b/y, z.parquet']")
    assert run.values["data.train_files"] == ["/a/x.parquet", "/b/y, z.parquet"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("1", True), ("Yes", True), ("false", False), ("0", False)],
)
def test_booleans_come_in_any_case(launch, text, value):
    run = launch("opdvr.sh", CORRECTNESS_GATED=text, USE_KL=text)
    assert run.values["opdvr.correctness_gated"] is value
    assert run.values["opdvr.use_kl"] is value


@pytest.mark.parametrize(
    ("variable", "option", "text", "value"),
    [
        ("N_RESPONSES", "actor_rollout_ref.rollout.n", "008", 8),
        ("LOG_PROB_TOP_K", "opdvr.log_prob_top_k", "0", 0),
        ("SAVE_FREQ", "trainer.save_freq", "-1", -1),
        ("MAX_RESP_LENGTH", "data.max_response_length", "+16", 16),
        ("TEMPERATURE", "actor_rollout_ref.rollout.temperature", "1", 1.0),
        ("TEMPERATURE", "actor_rollout_ref.rollout.temperature", "0.70", 0.7),
        ("TEMPERATURE", "actor_rollout_ref.rollout.temperature", "00", 0.0),
        ("ACTOR_LR", "actor_rollout_ref.actor.optim.lr", "1e-6", 1e-6),
        ("ACTOR_LR", "actor_rollout_ref.actor.optim.lr", "01.E-06", 1e-6),
        ("CORRECTNESS_THRESHOLD", "opdvr.correctness_threshold", "-.5", -0.5),
    ],
)
def test_numbers_arrive_as_numbers(launch, variable, option, text, value):
    arrived = launch("opdvr.sh", **{variable: text}).values[option]
    assert arrived == value
    assert type(arrived) is type(value)


REFUSED = [
    ("CORRECTNESS_GATED", "ja", "use True or False"),
    ("DRY_RUN", "maybe", "use True or False"),
    ("N_RESPONSES", "0", "1 or more"),
    ("N_RESPONSES", "8.0", "not a whole number"),
    ("N_RESPONSES", "1e1", "not a whole number"),
    ("N_RESPONSES", "8 ", "not a whole number"),
    ("N_RESPONSES", "99999999999999999999", "not a whole number"),
    ("SAVE_FREQ", "-2", "-1 or more"),
    ("TEMPERATURE", "warm", "not a number"),
    ("TEMPERATURE", "nan", "not a number"),
    ("ACTOR_LR", "1e", "not a number"),
    ("ACTOR_LR", ".", "not a number"),
    ("TOP_K_STRATEGY", "only_student", "only_stu, only_tch, intersection"),
    ("REWARD_WEIGHT_MODE", "student_p|teacher_p", "student_p, teacher_p, none"),
    ("CORRECTNESS_GATED_MODE", "Inverse", "default, inverse"),
    ("MODEL_DTYPE", "bf16", "bfloat16, float32"),
    ("TRUNCATED_RESPONSES", "drop", "keep, wrong, mask"),
    ("STUDENT_LOGPROBS", "yes", "auto, update, recompute, rollout"),
    ("ADV_ESTIMATOR", "gae", "token_reward_direct, "),
    ("DEMO_TEACHER", "bad", "faulty, good"),
    ("OPDVR_DEVICE", "gpu", "use cpu or cuda"),
    ("EXPERIMENT_NAME", "two\nlines", "line break"),
    ("TRAIN_DATASET", "[a,\nb]", "line break"),
    ("EXPERIMENT_NAME", "run-${USER}", "leave it out"),
    ("ACTOR_MODEL_PATH", "/no/such/dir", "student model folder not found: /no/such/dir"),
    ("ACTOR_MODEL_PATH", "./no", "student model folder not found: ./no"),
    ("ACTOR_MODEL_PATH", "a/b/c", "student model folder not found: a/b/c"),
    ("ACTOR_MODEL_PATH", "~nobody/m", "student model folder not found: ~nobody/m"),
    ("ACTOR_MODEL_PATH", "$HOME/m", "student model folder not found: $HOME/m"),
    ("REWARD_MODEL_PATH", "../no", "teacher model folder not found: ../no"),
    ("TRAIN_DATASET", "no.parquet", "data file not found: no.parquet"),
    ("TEST_DATASET", "/a,b.parquet", "data file not found: /a,b.parquet"),
]


@pytest.mark.parametrize(("variable", "text", "remedy"), REFUSED)
def test_a_mistake_is_one_line_that_names_the_variable(launch, variable, text, remedy):
    run = launch("opdvr.sh", **{variable: text})
    assert run.code == 2
    assert run.stdout == ""
    assert run.stderr.startswith("opdvr: ") and run.stderr.count("\n") == 1
    assert variable in run.stderr and remedy in run.stderr


def test_an_unknown_task_is_refused(launch):
    run = launch("opdvr.sh", OPDVR_TASK="other", OPDVR_DEVICE="cpu")
    assert run.code == 2 and "OPDVR_TASK='other'" in run.stderr


@pytest.mark.parametrize("script", ["opdvr.sh", "grpd.sh"])
def test_a_group_of_one_cannot_be_scaled(launch, script):
    run = launch(script, GRPO_SCALED="TRUE", N_RESPONSES="01")
    assert run.code == 2
    assert "GRPO_SCALED=True" in run.stderr and "N_RESPONSES" in run.stderr
    assert launch("grpd.sh", GRPO_SCALED="false", N_RESPONSES="1").code == 0
