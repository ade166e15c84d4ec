"""Do the example manifests speak aft's language? Queue names, roles, settings and commands are as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aft.app import Role
from aft.cli.commands.dispatcher import read_roles
from aft.config import Settings
from aft.store.tables import runs

FOLDER = Path(__file__).parents[4] / "deploy" / "kubernetes"
TEXT = {path.name: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.yaml"))}


def test_workers_are_scaled_on_the_runs_that_shall_go_on() -> None:
    (namespace,) = re.findall(r"AFT_NAMESPACE: (\S+)", TEXT["dispatcher.yaml"])
    (query,) = re.findall(r"query: >-\n((?: {10}.*\n)+)", TEXT["keda.yaml"])

    assert f"FROM {runs.name} WHERE namespace = '{namespace}'" in query
    assert f"interval '{Settings.load().grace.total_seconds():.0f} s'" in query
    assert {"sweep_at", "due_at", "worker_id", "wake_id"} <= set(runs.c.keys()) & set(re.findall(r"\w+", query))


def test_all_roles_together_are_every_role() -> None:
    given = re.findall(r'--only, "?([a-z,]+)"?\]', TEXT["dispatcher.yaml"])
    found = [role for only in given for role in read_roles([only])]

    assert sorted(found) == sorted(Role)


@pytest.mark.parametrize("name", sorted(TEXT))
def test_every_variable_is_a_setting(name: str) -> None:
    known = {f"AFT_{field.upper()}" for field in Settings.model_fields}
    found = set(re.findall(r"^ *(AFT_[A-Z_]+):|FromEnv: (AFT_[A-Z_]+)", TEXT[name], re.MULTILINE))

    assert {one for pair in found for one in pair if one} <= known


@pytest.mark.parametrize("name", [name for name in sorted(TEXT) if "containers:" in TEXT[name]])
def test_no_service_of_the_cluster_becomes_a_setting(name: str) -> None:
    pods = TEXT[name].count("  template:")

    assert TEXT[name].count("enableServiceLinks: false") == pods


@pytest.mark.parametrize("name", [name for name in sorted(TEXT) if "containers:" in TEXT[name]])
def test_no_container_has_more_rights_than_it_needs(name: str) -> None:
    text, boxes = TEXT[name], len(re.findall(r"image: ", TEXT[name]))
    pods = text.count("  template:")
    for right in (
        "runAsNonRoot: true",
        "seccompProfile: {type: RuntimeDefault}",
        "automountServiceAccountToken: false",
    ):
        assert text.count(right) == pods, right
    restricted = text.count("allowPrivilegeEscalation: false") + text.count("securityContext: *box")
    assert restricted == boxes
    assert text.count("readOnlyRootFilesystem: true") == text.count("drop: [ALL]") == restricted - text.count("*box")


def test_dispatchers_do_not_have_the_credentials_of_the_owner() -> None:
    assert "secretRef: {name: shop-aft-owner}" not in TEXT["dispatcher.yaml"]
    assert "secretRef: {name: shop-aft}" not in TEXT["migrate.yaml"]
    assert 'AFT_DECLARE_PASSIVELY: "true"' in TEXT["dispatcher.yaml"]
