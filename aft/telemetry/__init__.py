"""Telemetry: everything that happens inside aft, as events; logs, metrics and live streams subscribe.

======================  ==============================================================  ==================
event                   happened                                                        emitted by
======================  ==============================================================  ==================
``RunStarted``          a run was made durable                                          app
``RunClaimed``          a worker became a run's owner                                   worker
``RunReleased``         a worker released a run that it owned                           worker
``RunWaits``            a run waits for a signal, a time or a child                     worker
``SignalRefused``       a signal's value does not fit what the flow waits for           runner
``RunEnded``            a run reached a terminal state                                  worker
``RunParked``           a run was parked: it waits for a person                         worker, dispatcher
``RunRescued``          a run was rescued from a dead owner                             sweeper, worker
``RunOverdue``          a run has not ended in the time it was expected to take         sweeper
``RunForgotten``        a run that nothing would have woken is woken: a defect of aft   sweeper
``FlowUnserved``        due runs of a flow that no live worker has; with back-off       sweeper
``ActivityOverdue``     an activity takes, or took, longer than it was expected to      worker
``WorkerDied``          a worker's liveness lock is free before its lease expired       sweeper, worker
``AttemptStarted``      an activity or compensator is being called                      runner
``AttemptAbandoned``    an attempt was given up, and its function has not returned      runner
``AttemptReturned``     the function of an abandoned attempt returned after all         runner
``WorkerSaturated``     the limit of abandoned attempts is reached; no run is claimed    worker
``WorkerResumed``       an abandoned attempt returned; the worker claims runs again      worker
``ActivityRecorded``    an outcome was journaled, and its frame pushed if it has one    runner
``FrameCompensated``    a frame was undone                                              runner
``FrameUnresolved``     an undo is owed that the code of this process does not have     dispatcher
``FaultRaised``         a fault was recorded                                            runner
``FaultRouted``         the dispatcher decided about a fault                            dispatcher
``RulesRefused``        rules in the store cannot be read; the last good ones stay      all
``RuleWarned``          rules could not be asked, or a condition not be evaluated       dispatcher
``ExletDone``           a primitive of an exlet was carried out                         dispatcher
``WakeIgnored``         a message was stale, repeated, or for a flow unknown here       worker, dispatcher
``MessageQuarantined``  a message was refused, or had no queue, and was kept            all
``MessagesDropped``     messages were refused beyond the quota, and not kept            worker, dispatcher
``OutboxRelayed``       messages that their writer did not publish were published       relay
``LeaseLost``           a worker could not renew in time and stopped writing            worker
``DatabaseLost``        the SQLite file was deleted, moved or replaced; work stops      dispatcher
``ScheduleFired``       a schedule's occurrence was due, and its run was made           dispatcher
``ScheduleSkipped``     a schedule's occurrence passed without a run                    dispatcher
``ScheduleBroken``      a schedule cannot be fired, and waits for a person              dispatcher
``OperationStopped``    an operation has stopped by itself, and waits for a person      dispatcher
``OperationEnded``      every run of an operation got its order                         dispatcher
``NoticeAcknowledged``  a notice was sent, and its receiver acknowledged it             dispatcher
``NoticeFailed``        a notice was not acknowledged, and will be sent again           dispatcher
``NoticeGivenUp``       a notice was refused, or not acknowledged for too long          dispatcher
``EffectLate``          an effect was late; kept, or decided about: dropped, undone, …  worker, sweeper
``ServiceFailed``       a thread of the dispatcher met an error and goes on             dispatcher
``ServiceRecovered``    the thread works again                                          dispatcher
======================  ==============================================================  ==================

A subscriber runs on the thread that emits: it must be quick. One that raises is logged and kept.
"""

from aft.telemetry.bus import Subscriber as Subscriber
from aft.telemetry.bus import Telemetry as Telemetry
from aft.telemetry.bus import log_event as log_event
from aft.telemetry.bus import logger as logger
from aft.telemetry.events import *  # noqa: F403
