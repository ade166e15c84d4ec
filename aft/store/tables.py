"""Every table of aft. The migrations build exactly this; a test compares the two."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    FetchedValue,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    text,
)

from aft.store.db_time import Moment
from aft.store.text_types import Binary, String, Text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: All tables carry this prefix: aft may live beside a team's own tables.
PREFIX = "aft_"

_Serial = BigInteger().with_variant(Integer, "sqlite")


def _id() -> String:
    return String(64)


#: A process that may own runs. Its lease is here, one row and one heartbeat statement per process.
workers = Table(
    PREFIX + "workers",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("namespace", String(40), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("roles", Text, nullable=False),  # JSON list; empty for a process that only starts runs
    Column("flows", Text, nullable=False),  # JSON list of "name@version"
    Column("started_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=False),
    Column("stopped_at", Moment),
    Column("died", Boolean, nullable=False, server_default=text("false")),  # its lock was seen to be free
    Column("sources", Text),  # JSON: what rules may ask here besides the facts of a case, by name
    Column("liveness_lock", Text),  # how others can see that it lives: its lock; null: only its lease tells
    Column("abandoned", Text),  # JSON: attempts that it gave up and that have not returned; null: none
    Index("ix_aft_workers_live", "namespace", "expires_at"),
)

#: The parked runs that have no notice yet: see ``runs.records.parked_runs``.
UNTOLD = "status = 'parked' AND wake_id IS NULL AND (parked_told IS NULL OR parked_told != epoch)"

runs = Table(
    PREFIX + "runs",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("namespace", String(40), nullable=False),
    Column("flow", String(200), nullable=False),
    Column("version", Integer, nullable=False),
    Column("key", String(400)),
    Column("key_generation", Integer, nullable=False, server_default=text("0")),
    Column("args", Text, nullable=False),
    Column("first_args", Text),  # its first arguments, if it was continued as new since; null: ``args``
    Column("defaulted", Text),  # JSON list: parameters that the submitter left to their defaults; null: none
    Column("status", String(20), nullable=False),
    Column("reason", Text),  # why it is parked
    Column("cause", String(20)),  # why it is being undone: fault or cancel
    Column("result", Text),
    Column("ended_as", String(20)),  # the terminal state it reached, kept while it handles a late effect
    Column("fault_id", _id()),  # the failure that ended it or is undoing it
    Column("priority", Integer, nullable=False, server_default=text("0")),
    Column("owner", String(200)),
    Column("resources", Text),  # JSON list of names
    Column("tags", Text),  # JSON object: what people and rules have said about it
    Column("expected_seconds", Float),  # how long it should take, from when it was made to its end
    Column("overdue_at", Moment),  # when it is past that; null once reported
    Column("parked_told", BigInteger),  # the epoch in which a notice said that it is parked
    Column("root_id", _id(), nullable=False),
    Column("parent_id", _id()),
    Column("parent_path", String(400)),
    Column("parent_generation", Integer),  # the generation of its parent in which that step was begun
    # Its parent's seq and inbox_seq when it ended: where its frame stands in the parent's stack.
    Column("parent_seq", BigInteger),
    Column("parent_inbox_seq", BigInteger),
    Column("waits", Text),  # JSON list of its waits as of its last release: signals, times, children
    Column("savepoints", Text),  # JSON: those that it was in at its last release, by path; NULL: not known
    Column("deadline_at", Moment),  # when it fails if it has not ended
    Column("pivoted_at", Moment),  # when it went past a pivot, in whichever generation: it only goes forward since
    # Ownership: worker and epoch. The epoch rises with every owner; each write of an owner names its own.
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("worker_id", _id()),
    # The fault or order whose wake is honoured; null while owned, and while nothing may wake it.
    Column("wake_id", _id()),
    Column("due_at", Moment),  # when it shall go on: the earliest of its faults
    Column("sweep_at", Moment),  # when a worker's timer claims it if no message woke it
    # Counts the owner's writes; orders journal and frames, and tells whether a COMMIT without answer happened.
    Column("seq", BigInteger, nullable=False, server_default=text("0")),
    Column("inbox_seq", BigInteger, nullable=False, server_default=text("0")),
    # Owners that died on it since it last wrote anything: while others ran beside it, and while it ran alone.
    Column("deaths", Integer, nullable=False, server_default=text("0")),
    Column("deaths_alone", Integer, nullable=False, server_default=text("0")),
    Column("created_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("updated_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("erased_at", Moment),  # when its values were erased
    # Begins with the key, so that runs are also found by the beginning of one.
    Index(
        "uq_aft_runs_key",
        "namespace",
        "key",
        "flow",
        unique=True,
        postgresql_ops={"key": "text_pattern_ops"},
        postgresql_where=text("key IS NOT NULL"),
        sqlite_where=text("key IS NOT NULL"),
    ),
    Index("ix_aft_runs_flow", "namespace", "flow", "id"),
    Index(
        "ix_aft_runs_owner",
        "namespace",
        "owner",
        "id",
        postgresql_where=text("owner IS NOT NULL"),
        sqlite_where=text("owner IS NOT NULL"),
    ),
    Index("ix_aft_runs_status", "namespace", "status", "id"),
    Index(
        "ix_aft_runs_root",
        "root_id",
        postgresql_where=text("parent_id IS NOT NULL"),
        sqlite_where=text("parent_id IS NOT NULL"),
    ),
    Index(
        "ix_aft_runs_parent",
        "parent_id",
        postgresql_where=text("parent_id IS NOT NULL"),
        sqlite_where=text("parent_id IS NOT NULL"),
    ),
    Index(
        "ix_aft_runs_untold",
        "namespace",
        "id",
        postgresql_where=text(UNTOLD),
        sqlite_where=text(UNTOLD),
    ),
    Index(
        "ix_aft_runs_overdue",
        "namespace",
        "overdue_at",
        postgresql_where=text("overdue_at IS NOT NULL"),
        sqlite_where=text("overdue_at IS NOT NULL"),
    ),
    Index(
        "ix_aft_runs_sweep",
        "namespace",
        "sweep_at",
        postgresql_where=text("sweep_at IS NOT NULL"),
        sqlite_where=text("sweep_at IS NOT NULL"),
    ),
    Index(
        "ix_aft_runs_urgent",
        "namespace",
        "sweep_at",
        postgresql_where=text("sweep_at IS NOT NULL AND priority > 0"),
        sqlite_where=text("sweep_at IS NOT NULL AND priority > 0"),
    ),
    Index(
        "ix_aft_runs_alone",
        "namespace",
        "sweep_at",
        postgresql_where=text("sweep_at IS NOT NULL AND deaths >= 2"),
        sqlite_where=text("sweep_at IS NOT NULL AND deaths >= 2"),
    ),
    Index(
        "ix_aft_runs_worker",
        "worker_id",
        postgresql_where=text("worker_id IS NOT NULL"),
        sqlite_where=text("worker_id IS NOT NULL"),
    ),
)

#: What runs are found by besides their own columns: their tags, and the names of what they need.
run_labels = Table(
    PREFIX + "run_labels",
    metadata,
    Column("namespace", String(40), primary_key=True),
    Column("name", String(220), primary_key=True),
    Column("value", String(400), primary_key=True),
    # Without a foreign key, as in the journal.
    Column("run_id", _id(), primary_key=True),
    Index("ix_aft_run_labels_run", "run_id"),
)

#: Recorded outcomes of a run's steps; replay reads them. Rows are final.
journal = Table(
    PREFIX + "journal",
    metadata,
    # Without a foreign key, as in frames: each row is written under a lock on its run.
    Column("run_id", _id(), primary_key=True),
    Column("path", String(400), primary_key=True),
    Column("seq", BigInteger, nullable=False),  # order of completion
    Column("scope", String(400), nullable=False),  # the savepoint it stands under, "" for none
    Column("kind", String(20), nullable=False),
    Column("name", String(200), nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("args", Text),
    Column("asked", Text),  # the arguments that the code asked with, where a rule has changed them
    Column("value", Text),
    Column("fault_id", _id()),
    Column("attempts", Integer, nullable=False),
    Column("beside", Integer),  # how many calls its parallel step has; null for a step of its own
    Column("interrupt", String(400)),  # how far an interrupt reaches that it failed for; null: it was not interrupted
    Column("key_generation", Integer, nullable=False, server_default=text("0")),
    Column("epoch", BigInteger, nullable=False),
    Column("recorded_at", Moment, nullable=False),
)

#: The compensation stack: one row for each undo that is, or was, owed.
frames = Table(
    PREFIX + "frames",
    metadata,
    Column("run_id", _id(), primary_key=True),
    Column("seq", BigInteger, primary_key=True),  # highest owed is the top
    Column("path", String(400), nullable=False),
    Column("scope", String(400), nullable=False),
    Column("activity", String(200), nullable=False),
    Column("compensator", String(400), nullable=False),
    Column("state", String(20), nullable=False),
    Column("args", Text),  # only where the journal has no row to take them from
    Column("value", Text),
    Column("child_id", _id()),  # the run whose whole stack this frame stands for
    # Of a child: above which number it stands, because the child ended then, and its place among other children there.
    Column("after_seq", BigInteger),
    Column("after_inbox_seq", BigInteger),
    Column("key_generation", Integer, nullable=False, server_default=text("0")),
    Column("note", Text),
    Column("pushed_at", Moment, nullable=False),
    Column("settled_at", Moment),
)

faults = Table(
    PREFIX + "faults",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("run_id", _id(), ForeignKey(runs.c.id, ondelete="CASCADE"), nullable=False),
    Column("namespace", String(40), nullable=False),
    Column("path", String(400)),  # null for an abort: the replaying worker names the step
    Column("kind", String(20), nullable=False),
    Column("name", String(200), nullable=False),
    Column("state", String(20), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),  # failures on this step so far, this one included
    Column("type", String(400), nullable=False),
    Column("lineage", Text, nullable=False),  # JSON list of the names of its class and bases, most derived first
    Column("message", Text, nullable=False),
    Column("args", Text, nullable=False),
    Column("attributes", Text, nullable=False, server_default=text("'{}'")),  # JSON object: the exception's own
    Column("args_exact", Boolean, nullable=False),  # whether args and attributes hold all that the exception carried
    Column("traceback", Text, nullable=False),
    Column("own_answer", String(20)),  # what the exception itself says
    Column("declared_answer", String(20)),  # what the activity declares of it
    Column("http_status", Integer),  # HTTP status
    Column("after_seconds", Float),  # Retry-After, or Recoverable(after=…)
    Column("signal", String(200)),  # what it waits for instead of a time: Recoverable(on_signal=…)
    Column("ladder", Text, nullable=False),
    Column("level", Integer),
    Column("try_in_level", Integer),
    Column("wait_seconds", Float),
    Column("resource", String(200)),  # what its activity needs, as declared
    Column("queue", String(255)),  # where its run was sent; null for the timer and for a person
    Column("why", Text),  # why it was decided so
    Column("due_at", Moment),
    Column("raised_at", Moment, nullable=False),
    Column("decided_at", Moment),
    Column("settled_at", Moment),
    Column("rule_type", String(20)),  # the rule type that its rules are asked for; null: its kind tells
    Column("step_snapshot", Text),  # JSON: what rules may want to know of the step: arguments, result, seconds
    Column("decision", Text),  # JSON: which rules were asked, with which facts, and what they chose
    Column("run_status", String(20)),  # its run's state when it was decided about: what rules saw, or would have seen
    Column("run_tags", Text),  # JSON: its run's tags then
    Column("ruling", Text),  # JSON: what the run's owner shall make of the step, if not just raise or try again
    Column("group_id", String(12)),  # the failure group: what faults of one cause share; null: none, or an old row
    Index("ix_aft_faults_run", "run_id", "id"),
    Index("ix_aft_faults_group", "namespace", "group_id", "raised_at"),
    Index("ix_aft_faults_signature", "namespace", "name", "type", "raised_at"),
    Index("ix_aft_faults_listing", "namespace", "id"),
    Index(
        "ix_aft_faults_open",
        "namespace",
        "raised_at",
        postgresql_where=text("state = 'open'"),
        sqlite_where=text("state = 'open'"),
    ),
)

#: Messages saved with the state that they announce; the relay publishes what is still here.
outbox = Table(
    PREFIX + "outbox",
    metadata,
    Column("id", _Serial, primary_key=True, autoincrement=True),
    Column("namespace", String(40), nullable=False),
    Column("queue", String(255), nullable=False),
    Column("body", Text, nullable=False),
    Column("taken_until", Moment, nullable=False),  # its writer publishes it until then, the relay after
    Index("ix_aft_outbox_taken", "namespace", "taken_until"),
)

#: Orders and signals to a run, read by its owner.
inbox = Table(
    PREFIX + "inbox",
    metadata,
    Column("run_id", _id(), ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("id", _id(), nullable=False, unique=True),
    Column("kind", String(20), nullable=False),
    Column("payload", Text, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("at", Moment, nullable=False),
    Column("read_epoch", BigInteger),  # the owner that acted on it
    Column("key", String(400)),  # its sender's: a second one with the same key is dropped
    Column("note", Text),  # why it was not acted on, or not yet
    Index("uq_aft_inbox_key", "run_id", "key", unique=True),
)

#: Effects that finished after their owner had lost the run: the one write without an epoch.
late_effects = Table(
    PREFIX + "late_effects",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("run_id", _id(), ForeignKey(runs.c.id, ondelete="CASCADE"), nullable=False),
    Column("namespace", String(40), nullable=False),
    Column("path", String(400), nullable=False),
    Column("scope", String(400), nullable=False),
    Column("activity", String(200), nullable=False),
    Column("key", String(500), nullable=False),
    Column("key_generation", Integer, nullable=False),
    Column("compensator", String(400)),
    Column("epoch", BigInteger, nullable=False),
    Column("args", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("state", String(20), nullable=False),
    Column("at", Moment, nullable=False),
    Column("settled_at", Moment),
    Index("ix_aft_late_effects_run", "run_id"),
    Index(
        "ix_aft_late_effects_open",
        "namespace",
        "at",
        postgresql_where=text("state = 'open'"),
        sqlite_where=text("state = 'open'"),
    ),
)

#: The audit log: who did what to a run by hand.
audit = Table(
    PREFIX + "audit",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("run_id", _id(), nullable=False),  # which may be gone
    Column("actor", String(200), nullable=False),
    Column("action", String(40), nullable=False),
    Column("note", Text),
    Column("at", Moment, nullable=False),
    Column("os_user", String(200)),
    Column("db_user", String(200), server_default=FetchedValue()),  # PostgreSQL's own word for whose session it is
    Column("seq", BigInteger),  # its place in the chain of all, which it gets a little later
    Column("hash", String(64)),
    Column("number", BigInteger, server_default=FetchedValue()),  # PostgreSQL counts; null on SQLite
    Index("ix_aft_audit_number", "number"),
    Index("ix_aft_audit_run", "run_id", "id"),
    Index("ux_aft_audit_seq", "seq", unique=True),
    Index("ix_aft_audit_loose", "id", postgresql_where=text("seq IS NULL"), sqlite_where=text("seq IS NULL")),
)

#: Messages that admission refused, with the reason.
quarantine = Table(
    PREFIX + "quarantine",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("namespace", String(40), nullable=False),
    Column("queue", String(255), nullable=False),
    Column("reason", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("body", Binary, nullable=False),  # its beginning, where it is oversized
    Column("at", Moment, nullable=False),
    Column("state", String(20), nullable=False, server_default=text("'held'")),
    Column("settled_at", Moment),  # let in after all, or thrown away, by hand
    Column("settled_by", String(200)),
    Column("note", Text),
    Index("ix_aft_quarantine_listing", "namespace", "id"),
)

#: Flows that are run at certain times; a dispatcher that fires one locks its row, makes the run and moves ``next_at``.
schedules = Table(
    PREFIX + "schedules",
    metadata,
    Column("namespace", String(40), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("flow", String(200), nullable=False),
    Column("version", Integer),  # null: the newest that a live worker has
    Column("declared_version", Integer, nullable=False),  # what its declarer had; taken where no worker has any
    Column("args", Text, nullable=False),
    Column("options", Text, nullable=False),  # JSON: priority, owner, expected seconds, resources
    Column("cron", String(200)),  # either this or every_seconds
    Column("every_seconds", Float),
    Column("zone", String(100), nullable=False),
    Column("catch_up", String(10), nullable=False),
    Column("overlap", Boolean, nullable=False),
    Column("since", Moment, nullable=False),  # what intervals are counted from
    Column("next_at", Moment),  # the next occurrence to fire; null: there is none
    Column("last_at", Moment),  # the latest occurrence that was fired
    Column("last_run_id", _id()),
    Column("skipped_at", Moment),  # the latest occurrence that was skipped, and why
    Column("skipped_why", Text),
    Column("paused", Boolean, nullable=False, server_default=text("false")),
    Column("broken", Text),  # why it cannot be fired; null once it is declared or resumed again
    Column("made_by", String(200), nullable=False),
    Column("changed_by", String(200), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index(
        "ix_aft_schedules_next",
        "namespace",
        "next_at",
        postgresql_where=text("next_at IS NOT NULL"),
        sqlite_where=text("next_at IS NOT NULL"),
    ),
)

#: The waits of a namespace that have a delay queue; at most ``names.MOST_DELAYS``.
delays = Table(
    PREFIX + "delays",
    metadata,
    Column("namespace", String(40), primary_key=True),
    Column("wait_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("declared_at", Moment, nullable=False),
)

#: Queues of the embedded broker.
queues = Table(
    PREFIX + "queues",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("wait_ms", BigInteger, nullable=False),  # 0: consumed directly
    Column("target", String(255), nullable=False),  # where its messages turn up
)

#: Messages of the embedded broker.
messages = Table(
    PREFIX + "messages",
    metadata,
    Column("id", _Serial, primary_key=True, autoincrement=True),
    Column("queue", String(255), nullable=False),  # where it was published to
    Column("target", String(255), nullable=False),  # where it is consumed from
    Column("body", Binary, nullable=False),
    Column("visible_at", Moment, nullable=False),
    Column("consumer", _id()),  # who holds it, until visible_at
    Column("deliveries", Integer, nullable=False, server_default=text("0")),
    Index("ix_aft_messages_visible", "target", "visible_at"),
)

#: The number of changes of a namespace's rules. Each change locks this row first.
rule_books = Table(
    PREFIX + "rule_books",
    metadata,
    Column("namespace", String(40), primary_key=True),
    Column("version", BigInteger, nullable=False),
)

#: Rule trees, one row for each revision; the latest is in force. Rows are final.
rule_trees = Table(
    PREFIX + "rule_trees",
    metadata,
    Column("namespace", String(40), primary_key=True),
    Column("flow", String(200), primary_key=True),  # "*" for all
    Column("exception", String(20), primary_key=True),
    Column("activity", String(200), primary_key=True),  # "*" for all; "" where the exception is a run's
    Column("revision", Integer, primary_key=True),
    Column("tree", Text, nullable=False),  # JSON
    Column("made_by", String(200), nullable=False),
    Column("made_at", Moment, nullable=False),
    Column("note", Text),
)

#: Exlets, one row for each revision; the latest is in force. Rows are final.
exlets = Table(
    PREFIX + "exlets",
    metadata,
    Column("namespace", String(40), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("revision", Integer, primary_key=True),
    Column("exlet", Text, nullable=False),  # JSON
    Column("made_by", String(200), nullable=False),
    Column("made_at", Moment, nullable=False),
    Column("note", Text),
)

#: Exlets being carried out, one row for each fault that one was chosen for.
plans = Table(
    PREFIX + "plans",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("namespace", String(40), nullable=False),
    Column("run_id", _id(), ForeignKey(runs.c.id, ondelete="CASCADE"), nullable=False),
    Column("fault_id", _id(), nullable=False),
    Column("exlet", Text, nullable=False),  # JSON, as it was when it was chosen
    Column("facts", Text, nullable=False),  # JSON: the case that it was chosen for
    Column("position", Integer, nullable=False, server_default=text("0")),  # the primitive that is next
    Column("reached", _id()),  # the last run that a primitive for many has done
    Column("state", String(20), nullable=False),
    Column("note", Text),
    Column("due_at", Moment, nullable=False),  # when a dispatcher looks at it again
    Column("made_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Index("ix_aft_plans_run", "run_id", "id"),
    Index(
        "ix_aft_plans_open",
        "namespace",
        "due_at",
        postgresql_where=text("state = 'open'"),
        sqlite_where=text("state = 'open'"),
    ),
)

#: Runs that a plan has suspended: only these it continues.
holds = Table(
    PREFIX + "holds",
    metadata,
    Column("plan_id", _id(), ForeignKey(plans.c.id, ondelete="CASCADE"), primary_key=True),
    Column("run_id", _id(), ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("target", String(20), nullable=False),  # what the exlet suspended it as: run, flow, ancestors
)

#: One order to many runs: see ``runs.operations``.
operations = Table(
    PREFIX + "operations",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("namespace", String(40), nullable=False),
    Column("verb", String(20), nullable=False),
    Column("payload", Text, nullable=False),  # JSON: what its orders hold
    Column("wanted", Text, nullable=False),  # how its runs were looked for
    Column("state", String(20), nullable=False),
    Column("why", Text),  # why it has stopped by itself
    Column("brake", Float, nullable=False),  # the share of its runs that may fail again
    Column("rate", Float),  # orders a second at most
    Column("patience", Float, nullable=False),  # seconds for which the runs of a batch are waited for
    Column("total", Integer, nullable=False),
    Column("batch", Integer, nullable=False, server_default=text("0")),  # the number of the batch under way
    Column("batch_size", Integer, nullable=False, server_default=text("0")),
    Column("made_by", String(200), nullable=False),
    Column("changed_by", String(200), nullable=False),
    Column("note", Text),
    Column("made_at", Moment, nullable=False),
    Column("seen_at", Moment),  # when a person let it go on though runs had failed again: those count no more
    Column("ordered_at", Moment),  # when it gave its last orders
    Column("due_at", Moment),  # when a dispatcher looks at it again
    Column("ended_at", Moment),
    Index("ix_aft_operations_listing", "namespace", "id"),
    Index(
        "ix_aft_operations_due",
        "namespace",
        "due_at",
        postgresql_where=text("state = 'open'"),
        sqlite_where=text("state = 'open'"),
    ),
)

#: The runs of an operation, chosen when it was made, and what came of the order to each.
operation_runs = Table(
    PREFIX + "operation_runs",
    metadata,
    Column("operation_id", _id(), ForeignKey(operations.c.id, ondelete="CASCADE"), primary_key=True),
    # Without a foreign key: the report outlives the run.
    Column("run_id", _id(), primary_key=True),
    Column("position", Integer, nullable=False),
    Column("state", String(20), nullable=False),
    Column("batch", Integer),
    Column("group_id", String(12)),  # the failure group of its last fault before
    # Its epoch, its last fault and how it should end, as of when it got its order.
    Column("epoch", BigInteger),
    Column("fault_id", _id()),
    Column("expected", String(20)),
    Column("note", Text),
    Column("ordered_at", Moment),
    Column("settled_at", Moment),
    Index("ix_aft_operation_runs_state", "operation_id", "state", "position"),
    # A run is in one operation at a time.
    Index(
        "uq_aft_operation_runs_held",
        "run_id",
        unique=True,
        postgresql_where=text("state IN ('selected', 'ordered')"),
        sqlite_where=text("state IN ('selected', 'ordered')"),
    ),
)

#: Notices (webhook requests); sent again until they are acknowledged or given up.
notices = Table(
    PREFIX + "notices",
    metadata,
    Column("id", _id(), primary_key=True),
    Column("namespace", String(40), nullable=False),
    Column("run_id", _id(), ForeignKey(runs.c.id, ondelete="CASCADE"), nullable=False),
    Column("url", Text, nullable=False),
    Column("body", Text, nullable=False),  # JSON
    Column("state", String(20), nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("due_at", Moment, nullable=False),
    Column("made_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("note", Text),  # why the last attempt failed
    Index("ix_aft_notices_run", "run_id", "id"),
    Index(
        "ix_aft_notices_due",
        "namespace",
        "due_at",
        postgresql_where=text("state = 'open'"),
        sqlite_where=text("state = 'open'"),
    ),
)
