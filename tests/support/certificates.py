"""Certificates for tests, made on the spot: an authority, the certificates that it signs, and its revocation list."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAY = dt.timedelta(days=1)


class Pair(NamedTuple):
    """The PEM files of a certificate and its key, and the certificate's serial number."""

    cert_file: str
    key_file: str
    serial: int


class Authority:
    """A CA that writes what it signs into a directory; with an ``issuer`` it is an intermediate one."""

    def __init__(self, directory: Path, name: str = "Test CA", issuer: Authority | None = None) -> None:
        self.directory = directory
        self.serial = x509.random_serial_number()
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(issuer._name if issuer is not None else self._name)
            .public_key(self._key.public_key())
            .serial_number(self.serial)
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=True,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=True,
                    crl_sign=True,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .sign(issuer._key if issuer is not None else self._key, hashes.SHA256())
        )
        self.cert_file = self._write(f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, host: str = "localhost", *, file_stem: str = "") -> Pair:
        """A certificate for a server of this name, and for the loopback addresses."""
        names = x509.SubjectAlternativeName(
            [x509.DNSName(host), *(x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "::1"))]
        )
        return self._sign(
            [(NameOID.COMMON_NAME, host)], ExtendedKeyUsageOID.SERVER_AUTH, names=names, file_stem=file_stem or host
        )

    def node(self, host: str = "localhost") -> Pair:
        """A certificate for a node, which is a server to some nodes and a client of others."""
        names = x509.SubjectAlternativeName([x509.DNSName(host), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        usages = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        return self._sign([(NameOID.COMMON_NAME, host)], *usages, names=names, file_stem=f"node-{host}")

    def client(self, *subject: tuple[x509.ObjectIdentifier, str], expired: bool = False) -> Pair:
        """A certificate for a client with this subject."""
        file_stem = f"client-{subject[0][1]}" if subject else "client"
        return self._sign(list(subject), ExtendedKeyUsageOID.CLIENT_AUTH, expired=expired, file_stem=file_stem)

    def revoke(self, *serials: int, file_name: str = "revoked.crl", expired: bool = False) -> str:
        """Write a revocation list of these serial numbers; gives its path."""
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(now - 2 * _DAY)
            .next_update(now - _DAY if expired else now + _DAY)
        )
        for serial in serials:
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now - _DAY).build()
            builder = builder.add_revoked_certificate(entry)
        return self._write(file_name, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def client_context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """What a client needs that trusts this authority, and shows the certificate if one is given."""
        context = ssl.create_default_context(cafile=self.cert_file)
        if pair is not None:
            context.load_cert_chain(pair.cert_file, pair.key_file)
        return context

    def _sign(
        self,
        subject: list[tuple[x509.ObjectIdentifier, str]],
        *usages: x509.ObjectIdentifier,
        file_stem: str,
        names: x509.SubjectAlternativeName | None = None,
        expired: bool = False,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        serial = x509.random_serial_number()
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(oid, value) for oid, value in subject]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(now - 3 * _DAY)
            .not_valid_after(now - _DAY if expired else now + _DAY)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return Pair(
            self._write(f"{file_stem}.crt", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{file_stem}.key", private),
            serial,
        )

    def _write(self, file_name: str, content: bytes) -> str:
        path = self.directory / file_name
        path.write_bytes(content)
        return str(path)
