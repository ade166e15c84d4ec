"""Makes a run of a flow and the arguments that it is called with, before anything is written."""

from __future__ import annotations

from typing import Any

from aft.errors import DefinitionError
from aft.flows.declare import context
from aft.flows.declare.flow import Flow
from aft.ids import RunId, new_id
from aft.runs.new_runs import NewRun
from aft.texts import format_value


def make_new_run(namespace: str, flow: Flow[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewRun:
    """Return the run that a call of a flow makes; raises DefinitionError or CodecError."""
    if not isinstance(flow, Flow):
        raise DefinitionError(
            f"{format_value(flow, 100)} is not a flow: give the function that is declared with @aft.flow, and then its "
            "arguments, as in app.submit(order, 7), not order(7)"
        )
    if context.flow_context() is not None:
        raise DefinitionError(
            f"flow {flow.name!r} was started from a flow's own code, which a replay would do again; "
            "start it in an activity"
        )
    encoded, left_out = flow.arguments.encode_with_defaults(args, kwargs)
    return NewRun(
        id=RunId(new_id()),
        namespace=namespace,
        flow=flow.name,
        version=flow.version,
        args=encoded,
        defaulted=left_out,
        arguments=flow.arguments,
        options=flow.run_options,
    )
