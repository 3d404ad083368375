"""Connection errors: a readable sentence, and the exit status that ``mosquitto_pub`` uses."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from braidmq.mqtt.packets import MQTT5
from braidmq.mqtt.reasons import Reason

EXIT_FAILED: Final = 1
EXIT_NOT_SUPPORTED: Final = 10
EXIT_CONNECTION_LOST: Final = 7
EXIT_TLS: Final = 8
EXIT_KEEP_ALIVE: Final = 19
EXIT_TOO_LARGE: Final = 25

_RETURN_CODES: Final = {
    1: "unacceptable protocol version",
    2: "identifier rejected",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


# Codes for which a retry may succeed.
_PASSING: Final = (
    Reason.UNSPECIFIED_ERROR,
    Reason.SERVER_UNAVAILABLE,
    Reason.SERVER_BUSY,
    Reason.SERVER_SHUTTING_DOWN,
    Reason.KEEP_ALIVE_TIMEOUT,
    Reason.QUOTA_EXCEEDED,
    Reason.USE_ANOTHER_SERVER,
    Reason.CONNECTION_RATE_EXCEEDED,
)


class ClientError(Exception):
    """A readable error, with the exit status of a program that ends because of it."""

    def __init__(self, sentence: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(sentence, exit_code)
        self.sentence = sentence
        self.exit_code = exit_code

    def __str__(self) -> str:
        return self.sentence


def reason_in_words(reason: int) -> str:
    """An MQTT 5 reason code as text: ``not authorized (0x87)``."""
    try:
        words = Reason(reason).name.lower().replace("_", " ").replace("qos", "QoS")
    except ValueError:
        words = "unknown reason"
    return f"{words} (0x{reason:02X})"


def is_passing(reason: int) -> bool:
    """Whether a retry may succeed."""
    return reason in _PASSING


def refused_login(reason: int, version: int, detail: str | None = None) -> ClientError:
    """The error for a CONNECT that the server rejected; the exit status is the server's code."""
    if version == MQTT5:
        words = reason_in_words(reason)
    else:
        words = f"{_RETURN_CODES.get(reason, 'unknown return code')} (return code {reason})"
    said = f'; it says "{detail}"' if detail else ""
    return ClientError(f"the server rejected the connection: {words}{said}", reason)


def connection_failure(error: Exception, target: str) -> ClientError:
    """The error for a failed connection to ``target``."""
    exit_code = EXIT_FAILED
    match error:
        case ssl.SSLCertVerificationError():
            words, exit_code = f"the server's certificate is not trusted: {error.verify_message}", EXIT_TLS
        case ssl.SSLError():
            words, exit_code = tls_failure(error), EXIT_TLS
        case TimeoutError():
            words = "no answer in time"
        case socket.gaierror():
            words = f"the host name cannot be resolved ({error.strerror})"
        case ConnectionRefusedError():
            words = "connection refused"
        case OSError():
            words = _os_words(error)
        case _:
            words = str(error) or type(error).__name__
    return ClientError(f"cannot connect to {target}: {words}", exit_code)


def tls_failure(error: ssl.SSLError) -> str:
    """OpenSSL's error as text: ``TLS failed: certificate required``."""
    words = (error.reason or str(error)).replace("_", " ").lower()
    return f"TLS failed: {words.removeprefix('tlsv13 alert ').removeprefix('tlsv1 alert ')}"


def _os_words(error: OSError) -> str:
    # For several failed attempts to one host, asyncio builds a sentence of its own without an errno.
    text = error.strerror or str(error) or type(error).__name__
    return "connection refused" if "Connect call failed" in text else text[:1].lower() + text[1:]
