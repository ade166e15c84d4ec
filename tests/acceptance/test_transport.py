"""What is said to a database or a broker on another machine can be read by nobody between, unless that was allowed."""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urlencode

import psycopg
import pytest
import trustme
from psycopg import sql

import aft
from aft.cli.commands.checks import CheckState, Examination
from aft.config import Settings
from aft.errors import BrokerError, ConfigError, StoreError
from aft.store import schema
from tests.acceptance.commands import until
from tests.servers import PrivatePostgres, PrivateRabbit, free_ports

#: libpq's variables, which would decide what a URL leaves open.
VARIABLES = ("PGHOST", "PGHOSTADDR", "PGSSLMODE", "PGSERVICE", "PGSSLROOTCERT")

FAR_DATABASES = [
    "postgresql://me:hush@db/shop",
    "postgresql://me:hush@db.example/shop?sslmode=disable",
    "postgresql://me:hush@db.example/shop?sslmode=require",
    "postgresql://me:hush@db.example/shop?sslmode=verify-ca&sslrootcert=ca.pem",
    "postgresql://me:hush@10.1.2.3:5433/shop",
    "postgresql://me:hush@[2001:db8::1]/shop",
    "postgresql://me:hush@127.0.0.1.example.com/shop",
    "postgresql://me:hush@/shop?host=localhost:1&host=db:2",
    "postgresql://me:hush@localhost/shop?hostaddr=10.1.2.3",
    "postgresql://?service=shop",
    "postgresql://me:hush@localhost/shop?service=shop",
    "postgresql://me:hush@/shop?host=localhost,192.0.2.7&hostaddr=127.0.0.1,",
]
SAFE_DATABASES = [
    "postgresql://me:hush@db.example/shop?sslmode=verify-full",
    "postgresql://me:hush@/shop?host=a:1&host=b:2&sslmode=verify-full",
    "postgresql://me:hush@localhost/shop",
    "postgresql://me:hush@127.8.9.10/shop",
    "postgresql://me:hush@[::1]/shop",
    "postgresql:///shop",
    "postgresql:///shop?host=/run/postgresql",
    "postgresql://?service=shop&sslmode=verify-full",
    "sqlite:///shop.db",
]
FAR_BROKERS = [
    "amqp://me:hush@rabbit/shop",
    "amqp://me:hush@192.168.1.5:5672/shop",
    "amqp://me:hush@localhost.example.com/shop",
]
SAFE_BROKERS = [
    "amqps://me:hush@rabbit.example/shop",
    "amqp://me:hush@localhost/shop",
    "amqp://me:hush@[::1]/",
    "embedded",
]


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def make(database: str = "sqlite:///shop.db", broker: str = "embedded", **more: object) -> aft.Aft:
    return aft.Aft(settings=Settings.load(database_url=database, broker_url=broker, **more))


