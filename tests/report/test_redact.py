"""Secrets stay out of config.yaml and versions.json; what merely looks alike stays in."""

import json
from enum import Enum

import pytest

from opdvr.report.redact import REDACTED, names_secret, plain_config, redact_command
from opdvr.report.run_folder import RunFolder


@pytest.mark.parametrize(
    "key",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "GITHUB_PAT",
        "openaiApiKey",
        "apikey",
        "db_password",
        "DB_PWD",
        "ssh-key",
        "Authorization",
        "client_secret",
        "HTTPToken",
    ],
)
def test_secret_keys(key):
    assert names_secret(key, "abc123")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ppo_max_token_len_per_gpu", 12288),
        ("max_num_batched_tokens", 8192),
        ("max_tokens", "8192"),
        ("adv_estimator", "token_reward_direct"),
        ("eos_token", "<|im_end|>"),
        ("pad_token_id", 0),
        ("tokenizer", "path"),
        ("prompt_key", "prompt"),
        ("reward_fn_key", "data_source"),
        ("loss_agg_mode", "token-mean"),
        ("PWD", "/home/someone"),
        ("PATH", "/bin"),
        ("keyboard", "x"),
        ("HF_TOKEN", None),
        ("HF_TOKEN", ""),
        ("use_auth_token", True),
    ],
)
def test_keys_that_only_look_alike(key, value):
    assert not names_secret(key, value)


def test_config_is_redacted_at_any_depth_and_otherwise_plain():
    class Mode(Enum):
        DEFAULT = "default"

    config = {
        "ray_kwargs": {
            "ray_init": {
                "runtime_env": {
                    "env_vars": {
                        "WANDB_API_KEY": "s3cret",
                        "OMP_NUM_THREADS": "1",
                        "https_proxy": "http://me:pw@proxy:80/x",
                    }
                }
            }
        },
        "headers": [{"Authorization": "Bearer s3cret"}],
        "credentials": {"user": "me", "pass": "s3cret"},
        "mode": Mode.DEFAULT,
        3: (1, 2.5),
    }
    assert plain_config(config) == {
        "ray_kwargs": {
            "ray_init": {
                "runtime_env": {
                    "env_vars": {
                        "WANDB_API_KEY": REDACTED,
                        "OMP_NUM_THREADS": "1",
                        "https_proxy": f"http://{REDACTED}@proxy:80/x",
                    }
                }
            }
        },
        "headers": [{"Authorization": REDACTED}],
        "credentials": REDACTED,
        "mode": "default",
        3: [1, 2.5],
    }


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("trainer.env.WANDB_API_KEY=abc, d e", f"trainer.env.WANDB_API_KEY={REDACTED}"),
        ("+env={WANDB_API_KEY:abc,A:1}", f"+env={{WANDB_API_KEY:{REDACTED},A:1}}"),
        ("+env={A:1,'HF_TOKEN': 'a,b'}", f"+env={{A:1,'HF_TOKEN': {REDACTED}}}"),
        ("env=HF_TOKEN=abc=", f"env=HF_TOKEN={REDACTED}"),
        ("--token=abc", f"--token={REDACTED}"),
        ("actor.ppo_max_token_len_per_gpu=123", "actor.ppo_max_token_len_per_gpu=123"),
        ("url=https://me:pw@host/x", f"url=https://{REDACTED}@host/x"),
        ("url=https://host:80/x", "url=https://host:80/x"),
        ("trainer.logger=['console','wandb']", "trainer.logger=['console','wandb']"),
        ("--api-key", "--api-key"),
    ],
)
def test_command_arguments(argument, shown):
    assert redact_command([argument]) == [shown]


def test_the_argument_after_a_secret_flag():
    command = ["x", "--api-key", "abc", "--max-tokens", "5", "--token", "--verbose"]
    shown = ["x", "--api-key", REDACTED, "--max-tokens", "5", "--token", "--verbose"]
    assert redact_command(command) == shown


def test_no_file_of_a_run_folder_holds_the_secret(tmp_path):
    config = {"env_vars": {"WANDB_API_KEY": "s3cret"}}
    RunFolder(tmp_path).open(config, ["train", "+env.WANDB_API_KEY=s3cret"], None)
    files = [file for file in tmp_path.iterdir() if file.name != "git.diff"]
    assert {"config.yaml", "versions.json"} <= {file.name for file in files}
    assert not [file.name for file in files if "s3cret" in file.read_text()]
    command_line = json.loads((tmp_path / "versions.json").read_text())["command_line"]
    assert command_line == f"train '+env.WANDB_API_KEY={REDACTED}'"
