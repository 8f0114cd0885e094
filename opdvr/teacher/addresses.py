"""Which server scores which row: the text of TEACHER_URLS, read and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from opdvr.report.redact import REDACTED
from opdvr.teacher.engines import API_KEY_VARIABLE

OPTION = "TEACHER_URLS (opdvr.teacher_urls)"
FORM = "http://host:port, or data_source=http://host:port for the teacher of one data source"
# A data source may hold "=" itself: the address begins at the first "=" before a scheme.
_PAIR = re.compile(r"(?P<source>.*?)\s*=\s*(?P<url>[A-Za-z][A-Za-z0-9+.-]*://.*)", re.DOTALL)
_BARE = re.compile(r"https?://", re.IGNORECASE)
# All before the last "@" may be a login; a port that is no number may be half of one that had a
# comma in it.
_LOGIN = re.compile(r"(?P<before>.*//)?.*@", re.DOTALL)
_ODD_PORT = re.compile(r"(?P<host>//[^/\[\]:]*):(?!\d*(?:/|$)).*", re.DOTALL)
# Rows of any data source that has no pair of its own.
ANY_SOURCE = ""


@dataclass(frozen=True)
class Address:
    """A server, without "/v1" and without a slash at the end.

    Attributes:
        url: what requests begin with and messages show.
    """

    url: str

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True)
class Addresses:
    """All servers, by the data source whose rows they score; ANY_SOURCE has the rest."""

    by_source: dict[str, tuple[Address, ...]]

    def teacher_of(self, source: str) -> str:
        """Which key of `by_source` a row belongs to.

        Raises:
            ValueError: no server for it.
        """
        for key in (source, ANY_SOURCE):
            if key in self.by_source:
                return key
        raise ValueError(
            f"{OPTION}: no server for data_source {source!r}, only for "
            f"{', '.join(map(repr, self.by_source))}; add {source}=http://host:port, or an address "
            "without data_source= for all others"
        )

    def servers_for(self, source: str) -> tuple[Address, ...]:
        """The servers of a row's teacher, in the order of the text; ValueError for none."""
        return self.by_source[self.teacher_of(source)]


def read_addresses(text: str) -> Addresses:
    """Servers from comma-separated URLs and data_source=URL pairs.

    Raises:
        ValueError: one line that names the option and the item, never a password.
    """
    found: dict[str, list[Address]] = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            raise ValueError(f"{OPTION}: an empty item in {hide_logins(text)!r}; give {FORM}")
        pair = None if _BARE.match(item) else _PAIR.fullmatch(item)
        source = pair["source"].strip() if pair else ANY_SOURCE
        if pair and not source:
            raise ValueError(f"{OPTION}: {hide_logins(item)!r} has no data_source before '='")
        address = _address(pair["url"] if pair else item, item)
        servers = found.setdefault(source, [])
        if address in servers:
            of = f" for data_source {source!r}" if source else ""
            raise ValueError(f"{OPTION}: {address} is there twice{of}; leave one out")
        servers.append(address)
    return Addresses({source: tuple(servers) for source, servers in found.items()})


def hide_logins(text: str) -> str:
    """Comma-separated addresses without user names and passwords, malformed ones included."""
    items = (_LOGIN.sub(rf"\g<before>{REDACTED}@", item) for item in text.split(","))
    return ",".join(_ODD_PORT.sub(r"\g<host>:…", item) for item in items)


def _address(url: str, item: str) -> Address:
    shown = f"{OPTION}: {hide_logins(item)!r}"
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ValueError(f"{shown} is no URL; give {FORM}")
    if scheme.lower() not in ("http", "https"):
        raise ValueError(f"{shown} has the scheme {scheme}; give {FORM}")
    parts, port, fault = None, None, "has brackets that are no IPv6 address"
    try:
        parts = urlsplit(url)
        fault = "has no port from 1 to 65535"
        port = parts.port
    except ValueError:  # raised below: the library's text shows what may be half a password
        parts = None
    if parts is None or port == 0 or parts.netloc.endswith(":"):
        raise ValueError(f"{shown} {fault}; give {FORM}")
    if not parts.hostname or re.search(r"\s", parts.netloc):
        raise ValueError(f"{shown} names no host; give {FORM}")
    if parts.query or parts.fragment:
        raise ValueError(f"{shown} goes on after its path; give {FORM}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    if parts.username is not None:
        raise ValueError(
            f"{shown} has a user name or password in it, which would stand in process lists and "
            f"logs; leave it out, and set {API_KEY_VARIABLE} in the environment"
        )
    place = host if port is None else f"{host}:{port}"
    return Address(f"{parts.scheme}://{place}{path}")