class TestAtTheDoor:
    @pytest.mark.parametrize("url", FAR_DATABASES)
    def test_a_database_on_another_machine_that_is_not_checked_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigError, match="could be listened to") as refused:
            make(database=url)
        told = str(refused.value)
        assert "sslmode=verify-full" in told
        assert "AFT_ALLOW_INSECURE_TRANSPORT" in told
        assert "hush" not in told
        make(database=url, allow_insecure_transport=True).close()

    @pytest.mark.parametrize("url", FAR_BROKERS)
    def test_a_broker_on_another_machine_that_is_not_checked_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigError, match="could be listened to") as refused:
            make(broker=url)
        told = str(refused.value)
        assert "amqps://" in told
        assert "AFT_ALLOW_INSECURE_TRANSPORT" in told
        assert "hush" not in told
        make(broker=url, allow_insecure_transport=True).close()

    @pytest.mark.parametrize("url", SAFE_DATABASES)
    def test_this_machine_and_what_is_checked_are_taken(self, url: str) -> None:
        make(database=url).close()

    @pytest.mark.parametrize("url", SAFE_BROKERS)
    def test_brokers_on_this_machine_and_checked_ones_are_taken(self, url: str) -> None:
        make(broker=url).close()

    @pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLS is deprecated")
    def test_options_that_leave_a_certificate_unchecked_are_refused(self, authority: str) -> None:
        options = {"protocol": int(ssl.PROTOCOL_TLS), "ca_certs": authority}
        with pytest.raises(ConfigError, match="leave its certificate unchecked"):
            make(broker=f"amqps://me:hush@rabbit/shop?{urlencode({'ssl_options': options})}")

    def test_variables_of_libpq_count(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PGHOST", "db.example")
        with pytest.raises(ConfigError, match=r"'db\.example' is another machine, and sslmode is 'prefer'"):
            make(database="postgresql:///shop")
        monkeypatch.setenv("PGSSLMODE", "verify-full")
        make(database="postgresql:///shop").close()

    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("amqps://me:hush@rabbit/?cacertfile=nowhere.pem", "cacertfile 'nowhere.pem'.*No such file"),
            ("amqps://me:hush@rabbit/?cacertfile=text.pem", "cacertfile 'text.pem'"),
            ("amqps://me:hush@rabbit/?keyfile=key.pem", "'keyfile' without 'certfile'"),
            ("amqp://me:hush@localhost/?cacertfile=ca.pem", "for 'amqps://', not 'amqp://'"),
            ("amqp://me:12/hush@rabbit/shop", "the broker URL is malformed"),
        ],
    )
    def test_certificates_that_cannot_be_used_are_named(self, url: str, told: str) -> None:
        Path("text.pem").write_text("no certificate")
        with pytest.raises(ConfigError, match=told) as refused:
            make(broker=url)
        assert "hush" not in str(refused.value)


# Certificates ---------------------------------------------------------------------------------------------------

CA, STRANGER = trustme.CA(), trustme.CA()
YESTERDAY = datetime.now(UTC) - timedelta(days=1)
BAD = {
    "expired": lambda: CA.issue_cert("localhost", not_before=YESTERDAY - timedelta(days=1), not_after=YESTERDAY),
    "of another host": lambda: CA.issue_cert("rabbit.example"),
    "of an unknown authority": lambda: STRANGER.issue_cert("localhost"),
}
#: What is said of each, by libpq and by pika.
WHY = {
    "expired": "expired|certificate verify failed",
    "of another host": "[Hh]ost ?name|does not match",
    "of an unknown authority": "verify failed|issuer",
}


class Secured:
    """A server with TLS, whose certificate can be exchanged."""

    def __init__(self, folder: Path, reload: Callable[[], object]) -> None:
        self._folder, self._reload = folder, reload

    def use(self, certificate: trustme.LeafCert) -> None:
        write_certificate(self._folder, certificate)
        self._reload()


def write_certificate(folder: Path, certificate: trustme.LeafCert) -> None:
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    for name, text in (("server.pem", chain), ("server.key", certificate.private_key_pem.bytes())):
        path = folder / name
        path.unlink(missing_ok=True)
        path.write_bytes(text)
        path.chmod(0o600)
        if os.geteuid() == 0:
            os.chown(path, folder.stat().st_uid, folder.stat().st_gid)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    CA.cert_pem.write_to_path(path)
    return str(path)


@pytest.fixture(scope="module")
def database() -> Iterator[tuple[str, Secured]]:
    with PrivatePostgres(fsync=False) as server:
        files = {"ssl_cert_file": "server.pem", "ssl_key_file": "server.key"}
        write_certificate(server.directory, CA.issue_cert("localhost"))
        with psycopg.connect(server.url, autocommit=True) as connection:
            for name, file in files.items():
                connection.execute(
                    sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), str(server.directory / file))
                )
            connection.execute("ALTER SYSTEM SET ssl = on")

        def reload() -> None:
            before = _loaded_at(server.url)
            assert server.pid is not None
            os.kill(server.pid, signal.SIGHUP)
            until(lambda: _loaded_at(server.url) > before, "the certificate is read")

        reload()
        yield f"postgresql://aft@localhost:{server.port}/postgres", Secured(server.directory, reload)


