"""What the history services of several cores ask each other about their shards, and how each of them answers.

Both are msgpack. They travel over the cores' own connections (`node_side.core_reads`), so a service needs no credentials, and no
address, of another one. Only rows are read at the core itself: a part that was planned says where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from braidmq.flight.wire import Advance, AskBacklog, Backlog, Plan, Planned, Positions, Problem, Shards
from braidmq.history.planning.batch_end import Size
from braidmq.history.planning.shared_batch import Steps
from braidmq.history.service.errors import HistoryError, fail
from braidmq.history.view.log_view import LogView

# Parts of one core in one answer, which must fit into a frame between nodes.
PARTS_MAX: Final = 10_000
_GOOD_PARTS: Final = PARTS_MAX // 2


class _CoreMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base class of requests and answers."""


class AskShards(_CoreMessage, frozen=True):
    """The range of each shard. Answered with `ToldShards`."""


class AskSize(_CoreMessage, frozen=True):
    """How much a read is expected to have. Answered with `ToldSize`."""

    plan: Plan


class AskParts(_CoreMessage, frozen=True):
    """The parts of a read. Answered with `ToldParts`."""

    plan: Plan


class AskWhole(_CoreMessage, frozen=True):
    """A batch without records yet, and at most what there is for it. Answered with `ToldSteps`."""

    advance: Advance


class AskSteps(_CoreMessage, frozen=True):
    """The end of a batch. ``may_exceed``: its first record may be larger than the limit. Answered with `ToldSteps`."""

    advance: Advance
    may_exceed: bool


class AskCount(_CoreMessage, frozen=True):
    """How many records match. Answered with `ToldCount`."""

    wanted: AskBacklog
    steps_max: int


class ToldShards(_CoreMessage, frozen=True):
    """The range of each shard that the core leads."""

    shards: Shards


class ToldSize(_CoreMessage, frozen=True):
    """Rows and bytes."""

    size: Size


class ToldPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A part of a read, as in `wire.Ticket` and `wire.Part`."""

    shard: int
    start: int
    end: int
    rows_max: int
    bytes_max: int
    gone: Positions


class ToldParts(_CoreMessage, frozen=True):
    """The parts of a read, and where they are served."""

    planned: Planned
    location: str
    parts: list[ToldPart]


class ToldSteps(_CoreMessage, frozen=True):
    """The end of a batch."""

    steps: Steps


class ToldCount(_CoreMessage, frozen=True):
    """A number of records."""

    backlog: Backlog


class NotTold(_CoreMessage, frozen=True):
    """The request failed."""

    problem: Problem


CoreRequest = AskShards | AskSize | AskParts | AskWhole | AskSteps | AskCount
CoreAnswer = ToldShards | ToldSize | ToldParts | ToldSteps | ToldCount
Told = TypeVar("Told", bound=CoreAnswer)

_encode: Final = msgspec.msgpack.Encoder().encode
_requests: Final[msgspec.msgpack.Decoder[CoreRequest]] = msgspec.msgpack.Decoder(CoreRequest)
_answers: Final[msgspec.msgpack.Decoder[CoreAnswer | NotTold]] = msgspec.msgpack.Decoder(CoreAnswer | NotTold)


class OwnShards:
    """Answers for the shards that this core leads; from any thread."""

    def __init__(self, view: LogView, location: Callable[[], str]) -> None:
        """``location``: where readers reach this service, once it listens."""
        self.view = view
        self.location = location

    def answer(self, asked: CoreRequest) -> CoreAnswer:
        """The answer; raises HistoryError."""
        match asked:
            case AskShards():
                return ToldShards(self.view.shards())
            case AskSize(plan):
                return ToldSize(self.view.size(plan))
            case AskParts(plan):
                return self._parts(plan)
            case AskWhole(advance):
                return ToldSteps(self.view.whole(advance))
            case AskSteps(advance, may_exceed):
                return ToldSteps(self.view.advance_by(advance, may_exceed=may_exceed))
            case AskCount(wanted, steps_max):
                return ToldCount(self.view.backlog(wanted, steps_max))

    def answer_bytes(self, request: bytes) -> bytes:
        """The answer to another core."""
        try:
            return _encode(self.answer(_requests.decode(request)))
        except msgspec.MsgspecError as problem:
            return encode_problem(
                Problem("unavailable", f"a request between cores is invalid, or of another version of braidmq: {problem}")
            )
        except HistoryError as error:
            return encode_problem(error.problem)

    def _parts(self, plan: Plan) -> ToldParts:
        planned, parts = self.view.plan(plan)
        if len(parts) > PARTS_MAX:
            plan = msgspec.structs.replace(plan, partitions=_GOOD_PARTS, part_rows_max=None, part_bytes_max=None)
            planned, parts = self.view.plan(plan)
        told = [
            ToldPart(part.shard, ticket.start, ticket.end, part.rows_max, part.bytes_max, ticket.gone) for ticket, part in parts
        ]
        return ToldParts(planned, self.location(), told)


def encode_problem(problem: Problem) -> bytes:
    """An answer that says why there is none."""
    return _encode(NotTold(problem))


def encode_request(asked: CoreRequest) -> bytes:
    """A request for another core."""
    return _encode(asked)


def decode_answer(core: str, data: bytes, kind: type[Told]) -> Told:
    """The answer of another core; raises HistoryError if it has failed, or is of another version."""
    try:
        answer = _answers.decode(data)
    except msgspec.MsgspecError:
        fail("unavailable", f"the answer of core {core} is invalid: does it run another version of braidmq?")
    if isinstance(answer, NotTold):
        raise HistoryError(answer.problem)
    if not isinstance(answer, kind):
        fail("unavailable", f"core {core} answered another request")
    return answer
