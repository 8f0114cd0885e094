"""`dedup`: which rows go, what stays as it was, and that it can be put together again."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from opdvr.data.dedup import put_back
from opdvr.data.problem_columns import common_wrapper, read_problems, without
from opdvr.data.text import INSTRUCTIONS

_, BEFORE, AFTER = INSTRUCTIONS
SHORT = "Find the sum of seven and nine"
WORDS = (
    "A farmer walks from the barn to the river in forty minutes at a steady pace and then "
    "comes back along a longer path that takes him three times as many minutes as before"
)
# 34 words: 22 runs of 13. Its first 20 words hold 8 of them; the other one is longer.
ALIKE = " ".join(WORDS.split()[:20]) + (
    " before noon with both of his dogs and a goat that he sold for eleven coins"
)
# 13 of its words in a row, of 24: 1 of 12 runs.
FAR = " ".join(WORDS.split()[:13]) + " while singing many songs about the old days of his youth"
OWN = [
    "What is 2 + 3?",
    "Compute the integral of x squared from 0 to 1",
    f"{SHORT}, then double it and take the square root of the result for once",
    WORDS,
    FAR,
]
OTHERS = ["compute the integral of $x$ squared from 0 to 1.", SHORT, ALIKE]


@pytest.fixture
def dedup(data, write):
    """dedup(own, others, ...): run on two files in verl's form."""

    def run(own=OWN, others=OTHERS, *options):
        write("a.parquet", own, noted=[f"row {i}" for i in range(len(own))])
        write("b.parquet", others)
        return data("dedup", "a.parquet", "b.parquet", "--output", "c.parquet", *options)

    return run


def test_each_rule(dedup, read):
    ran = dedup(OWN, OTHERS, "--json", "found.json")
    assert ran.code == 0, ran.err
    assert [row["noted"] for row in read("c.parquet")] == ["row 0", "row 4"]
    dropped = read("c.dropped.parquet")
    told = [(r["dedup_row"], r["dedup_rule"], r["dedup_match_row"]) for r in dropped]
    assert told == [(1, "exact", 0), (2, "contained", 1), (3, "n-gram", 2)]
    assert [row["dedup_share"] for row in dropped] == [1.0, 1.0, 8 / 22]
    for line in ("1 row: exact", "1 row: contained", "1 row: n-gram", "c.parquet: 2 rows"):
        assert line in ran.out
    found = json.loads(open("found.json").read())
    assert found["by_rule"] == {"exact": 1, "contained": 1, "n-gram": 1}
    assert (found["kept"], found["dropped"], found["a"]["rows"]) == (2, 3, 5)


def test_nothing_else_changes_and_it_can_be_undone(dedup, write):
    write("a.parquet", OWN)
    extra = {"data_source": ["s"] * len(OWN), "__index_level_0__": [9, 7, 5, 3, 1]}
    table = pq.read_table("a.parquet").append_column("i", pa.array(extra["__index_level_0__"]))
    table = table.replace_schema_metadata({"pandas": "{}", "note": "mine"})
    pq.write_table(table, "own.parquet")
    write("b.parquet", OTHERS)
    from opdvr.data.command import main

    assert main(["dedup", "own.parquet", "b.parquet", "--output", "c.parquet"]) == 0
    kept, dropped = pq.read_table("c.parquet"), pq.read_table("c.dropped.parquet")
    assert kept.schema.equals(table.schema, check_metadata=True)
    whole = put_back(kept, dropped)
    assert whole.equals(table) and whole.schema.equals(table.schema, check_metadata=True)


def test_a_larger_least_share_keeps_more(dedup, read):
    ran = dedup(OWN, OTHERS, "--min-share", "0.9")
    assert [row["noted"] for row in read("c.parquet")] == ["row 0", "row 3", "row 4"]
    assert "0 rows: n-gram" in ran.out


def test_dapo_instructions_are_no_shared_words(dedup, read):
    problems = ["Sum the first ten primes", "How many ways to tile a strip of ten", "Find 3 cubed"]
    wrapped = [f"{BEFORE}\n\n{problem}\n\n{AFTER}" for problem in problems]
    assert dedup(wrapped, [f"{BEFORE}\n\nWhat is six by nine?\n\n{AFTER}"]).code == 0
    assert len(read("c.parquet")) == 3
    # And it hides nothing.
    dedup([*wrapped, "Find 4 cubed"], ["find 3 cubed"], "--force")
    assert [row["noted"] for row in read("c.parquet")] == ["row 0", "row 1", "row 3"]


STRANGE = (
    "You are a careful mathematician. Read the question below twice, think aloud before you "
    "calculate anything, and never guess. Question:"
)
END = "Now write the answer and nothing else on a line of its own, in digits."


