"""rediss:// and passwords, on a real server. The wheel's server speaks no TLS, so a proxy ends it in front."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from breadcrumbs.runtime.breadcrumb.breadcrumb import BreadcrumbCreate
from breadcrumbs.runtime.errors import StoreUnavailable
from breadcrumbs.runtime.store.store import Store
from tests.support.servers import Server

OWNER = UUID(int=1)
PASSWORD = "p@ss word/with:signs"
QUOTED = "p%40ss%20word%2Fwith%3Asigns"


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "breadcrumbs test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "server.crt", folder / "server.key"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificate_file, key_file


@asynccontextmanager
async def tls_in_front_of(port: int, certificate: Path, key: Path) -> AsyncIterator[int]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    server = await asyncio.start_server(connect, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_tls_and_a_password_with_special_characters_work(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with Server(password=PASSWORD) as server:
        async with tls_in_front_of(server.port, certificate, key) as port:
            store = await Store.open(f"rediss://:{QUOTED}@127.0.0.1:{port}/0?ssl_ca_certs={certificate}")
            written = await store.create(OWNER, BreadcrumbCreate(title="over TLS"))
            assert (await store.get(OWNER, written.id)).title == "over TLS"
            await store.close()


async def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with Server() as server:
        async with tls_in_front_of(server.port, certificate, key) as port:
            with pytest.raises(StoreUnavailable, match="certificate"):
                await Store.open(f"rediss://127.0.0.1:{port}/0")


@pytest.mark.parametrize("credentials", ["", ":wrong@", "nobody:wrong@"])
async def test_a_wrong_password_is_reported_and_never_shown(credentials: str) -> None:
    with Server(password=PASSWORD) as server:
        with pytest.raises(StoreUnavailable) as failure:
            await Store.open(f"redis://{credentials}127.0.0.1:{server.port}/0")
        assert "wrong@" not in str(failure.value)
        assert PASSWORD not in str(failure.value)
