"""Secrets in URLs, taken out of what is shown or stored: command lines, messages, reports.

URLs with secrets are refused before anything is done with them (`stores.locations.located`). This is for the
places that show what the user wrote before that: the page of `--serve`, errors, the command of a comparison.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

SHOWN = "***"

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/{1,2}(?P<rest>[^\s\"'<>|]+)", re.IGNORECASE)
_PARAMETER = re.compile(r"(?P<name>(?<=[?&;#])[^=&;#?]+)=(?P<value>[^&;#]*)")
_SECRET_NAME = re.compile(
    r"secret|token|passw|passphrase|^pwd$|credential|signature|^sig$|^sas$|^jwt$|^auth$|authorization|bearer"
    r"|(access|account|api|private|shared|storage|encryption).?key|^key$",
    re.IGNORECASE,
)
# URLs of databases are a person's own work, with passwords in which anything may stand unescaped.
_DATABASE = re.compile(
    r"(?P<scheme>postgres(?:ql)?(?:\+\w+)?(?::/{0,2}|//))(?P<word>[^\s\"'<>|]*)(?P<line>[^\n]*)", re.IGNORECASE
)
_PLAIN_DATABASE = re.compile(
    r"[^:]+://([^:/?@]*@)?[^/?@]*(/[^/?@]*)?(\?((host|hostaddr|port|user|dbname|service|sslmode)=[^&]*(&|$))*)?"
)
_HOST_AND_PORT = re.compile(r"(\[[^]]*\]|[^/?:]*)(:\d*)?(,[^/?]*)?([/?].*)?", re.DOTALL)
_PASSWORD = re.compile(r"(?P<name>\b(?:ssl)?password\s*=\s*)(?P<value>'(?:[^'\\]|\\.)*'|[^\s&'\"]+)", re.IGNORECASE)
# Of these, even a name before the @ is one of a secret's two halves. Of others it may be a user or a container.
_NO_USERS = re.compile(r"s3[an]?|https?", re.IGNORECASE)


def redacted(text: str) -> str:
    """Returns `text` with *** in place of passwords, keys, signatures and tokens in its URLs.

    These are what stands before the @ of a URL, if it has a colon in it, and the values of parameters whose names say
    that they are secret.

    Example:
        >>> redacted("diskgnn fetch 's3://AKIA:hidden@bucket/graph?region=eu&session_token=hidden'")
        "diskgnn fetch 's3://***@bucket/graph?region=eu&session_token=***'"
    """
    text = _PASSWORD.sub(rf"\g<name>{SHOWN}", _DATABASE.sub(_redacted_database, text))
    return _URL.sub(_redacted_url, text)


def redacted_argument(word: str) -> str:
    """Returns the same of one argument of a command. Of one that is the URL of a database and has a password, nothing
    but the kind stays: who knows where a wrong one ends.
    """
    found = _DATABASE.match(word)
    if found is None or (redacted(word) == word and _PLAIN_DATABASE.fullmatch(word)):
        return redacted(word)
    return f"{found['scheme']}{SHOWN}"


def has_secret(url: str) -> bool:
    """Returns True if `redacted` would change it."""
    return redacted(url) != url


def _redacted_database(match: re.Match[str]) -> str:
    scheme, word, line = match["scheme"], match["word"], match["line"]
    head, at, tail = word.rpartition("@")
    if at and ":" in unquote(head):
        word = f"{SHOWN}@{tail}"
    elif not at and _HOST_AND_PORT.fullmatch(word) is None:
        # No port, so the beginning of a password: it may go on behind a blank or a quote, up to the last @.
        _, at, tail = line.rpartition("@")
        word, line = (SHOWN, f"@{tail}") if at else (f"{word.partition(':')[0]}:{SHOWN}", line)
    more = _DATABASE.sub(_redacted_database, line)
    return f"{scheme}{word}{more}"


def _redacted_url(match: re.Match[str]) -> str:
    rest: str = match["rest"]
    begin = min((found for mark in "?#" if (found := rest.find(mark)) >= 0), default=len(rest))
    place, parameters = rest[:begin], rest[begin:]
    user, at, others = place.rpartition("@")
    if at and _is_secret_user(match["scheme"], user):
        place = f"{SHOWN}@{others}"
    before: str = match.string[match.start() : match.start("rest")]
    return before + place + _PARAMETER.sub(_redacted_parameter, parameters)


def _is_secret_user(scheme: str, user: str) -> bool:
    """Returns True if what stands before an @ is a name and a password. A password may have slashes in it, as AWS has
    them; but a path may have an @."""
    first, slash, _ = unquote(user).partition("/")
    name, colon, password = first.partition(":")
    if slash:
        return bool(colon) and not password.isdecimal()  # which is a port
    return bool(colon) or bool(_NO_USERS.fullmatch(scheme) and name)


def _redacted_parameter(match: re.Match[str]) -> str:
    value = unquote(match["value"])
    inner = value if "://" in value else f"x-url://{value}"  # such as endpoint_override=user:password@host
    secret = bool(match["value"]) and (bool(_SECRET_NAME.search(unquote(match["name"]))) or has_secret(inner))
    return f"{match['name']}={SHOWN if secret else match['value']}"
