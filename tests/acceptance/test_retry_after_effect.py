"""A step to which rules object after it had its effect: a retry has it undone before it is executed again."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

import aft
from aft import do
from aft.rules.exlets.primitives import Primitive
from aft.rules.rule_types import RuleType
from aft.runs.states import Status
from tests.acceptance.theatre import stops, teach
from tests.setups import Setup
from tests.world import keys, ledger


def posted(name: str, **options: Any) -> Any:
    """An activity and its compensator, both of which log."""

    def take_back(account: str) -> None:
        ledger[account].append("taken back")

    def post(account: str) -> int:
        ledger[account].append("posted")
        keys[account, "charge"].append(aft.current().key)
        return 100

    undo = aft.activity(name=f"{name}_back", **options)(take_back)
    return aft.compensate_with(undo)(aft.activity(name=name, **options)(post))


KINDS = {
    "plain": posted("effect_plain"),
    "transactional": posted("effect_transactional", transactional=True),
}


@aft.activity(name="effect_refuses")
def refuses(account: str) -> None:
    raise aft.Unrecoverable(account)


@aft.flow
def effect_posts(kind: str, account: str, fails: bool) -> int:
    made: int = KINDS[kind](account)
    if fails:
        refuses(account)
    return made


@pytest.fixture
def account() -> str:
    return secrets.token_hex(4)


#: What parks the run: the rule itself, or a result of the rule's that the activity cannot return.
PARKS: dict[str, Primitive] = {"the rule": do.park("too much"), "its result": do.complete("no number")}


@pytest.mark.parametrize("why", PARKS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails", [False, True])
def test_a_retry_undoes_the_effect_that_rules_objected_to(
    setup: Setup, account: str, kind: str, why: str, fails: bool
) -> None:
    app = setup.app()
    teach(app, effect_posts, "activity_post", "true", PARKS[why], activity=KINDS[kind].name)
    with app.dispatcher():
        run = app.submit(effect_posts, kind, account, fails)
        stops(run, Status.PARKED)
        assert ledger[account] == ["posted"]
        app.rules.undo((effect_posts.name, RuleType.ACTIVITY_POST, KINDS[kind].name), to=0)
        run.retry()
        if fails:
            stops(run, Status.COMPENSATED)
            assert ledger[account] == ["posted", "taken back", "posted", "taken back"]
        else:
            assert run.result(60) == 100
            assert ledger[account] == ["posted", "taken back", "posted"]
    assert len(set(keys[account, "charge"])) == 2  # or the service would take the second for the first, which is undone
