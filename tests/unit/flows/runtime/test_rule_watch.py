"""Claims about the watch that asks rules during attempts."""

from __future__ import annotations

import threading

import pytest

from aft.flows.runtime.rule_watch import AttemptWatch, RuleWatch


def test_attempts_are_watched_again_when_there_was_no_thread_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rule_watch, asked = RuleWatch(), threading.Event()

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with rule_watch.over(AttemptWatch(lambda: asked.set(), lambda decision: None)):
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            rule_watch.check()
        rule_watch.check()
        assert asked.wait(60)
