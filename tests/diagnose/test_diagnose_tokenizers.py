"""Ids, end tokens and templates of two folders."""

import json
import shutil
from pathlib import Path

import pytest
from diagnosing import MODELS

from opdvr.diagnose.tokenizers import compare_vocabularies, end_ids, template_difference
from opdvr.eval.models import Model
from opdvr.eval.prepare import load_tokenizer


def model(folder):
    return Model(str(folder), Path(folder))


@pytest.fixture
def copy(tmp_path):
    return shutil.copytree(MODELS / "teacher-good", tmp_path / "copy")


def change(path, edit):
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


STUDENT = model(MODELS / "student")


def test_the_same_map():
    found = compare_vocabularies(STUDENT, model(MODELS / "teacher-good"))
    assert (found.length, found.difference, found.teacher_more) == (29, None, 0)


def test_the_first_id_that_differs_is_named(copy):
    def swap(content):
        vocabulary = content["model"]["vocab"]
        vocabulary["3"], vocabulary["8"] = vocabulary["8"], vocabulary["3"]

    change(copy / "tokenizer.json", swap)
    found = compare_vocabularies(STUDENT, model(copy))
    # "3" is id 10 and "8" id 15: 5 markers, \boxed{ and }, then the digits from 7 on.
    assert found.difference == "id 10 is '3' in the student and '8' in the teacher"


def test_ids_that_only_one_has(copy):
    change(copy / "tokenizer.json", lambda content: content["model"]["vocab"].update({"#": 29}))
    change(copy / "config.json", lambda content: content.update(vocab_size=40))
    found = compare_vocabularies(STUDENT, model(copy))
    assert found.difference is None and found.teacher_more == 1 and found.length == 29
    # The other way round the teacher lacks an id that the student may sample.
    found = compare_vocabularies(model(copy), STUDENT)
    assert found.difference == "the teacher has 29 logits, the student's tokenizer 30 ids"
    change(copy / "config.json", lambda content: content.update(vocab_size=29))
    found = compare_vocabularies(model(copy), model(copy))
    assert found.difference == "the student has 29 logits, the student's tokenizer 30 ids"


def test_a_folder_without_a_tokenizer_file(copy):
    (copy / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="no tokenizer.json or vocab.json"):
        compare_vocabularies(STUDENT, model(copy))


def test_end_ids_are_those_of_tokenizer_and_generation(copy):
    tokenizer = load_tokenizer(model(copy))
    assert end_ids(model(copy), tokenizer) == [1]
    change(copy / "generation_config.json", lambda content: content.update(eos_token_id=[0, 6]))
    assert end_ids(model(copy), tokenizer) == [0, 1, 6]
    (copy / "generation_config.json").unlink()
    assert end_ids(model(copy), tokenizer) == [1]


def test_where_templates_differ():
    assert template_difference("<u>2+2", "<u>2+2") is None
    said = template_difference("<u>2+2<a>", "<u>2+2<think><a>")
    assert said.startswith("from character 7: student '<u>2+2<a>'")
    assert "'<u>2+2<think><a>'" in said
    assert template_difference("abc", "abcd").startswith("from character 3")
