"""Claims about settings: read once, validated together, frozen; a slip is named, a password never."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import aft
from aft.config import Settings
from aft.errors import ConfigError
from aft.store.engine import Store

SECRET = "s3cret"
DATABASE = f"postgresql+psycopg://me:{SECRET}@db.example/aft"
BROKER = f"amqp://me:{SECRET}@mq.example/aft"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AFT_") and not name.startswith("AFT_TEST_"):
            monkeypatch.delenv(name)


def test_every_setting_has_a_default() -> None:
    found = Settings.load()
    assert (found.database_url, found.broker_url, found.namespace) == ("sqlite:///aft.db", "embedded", "aft")


def test_variables_are_read_by_their_field_in_upper_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_NAMESPACE", "shop")
    monkeypatch.setenv("AFT_LEASE", "1m")
    monkeypatch.setenv("AFT_CONCURRENCY", "3")
    found = Settings.load()
    assert (found.namespace, found.lease, found.concurrency) == ("shop", timedelta(minutes=1), 3)


def test_what_is_given_in_code_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_NAMESPACE", "shop")
    assert Settings.load(namespace="mine").namespace == "mine"


def test_what_is_given_as_none_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_NAMESPACE", "shop")
    assert Settings.load(namespace=None).namespace == "shop"


@pytest.mark.parametrize("value", ["", "  "])
@pytest.mark.parametrize("field", list(Settings.model_fields))
def test_an_empty_variable_is_refused_whichever_it_is(monkeypatch: pytest.MonkeyPatch, field: str, value: str) -> None:
    name = f"AFT_{field.upper()}"
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"^{name} is set, but empty; give it a value, or unset it"):
        Settings.load()


def test_the_refusal_of_an_empty_variable_says_what_unsetting_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_DATABASE_URL", "")
    with pytest.raises(ConfigError, match=r"unset it, which means 'sqlite:///aft\.db'"):
        Settings.load()


def test_an_empty_variable_whose_setting_is_given_in_code_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_NAMESPACE", "")
    assert Settings.load(namespace="mine").namespace == "mine"


def test_settings_cannot_be_changed() -> None:
    found = Settings.load()
    with pytest.raises(ValidationError, match="frozen"):
        found.namespace = "other"


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("AFT_DATABSE_URL", "AFT_DATABASE_URL"),
        ("AFT_NAME_SPACE", "AFT_NAMESPACE"),
        ("AFT_LEVEL", "AFT_LEVELS"),
    ],
)
def test_a_misspelt_variable_is_told_which_was_meant(slip: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(slip, "x")
    with pytest.raises(ConfigError, match=f"'{slip}' is not a setting of aft; did you mean {meant}?"):
        Settings.load()


def test_an_unknown_variable_is_told_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_QQQQ", "x")
    with pytest.raises(ConfigError, match="'AFT_QQQQ' is not a setting of aft; the settings are AFT_DATABASE_URL, "):
        Settings.load()


def test_variables_of_the_tests_are_none_of_its_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_TEST_ANYTHING", "x")
    assert Settings.load().namespace == "aft"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"namespace": "Shop"}, "AFT_NAMESPACE is 'Shop': 'Shop' is not a namespace"),
        ({"lease": "soon"}, "AFT_LEASE is 'soon': 'soon' is not a duration; write '250ms'"),
        ({"lease": "100ms"}, "lease must be half a second or more"),
        ({"grace": -1}, "AFT_GRACE is -1: -1 is not a duration between 0 and ten years"),
        ({"immediate": -1}, "AFT_IMMEDIATE is -1: write 0 or more"),
        ({"immediate": 1.5}, "AFT_IMMEDIATE is 1.5: write a whole number"),
        ({"concurrency": 0}, "AFT_CONCURRENCY is 0: write 1 or more"),
        ({"concurrency": 1001}, "AFT_CONCURRENCY is 1001: write 1000 or less"),
        ({"concurrency": "many"}, "AFT_CONCURRENCY is 'many': write a whole number"),
        ({"declare_passively": "perhaps"}, "AFT_DECLARE_PASSIVELY is 'perhaps': write true or false"),
        ({"queue_type": "fast"}, "AFT_QUEUE_TYPE is 'fast': write 'quorum' or 'classic'"),
        ({"namespace": 5}, "AFT_NAMESPACE is 5: write a text"),
        ({"broker_url": "kafka://h"}, "AFT_BROKER_URL: write 'embedded', or 'amqp://user:password@host:5672/vhost'"),
        ({"lease": "soon", "concurrency": 0}, "AFT_LEASE is 'soon'.*; AFT_CONCURRENCY is 0"),
        ({"databse": "x"}, "AFT_DATABSE is 'x': that is not a setting of aft"),
        ({"webhook_secret": ""}, "AFT_WEBHOOK_SECRET: must not be empty"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Settings.load(**given)


# --- passwords ---


def test_no_password_is_shown_with_the_settings() -> None:
    found = Settings.load(database_url=DATABASE, broker_url=BROKER)
    assert SECRET not in repr(found)
    assert SECRET not in str(found)


def test_a_refused_url_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(broker_url=f"kafka://me:{SECRET}@mq.example")
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


def test_the_store_shows_its_url_without_the_password() -> None:
    store = Store(DATABASE)
    assert SECRET not in store.url
    assert store.url == "postgresql+psycopg://me:***@db.example/aft"


def test_a_url_under_a_wrong_name_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(database=DATABASE)
    assert SECRET not in str(caught.value)


def test_a_secret_is_read_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFT_WEBHOOK_SECRET", SECRET)
    found = Settings.load()
    assert found.webhook_secret is not None
    assert found.webhook_secret.get_secret_value() == SECRET
    assert not [text for text in (repr(found), str(found), str(found.model_dump())) if SECRET in text]


@pytest.mark.parametrize("name", ["webhook_secret", "webhook_secrt", "webhooksecret", "webhook", "secret"])
def test_a_refused_secret_is_not_repeated_whatever_its_name(name: str) -> None:
    given: dict[str, Any] = {name: f"{SECRET}\n"}
    with pytest.raises(ConfigError) as caught:
        Settings.load(**given)
    assert SECRET not in str(caught.value)
    with pytest.raises(ValidationError) as refused:
        Settings(**given)
    assert SECRET not in str(refused.value)


def test_a_malformed_database_url_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Store(f"postgresql:/me:{SECRET}@db.example/aft")
    assert SECRET not in str(caught.value)


def test_a_port_that_is_no_number_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError):
        Store("postgresql://me@db.example:port/aft")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite://", "a database in memory cannot keep a promise"),
        ("sqlite:///:memory:", "'sqlite:///:memory:' is not a file, and a database in memory cannot keep a promise"),
        ("mysql://me@h/db", "aft does not know the database 'mysql'"),
        ("nonsense", "'nonsense' is not a database URL; write 'sqlite:///aft.db'"),
    ],
)
def test_a_database_that_aft_cannot_use_is_refused_with_one_that_it_can(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Store(url)


def test_a_folder_is_no_database_and_a_file_in_it_is_proposed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{str(tmp_path)!r} is a folder; name a file in it: 'sqlite:///")):
        Store(f"sqlite:///{tmp_path}")


@pytest.mark.parametrize("url", ["postgresql://me@h/db", "postgres://me@h/db", "postgresql+psycopg://me@h/db"])
def test_every_spelling_of_postgresql_is_taken(url: str) -> None:
    assert Store(url).dialect == "postgresql"


def test_hidden_names_are_names_of_fields() -> None:
    assert Settings.load(hidden_names="birthday, account_number").listed_names == ("birthday", "account_number")
    with pytest.raises(ConfigError, match="AFT_HIDDEN_NAMES is 'a b': write names of fields"):
        Settings.load(hidden_names="a b")


def test_settings_that_are_given_as_a_url_are_refused() -> None:
    given: Any = Settings.load()
    with pytest.raises(ConfigError, match=r"give settings by name: Aft\(settings=settings\)"):
        aft.Aft(given)
