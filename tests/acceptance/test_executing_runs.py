"""What a dispatcher knows of the runs in its hands: those that it executes, and no others, however long it lives."""

from __future__ import annotations

import secrets
import threading

from aft.cli.commands.serve import RunLog
from aft.runs.states import Status
from aft.telemetry import RunClaimed, RunWaits
from tests.acceptance import theatre
from tests.acceptance.theatre import listen, stops
from tests.setups import Setup, eventually
from tests.world import gates


def test_a_run_that_waits_and_ends_elsewhere_is_not_remembered(setup: Setup) -> None:
    here, elsewhere, show = setup.app(), setup.app(), secrets.token_hex(4)
    with here.dispatcher(concurrency=2) as process:
        in_hand = RunLog(process)
        here.telemetry.subscribe(in_hand.handle_event)
        heard = listen(here)
        runs = [here.submit(theatre.premiere, f"{show}-{number}") for number in range(8)]
        for run in runs:
            stops(run, Status.WAITING)
        eventually(lambda: str(in_hand) == "no run is going on")
        for run in runs:
            # What is heard of a run begins with its claim: its end is not overtaken.
            kinds = [type(one) for one in heard if isinstance(one, RunClaimed | RunWaits) and one.run == run.id]
            assert kinds[0] is RunClaimed
            assert kinds.count(RunWaits) == 1
        gate = gates[f"{show}-0", "tickets"] = threading.Event()
        runs[0].signal("word")
        eventually(lambda: str(in_hand) == f"1 run is still going on: {runs[0].id} (theatre_premiere)")
        gate.set()
        assert runs[0].result(60) == [10, 10]
        eventually(lambda: not process.executing)
    with elsewhere.dispatcher():
        for run in runs[1:]:
            run.signal("word")
            assert run.result(60) == [10, 10]
    assert str(in_hand) == "no run is going on"
