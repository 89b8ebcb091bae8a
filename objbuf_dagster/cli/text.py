"""Words and numbers for people: sizes, durations, and text from outside made fit for a terminal."""

from __future__ import annotations

import re
from datetime import datetime, timezone

_USER_IN_URL = re.compile(r"//[^/\s@'\"]+@")
_SECRET_IN_QUERY = re.compile(
    r"([?&][^=&\s]*(?:sig|token|key|secret|password|credential)[^=&\s]*=)[^&\s'\"]+", re.IGNORECASE
)
_SECRET_NAME = re.compile(r"secret|token|password|sas|service_account|_key$", re.IGNORECASE)
_CONSONANT_Y = re.compile(r"[^aeiou]y$")
_SHORTEST_SECRET = 6  # shorter ones would be found in innocent words

_secrets: set[str] = set()


def hide_secret(name: str, value: str) -> None:
    """From now on `redact` knows this setting's value, if its name says that it is a secret."""
    if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET:
        _secrets.add(value)


def redact(text: str) -> str:
    """Without the secrets that it may hold: settings known as such, user parts and signatures of URLs."""
    for secret in sorted(_secrets, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, "...")
    return _SECRET_IN_QUERY.sub(r"\1...", _USER_IN_URL.sub("//...@", text))


def printable(text: str) -> str:
    """One line that moves no cursor and turns no text around, whoever wrote it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def size(number: float) -> str:
    """Bytes in the unit that keeps them short."""
    if number < 1024:
        return plural(int(number), "byte")
    for unit in ("KiB", "MiB", "GiB"):
        number /= 1024
        if number < 1024:
            return f"{number:.1f} {unit}"
    return f"{number / 1024:.1f} TiB"


def duration(seconds: float) -> str:
    """Two units at the most: `3 d 4 h`, `5 min 20 s`, `0.4 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def plural(number: int, noun: str) -> str:
    """`1 batch`, `2 batches`, `0 entries`, `3 keys`."""
    if number == 1:
        return f"1 {noun}"
    many = f"{noun[:-1]}ies" if _CONSONANT_Y.search(noun) else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number} {many}"


def utc(time_ms: int) -> str:
    """A time in milliseconds since 1970, to the second."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
