"""TEACHER_URLS: what is read from it, and what it refuses without showing a password."""

import pytest

from opdvr.teacher.addresses import hide_logins, read_addresses


def urls(text, source="x"):
    return [str(address) for address in read_addresses(text).servers_for(source)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a:8000", ["http://a:8000"]),
        ("http://a:8000/", ["http://a:8000"]),
        ("http://a:8000/v1", ["http://a:8000"]),
        ("http://a:8000/v1/", ["http://a:8000"]),
        ("https://gate.example/teacher/v1", ["https://gate.example/teacher"]),
        ("HTTP://A:8000", ["http://a:8000"]),
        ("http://[::1]:8000/v1", ["http://[::1]:8000"]),
        (" http://a:1 , http://b:2 ", ["http://a:1", "http://b:2"]),
    ],
)
def test_a_url_in_its_forms(text, expected):
    assert urls(text) == expected


def test_pairs_choose_by_source_and_bare_addresses_serve_the_rest():
    text = "math=http://a:1,http://c:3,math=http://b:2,a=b=http://d:4"
    assert urls(text, "math") == ["http://a:1", "http://b:2"]
    assert urls(text, "code") == ["http://c:3"]
    assert urls(text, "a=b") == ["http://d:4"]


def test_an_address_with_an_equals_sign_in_its_path_is_bare():
    assert urls("http://a/x=http://b") == ["http://a/x=http://b"]


def test_a_source_without_a_server_is_named():
    with pytest.raises(ValueError, match=r"no server for data_source 'code', only for 'math'"):
        read_addresses("math=http://a:1").servers_for("code")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "an empty item"),
        ("http://a:1,", "an empty item"),
        ("localhost:8000", "'localhost:8000' is no URL"),
        ("math=localhost:8000", "'math=localhost:8000' is no URL"),
        ("ftp://a", "the scheme ftp"),
        ("math=unix://a", "the scheme unix"),
        ("http://:8000", "names no host"),
        ("http://", "names no host"),
        ("http://a:99999", "no port from 1 to 65535"),
        ("http://a:0", "no port from 1 to 65535"),
        ("http://a:", "no port from 1 to 65535"),
        ("http://[::1:8000", "no IPv6 address"),
        ("http://a:1?x=1", "goes on after its path"),
        ("=http://a:1", "no data_source before"),
        ("http://a:1,http://a:1/v1/", "http://a:1 is there twice"),
        ("m=http://a:1,m=http://a:1", "twice for data_source 'm'"),
    ],
)
def test_mistakes_are_one_line_with_the_option(text, fault):
    with pytest.raises(ValueError) as mistake:
        read_addresses(text)
    assert fault in str(mistake.value)
    assert str(mistake.value).startswith("TEACHER_URLS (opdvr.teacher_urls)")
    assert "\n" not in str(mistake.value)


def test_two_sources_may_share_a_server():
    read = read_addresses("a=http://s:1,b=http://s:1")
    assert read.servers_for("a") == read.servers_for("b")


@pytest.mark.parametrize(
    "text",
    [
        "http://me:hunter2@a:1",
        "http://me:hunter2@a:99999",
        "ftp://me:hunter2@a",
        "http://me:hunter2@",
        "http://me:hunter2",  # cut at a comma of the password
        "me:hunter2@a:80",
        "http://me:x@hunter2@a:bad",
        "http://me:hunter2@a:1?x",
        "math=ftp://hunter2@a",
    ],
)
def test_no_message_shows_a_password(text):
    with pytest.raises(ValueError) as mistake:
        read_addresses(text)
    assert "hunter2" not in str(mistake.value)
    assert mistake.value.__cause__ is None
    assert "hunter2" not in hide_logins(text)
