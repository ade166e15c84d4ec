"""Converts pika's exceptions to BrokerError, with one line that says what went wrong and what to do."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from socket import gaierror

from pika import exceptions as amqp
from pika.adapters.utils.connection_workflow import AMQPConnectorStackTimeout

from aft.brokers.rabbitmq.address import Address
from aft.errors import BrokerError, Unroutable

#: AMQP reply codes that a queue or exchange may be answered with.
ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED = 403, 404, 405, 406

_REPLY = re.compile(r"\(\d+\) ['\"](?:[A-Z_]+ - )?(.+?)['\"]\Z")


class ChannelRefused(Exception):
    """Raised when the broker closed a channel to refuse a request; stays inside this package."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        #: The broker's text, without its code word.
        self.text = text.partition(" - ")[2] or text


def lost(address: Address, error: BaseException) -> BrokerError:
    """Return the BrokerError for a connection that could not be made, or was lost."""
    if isinstance(error, BrokerError):
        return error
    causes = list(_unfold(error))
    for cause in causes:
        explained = _known(address, cause)
        if explained:
            return BrokerError(explained)
    text = _text_of(causes[-1])
    return BrokerError(f"lost the connection to RabbitMQ at {address}: {text}; is the server well?")


def closed(address: Address, reason: amqp.ChannelClosedByBroker) -> BrokerError:
    """Return the BrokerError for a channel that the broker closed while it was in use; Unroutable: no such queue."""
    refused = ChannelRefused(reason.reply_code, reason.reply_text)
    explained = f"RabbitMQ at {address} closed the channel: {refused.text}"
    if refused.code == NOT_FOUND:
        return Unroutable(f"{explained}; declare the queues: aft broker declare")
    if refused.code == ACCESS_REFUSED:
        return BrokerError(f"{explained}; grant the permission, or set AFT_DECLARE_PASSIVELY=true")
    return BrokerError(f"{explained}; see its log")


def _known(address: Address, cause: BaseException) -> str | None:
    where = f"RabbitMQ at {address}"
    match cause:
        case amqp.ProbableAuthenticationError() | amqp.AuthenticationError():
            return f"{where} refused the login: {_text_of(cause)}; check user and password in the broker URL"
        case amqp.ProbableAccessDeniedError():
            return f"{where} refused the vhost: {_text_of(cause)}; create it, or grant the user access to it"
        case amqp.IncompatibleProtocolError():
            return f"what listens at {address} does not speak AMQP; check host and port in the broker URL"
        case amqp.ConnectionBlockedTimeout():
            return f"{where} accepts no messages (memory or disk alarm); free memory or disk space there"
        case amqp.AMQPHeartbeatTimeout():
            return f"{where} gave no sign of life; check the network and the server"
        case amqp.ConnectionClosedByBroker():
            return f"{where} closed the connection: {cause.reply_text}; see its log"
        case gaierror():
            return f"cannot find the host of {address}: {cause.strerror}; check the host in the broker URL"
        case ssl.SSLError():
            return f"no TLS with {address}: {_why_unsafe(cause)}; check the port, or its certificate"
        case TimeoutError() | AMQPConnectorStackTimeout() | amqp.ConnectionOpenAborted():
            return f"{where} does not answer; check host, port and firewall"
        case OSError():
            return f"cannot reach {where}: {cause.strerror or cause}; is it running there?"
    return None


def _unfold(error: BaseException) -> Iterator[BaseException]:
    """Walk to the exceptions inside pika's wrappers, the innermost last."""
    yield error
    inner = [getattr(error, "exception", None), *getattr(error, "exceptions", ()), *error.args]
    for each in inner:
        if isinstance(each, BaseException) and each is not error:
            yield from _unfold(each)


def _why_unsafe(error: ssl.SSLError) -> str:
    """Return what is wrong with a certificate, or with the TLS connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return error.reason or str(error)


def _text_of(error: BaseException) -> str:
    """Return the broker's own words, or the exception's, on one line."""
    text = str(error.args[0]) if error.args else type(error).__name__
    reply = _REPLY.search(text)
    return " ".join((reply.group(1) if reply else text).split())