def _loaded_at(url: str) -> datetime:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT pg_conf_load_time()").fetchone()
    assert row is not None
    return cast(datetime, row[0])


@pytest.fixture(scope="module")
def broker() -> Iterator[tuple[str, Secured]]:
    port = free_ports(1)
    server = PrivateRabbit()
    server.settings = [
        f"listeners.ssl.1 = 127.0.0.1:{port}",
        f"ssl_options.certfile = {server.directory / 'server.pem'}",
        f"ssl_options.keyfile = {server.directory / 'server.key'}",
    ]
    write_certificate(server.directory, CA.issue_cert("localhost"))
    with server:
        reload = partial(server.ctl, "eval", "ssl:clear_pem_cache().")
        yield f"amqps://guest:guest@localhost:{port}/", Secured(server.directory, reload)


@aft.activity(name="transported")
def double(number: int) -> int:
    return 2 * number


@aft.flow(name="transporting")
def transport(number: int) -> int:
    aft.sleep("10ms")
    return double(number)


class TestWithCertificates:
    def test_a_run_goes_its_way_over_checked_lines(
        self, database: tuple[str, Secured], broker: tuple[str, Secured], authority: str
    ) -> None:
        for _, server in (database, broker):
            server.use(CA.issue_cert("localhost"))
        app = make(f"{database[0]}?sslmode=verify-full&sslrootcert={authority}", f"{broker[0]}?cacertfile={authority}")
        try:
            schema.upgrade(app.store)
            with app.dispatcher():
                assert app.submit(transport, 21).result(timeout=60) == 42
        finally:
            app.close()

    @pytest.mark.parametrize("kind", BAD)
    def test_a_database_with_a_bad_certificate_gets_no_word(
        self, kind: str, database: tuple[str, Secured], authority: str
    ) -> None:
        url, server = database
        server.use(BAD[kind]())
        app = make(f"{url}?sslmode=verify-full&sslrootcert={authority}")
        try:
            with pytest.raises(StoreError, match=WHY[kind]):
                schema.current(app.store)
        finally:
            app.close()

    @pytest.mark.parametrize("kind", BAD)
    def test_a_broker_with_a_bad_certificate_gets_no_word(
        self, kind: str, broker: tuple[str, Secured], authority: str
    ) -> None:
        url, server = broker
        server.use(BAD[kind]())
        app = make(broker=f"{url}?cacertfile={authority}")
        try:
            with pytest.raises(BrokerError, match=WHY[kind]):
                app.broker.version()
        finally:
            app.close()

    def test_without_its_authority_a_private_certificate_is_refused(self, broker: tuple[str, Secured]) -> None:
        url, server = broker
        server.use(CA.issue_cert("localhost"))
        app = make(broker=url)
        try:
            with pytest.raises(BrokerError, match=r"verify failed|issuer|signed"):
                app.broker.version()
        finally:
            app.close()


def test_doctor_names_what_can_be_listened_to() -> None:
    app = make("postgresql://me:hush@db/shop", "amqp://me:hush@rabbit/shop", allow_insecure_transport=True)
    try:
        # Nothing is connected to before.
        found = (check for check in Examination(app).checks() if check.name == "transport")
        told = [next(found), next(found)]
    finally:
        app.close()
    assert [check.state for check in told] == [CheckState.WARNING] * 2
    assert "others could read the traffic to the database: 'db' is another machine" in told[0].says
    assert "others could read the traffic to the broker: 'rabbit' is another machine" in told[1].says
    assert all("AFT_ALLOW_INSECURE_TRANSPORT" in check.advice for check in told)
