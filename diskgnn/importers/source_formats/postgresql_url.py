"""URLs of PostgreSQL databases, read here and not by the driver, whose messages quote what they cannot read.

Nothing of a URL that is wrong is shown: it may be a part of a password.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from diskgnn.errors import ConfigError
from diskgnn.redaction import SHOWN, redacted

_URL = re.compile(
    r"postgres(?:ql)?(?:\+\w+)?://(?P<place>[^/?]*)(?:/(?P<database>[^?]*))?(?:\?(?P<parameters>.*))?",
    re.DOTALL | re.IGNORECASE,
)
# Say what is read; the rest says how to get in.
_WHERE = ("service", "servicefile", "user", "host", "hostaddr", "port", "dbname")
_ENVIRONMENT = {"PGSERVICE": "service", "PGSERVICEFILE": "servicefile", "PGUSER": "user", "PGHOST": "host",
                "PGHOSTADDR": "hostaddr", "PGPORT": "port", "PGDATABASE": "dbname", "PGOPTIONS": "options"}  # fmt: skip
_SECRET = ("password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
_PARAMETERS = frozenset({
    *_WHERE, *_SECRET, "options", "passfile", "require_auth", "channel_binding", "connect_timeout",
    "application_name", "fallback_application_name", "keepalives", "keepalives_idle", "keepalives_interval",
    "keepalives_count", "tcp_user_timeout", "gssencmode", "sslmode", "sslnegotiation", "sslcompression", "sslcert",
    "sslkey", "sslcertmode", "sslrootcert", "sslcrl", "sslcrldir", "sslsni", "requirepeer",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "min_protocol_version", "max_protocol_version",
    "krbsrvname", "gsslib", "gssdelegation", "target_session_attrs", "load_balance_hosts", "oauth_issuer",
    "oauth_client_id", "oauth_scope",
})  # fmt: skip
_ADVICE = (
    "Letters such as @ / : ? % of a name or a password are written %40 %2F %3A %3F %25. Better, leave the password out "
    "and give it by PGPASSWORD, ~/.pgpass or a service. The URL is not shown, as it may hold a password"
)


@dataclass(frozen=True, repr=False)
class PostgresUrl:
    """Says which database is meant, and how to get in.

    Attributes:
        settings: by libpq's words for them.
    """

    settings: Mapping[str, str]

    @staticmethod
    def parse(url: str) -> PostgresUrl:
        """Reads postgresql://USER:PASSWORD@HOST:PORT/DATABASE?PARAMETER=VALUE, of which each part may be missing.

        Raises:
            ConfigError: it is none. The message has nothing of it.
        """
        found = _URL.fullmatch(url)
        if found is None:
            raise _url_error(
                "such as postgresql:///shop, postgresql://user@host:5432/shop or postgresql:///?service=shop"
            )
        settings = dict[str, str]()
        who, at, hosts = found["place"].rpartition("@")
        user, colon, password = who.partition(":")
        settings |= {"user": _decoded(user)} if user else {}
        settings |= {"password": _decoded(password)} if at and colon else {}
        settings |= _hosts(hosts)
        database = found["database"] or ""
        if "@" in database or "/" in database:  # of a password, maybe
            raise _url_error("with a name of one database after the host")
        settings |= {"dbname": _decoded(database)} if database else {}
        for name, value in _parameters(found["parameters"] or ""):
            if (name, value) == ("ssl", "true"):  # as JDBC says it
                name, value = "sslmode", "require"
            if name not in _PARAMETERS:
                raise _url_error("with parameters that libpq knows")
            settings[name] = value
        return PostgresUrl(settings)

    def __repr__(self) -> str:
        return f"PostgresUrl({self.shown!r})"

    @property
    def shown(self) -> str:
        """Returns the URL for messages: where the database is, and nothing else."""
        found = {name: value for name, value in self.settings.items() if name in _WHERE}
        user, host, port = found.pop("user", ""), found.pop("host", ""), found.pop("port", "")
        if not re.fullmatch(r"[A-Za-z0-9.-]*", host):  # a folder of a socket, several hosts, an address of IPv6
            found |= {"host": host, "port": port} if port else {"host": host}
            host = port = ""
        place = f"{user and quote(user, safe='') + '@'}{host}{port and ':' + port}"
        database = quote(found.pop("dbname", ""), safe="")
        parameters = "&".join(f"{name}={quote(value, safe='/,:[]')}" for name, value in found.items())
        return f"postgresql://{place}/{database}{parameters and '?' + parameters}"

    @property
    def conninfo(self) -> str:
        """Returns what the driver takes: it holds the password."""
        settings = {"fallback_application_name": "diskgnn", **self.settings, "client_encoding": "UTF8"}
        escaped = {name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in settings.items()}
        return " ".join(f"{name}='{value}'" for name, value in escaped.items())

    @property
    def identity(self) -> str:
        """Names the database that is meant, also where the environment says it. A new password changes nothing."""
        names = (*_WHERE, "options")
        environment = {name: os.environ[key] for key, name in _ENVIRONMENT.items() if key in os.environ}
        meant = environment | {name: value for name, value in self.settings.items() if name in names}
        document = json.dumps(meant, sort_keys=True).encode()
        return f"postgresql-{hashlib.blake2b(document, digest_size=16).hexdigest()}"

    def without_secrets(self, text: str) -> str:
        """Returns a message of the driver with *** in place of passwords, those of the environment, too."""
        given = [self.settings.get(name, "") for name in _SECRET]
        for secret in sorted({*given, os.environ.get("PGPASSWORD", "")} - {""}, key=len, reverse=True):
            for written in (secret, quote(secret, safe=""), quote(secret)):
                text = text.replace(written, SHOWN)
        return redacted(text)


def _url_error(expected: str) -> ConfigError:
    return ConfigError(f"source: expected a URL of a database {expected}; found one that is not. {_ADVICE}")


def _decoded(text: str) -> str:
    """Returns what %XX in a part of a URL stand for."""
    if re.search(r"%(?![0-9A-Fa-f]{2})|%00", text):
        raise _url_error("with two hexadecimal digits after each %, and not %00")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise _url_error("with %XX that are UTF-8") from None


def _hosts(text: str) -> dict[str, str]:
    """Returns the hosts and ports of HOST:PORT, of which there may be several with commas between."""
    hosts, ports = [], []
    for each in text.split(","):
        found = re.fullmatch(r"(\[[0-9A-Fa-f:.%]*\]|[^:\[\]]*)(?::(\d*))?", each)
        if found is None:
            raise _url_error("with a number as the port, after the host and a colon")
        hosts.append(_decoded(found[1].strip("[]") if found[1].startswith("[") else found[1]))
        ports.append(found[2] or "")
    known = {"host": ",".join(hosts), "port": ",".join(ports)}
    return {name: value for name, value in known.items() if value.strip(",")}


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    for pair in text.split("&") if text else ():
        name, equals, value = pair.partition("=")
        if not equals or "=" in value:
            raise _url_error("with parameters NAME=VALUE, and & between them")
        yield _decoded(name), _decoded(value)
