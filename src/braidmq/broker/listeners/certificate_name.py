"""The user name from a verified client certificate.

``cn`` is the common name. ``dn`` is the whole subject as RFC 4514 writes it, last part first: ``CN=pump7,O=Example``.
A certificate with no common name, with several, or with characters that a user name cannot have, gives no name at all.
"""

from __future__ import annotations

import ssl
from typing import Literal

# RFC 4514, section 3; other attributes keep the long name that the ssl module gives them.
_SHORT_NAMES = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED = frozenset('"+,;<>\\')

Subject = tuple[tuple[tuple[str, str], ...], ...]


def certificate_name(tls: ssl.SSLObject | None, form: Literal["cn", "dn"]) -> str | None:
    """The user name of the TLS client, or None without a usable certificate."""
    certificate = tls.getpeercert() if tls is not None else None
    if not certificate:
        return None
    subject: Subject = certificate.get("subject", ())  # type: ignore[assignment]
    return common_name(subject) if form == "cn" else distinguished_name(subject)


def common_name(subject: Subject) -> str | None:
    """The common name, if there is exactly one."""
    names = [value for part in subject for attribute, value in part if attribute == "commonName"]
    return names[0] if len(names) == 1 and _is_usable(names[0]) else None


def distinguished_name(subject: Subject) -> str | None:
    """The subject in the string form of RFC 4514."""
    parts = [
        "+".join(f"{_SHORT_NAMES.get(attribute, attribute)}={_escape(value)}" for attribute, value in part)
        for part in reversed(subject)
    ]
    name = ",".join(parts)
    return name if _is_usable(name) else None


def _is_usable(name: str) -> bool:
    return bool(name) and name.isprintable()


def _escape(value: str) -> str:
    escaped = "".join(f"\\{character}" if character in _ESCAPED else character for character in value)
    if escaped.endswith(" "):
        escaped = f"{escaped[:-1]}\\ "
    return f"\\{escaped}" if escaped[:1] in ("#", " ") else escaped