def test_unknown_instructions_around_nearly_all_are_no_shared_words(dedup, read):
    own = [f"{STRANGE}\n{'abcdefghij'[i % 10]} plus {i} is what?\n{END}" for i in range(40)]
    kinds = ("Which prime", "What square", "How many cubes", "Whose root")
    others = [f"{STRANGE} {kinds[i % 4]} follows {i}? {END}" for i in range(40)]
    # 39 of 40 end in "is what?" too, and this one only in the instructions.
    own[7] = f"{STRANGE} which prime follows 12?\n{END}"
    ran = dedup(own, others)
    assert [row["dedup_match_row"] for row in read("c.dropped.parquet")] == [12]
    assert "A: not counted, before nearly every problem: 'You are a careful" in ran.out
    assert "B: not counted, after nearly every problem: 'Now write the answer" in ran.out


def test_the_wrapper_is_what_nine_of_ten_have():
    many = [f"{STRANGE} {i} {END}" for i in range(27)] + ["bare one", "bare two", "bare three"]
    assert common_wrapper(many) == (STRANGE, END)
    assert common_wrapper([*many, "a fourth that is bare"]) == ("", "")  # 27 of 31
    assert common_wrapper(many[:19]) == ("", "")  # too few to tell
    # Three words that problems often begin with are theirs.
    assert common_wrapper([f"Find all integers {i} {i + 1}" for i in range(30)]) == ("", "")


def test_taking_a_wrapper_off():
    wrapper = (STRANGE, END)
    assert without(f"{STRANGE}\n\n 2 + 2?  {END}\n", wrapper) == "2 + 2?"
    assert without("2 + 2?", wrapper) == "2 + 2?"
    assert without(f"{STRANGE} 2?", wrapper) == "2?" and without(f"2? {END}", wrapper) == "2?"
    assert without("You are a bird. 2?", wrapper) == "You are a bird. 2?"  # three words
    assert without("You are a careful man. 2?", wrapper) == "man. 2?"  # four, as many as it has
    assert without(f"{STRANGE} {END}", wrapper) == f"{STRANGE} {END}"  # nothing would be left


def test_raw_files_of_other_columns(data, write, write_jsonl, read):
    write("a.parquet", OWN)
    write_jsonl("b.jsonl", [{"problem": OWN[0], "n": 1}, {"problem": None}, {"problem": OWN[4]}])
    ran = data("dedup", "a.parquet", "b.jsonl", "--output", "c.parquet")
    assert ran.code == 0, ran.err
    assert "1 row without text" in ran.out
    assert [row["dedup_match_row"] for row in read("c.dropped.parquet")] == [0, 2]
    pq.write_table(
        pa.table({"q": [{"text": OWN[0]}, {"text": ""}, {"text": "new"}]}), "raw.parquet"
    )
    options = ("--output", "d.parquet", "--column", "q.text", "--other-column", "problem")
    ran = data("dedup", "raw.parquet", "b.jsonl", *options)
    assert ran.code == 0, ran.err
    # A row without text is no repeat of another one.
    assert [row["q"]["text"] for row in read("d.parquet")] == ["", "new"]


def test_repeats_of_a_problem_all_go(dedup, read):
    dedup([OWN[3], OWN[0], OWN[3], OWN[3]], [OWN[3], OWN[3]])
    assert [row["noted"] for row in read("c.parquet")] == ["row 1"]
    assert [row["dedup_match_row"] for row in read("c.dropped.parquet")] == [0, 0, 0]


def test_the_last_message_is_the_problem(tmp_path):
    prompts = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}],
        [],
        None,
        [{"role": "user", "content": "two"}],
    ]
    pq.write_table(pa.table({"prompt": prompts}), tmp_path / "a.parquet")
    found = read_problems(tmp_path / "a.parquet", None, "--column")
    assert found.by_row == {0: "one", 3: "two"} and found.rows == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no.parquet", "b.parquet"), "file not found: no.parquet"),
        (("b.jsonl", "b.parquet"), "give a .parquet file"),
        (("a.parquet", "no.parquet"), "file not found: no.parquet"),
        (("a.parquet", "b.parquet", "--column", "x"), "has no column x (found: prompt"),
        (("a.parquet", "b.parquet", "--column", "reward_model.x"), "has no reward_model.x"),
        (("a.parquet", "b.parquet", "--other-column", "reward_model"), "neither text nor messages"),
        (("a.parquet", "b.parquet", "--min-share", "2"), "--min-share 2.0: give 0 to 1"),
        (("a.parquet", "a.parquet"), "every row of A stands in B"),
        (("odd.parquet", "b.parquet"), "none of the columns prompt, problem, question"),
        (("c.dropped.parquet", "b.parquet"), "c.dropped.parquet is a source"),
    ],
)
def test_mistakes(refused, write, write_jsonl, arguments, said):
    write("a.parquet", OWN[:2])
    write("b.parquet", OTHERS)
    write("c.dropped.parquet", OWN)
    write_jsonl("b.jsonl", [{"problem": "x"}])
    pq.write_table(pa.table({"text": ["x"]}), "odd.parquet")
    assert said in refused("dedup", *arguments, "--output", "c.parquet", "--force")


def test_files_that_are_there_stay(dedup, refused):
    dedup()
    before = open("c.parquet", "rb").read()
    said = refused("dedup", "a.parquet", "b.parquet", "--output", "c.parquet")
    assert "exists" in said and open("c.parquet", "rb").read() == before
    assert dedup(OWN, OTHERS, "--force").code == 0
