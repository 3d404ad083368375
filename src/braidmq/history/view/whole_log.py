"""The log of a cluster with several cores, as one of their history services sees it: each asks the others about their shards.

Everything is asked of all cores, and put together here. If one of them does not answer, the whole call fails, with its name: a
read must not miss a part of the log without notice. Rows are not passed on; a part says which core has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NoReturn, TypeVar

import msgspec
import pyarrow as pa

from braidmq.base.errors import UsageError
from braidmq.flight.columns import choose
from braidmq.flight.wire import (
    Advance,
    Advanced,
    AskBacklog,
    Backlog,
    Part,
    Plan,
    Planned,
    Positions,
    RangeBound,
    ShardGap,
    Shards,
    ShardState,
    Ticket,
    from_wire,
    to_wire,
)
from braidmq.history.planning.estimates import STEPS_MAX
from braidmq.history.planning.ranges import fail_for_loss
from braidmq.history.planning.shared_batch import SharedBatch
from braidmq.history.service.errors import HistoryError, fail
from braidmq.history.view.core_requests import (
    AskCount,
    AskParts,
    AskShards,
    AskSize,
    AskSteps,
    AskWhole,
    CoreRequest,
    OwnShards,
    Told,
    ToldCount,
    ToldPart,
    ToldParts,
    ToldShards,
    ToldSize,
    ToldSteps,
    decode_answer,
    encode_request,
)

# Requests to other cores at a time.
_ASKED_MAX: Final = 32

Value = TypeVar("Value")
AskCore = Callable[[str, bytes], bytes]  # a core and a request; raises HistoryError if it does not answer


class WholeLog:
    """Implements `service.server.View` for all shards; from any thread."""

    def __init__(self, own: OwnShards, name: str, cores: Mapping[str, Collection[int]], ask: AskCore) -> None:
        """``name``: this core. ``cores``: the shards that each core leads, this one included."""
        self._own = own
        self._name = name
        self._cores = {core: frozenset(shards) for core, shards in sorted(cores.items())}
        self._leaders = {shard: core for core, shards in self._cores.items() for shard in shards}
        self._ask_core = ask
        self._asking = ThreadPoolExecutor(_ASKED_MAX, "other-cores")
        self._locations: dict[str, str] = {}  # of cores that have planned a read

    def on_watermarks(self, watermarks: Mapping[int, int]) -> None:
        """Take the watermarks that the node reports."""
        self._own.view.on_watermarks(watermarks)

    # Asking

    def _ask(self, core: str, asked: CoreRequest, kind: type[Told]) -> Told:
        if core == self._name:
            answer = self._own.answer(asked)
            assert isinstance(answer, kind)
            return answer
        return decode_answer(core, self._ask_core(core, encode_request(asked)), kind)

    def _ask_all(self, make: Callable[[str, frozenset[int]], CoreRequest], kind: type[Told]) -> dict[str, Told]:
        """Ask all cores at once, each about its shards."""
        waiting: dict[str, Future[Told]] = {}
        for core, shards in self._cores.items():
            if core != self._name:
                waiting[core] = self._asking.submit(self._ask, core, make(core, shards), kind)
        found: dict[str, Told] = {}
        problems: list[HistoryError] = []
        for core, shards in self._cores.items():
            try:
                found[core] = waiting[core].result() if core in waiting else self._ask(core, make(core, shards), kind)
            except HistoryError as problem:
                problems.append(problem)
        if problems:
            _raise(problems)
        return found

    # What the server asks

    def shards(self) -> Shards:
        """The range and size of each shard."""
        found = self._ask_all(lambda *_: AskShards(), ToldShards)
        states: dict[str, ShardState] = {}
        for core, told in found.items():
            states |= {shard: told.shards.shards[shard] for shard in told.shards.shards if int(shard) in self._cores[core]}
        log = self._same_log({core: told.shards.log for core, told in found.items()})
        own = found[self._name].shards
        return Shards(log, own.now, dict(sorted(states.items(), key=lambda each: int(each[0]))))

    def plan(self, plan: Plan) -> tuple[Planned, list[tuple[Ticket, Part]]]:
        """Divide a read into parts, each of which says where it is served."""
        choose(plan.columns)
        for bound in (plan.start, plan.end):
            self._check_shards(bound.positions or {})
        plan = self._with_size(plan)
        found = self._ask_all(lambda _, shards: AskParts(_plan_of(plan, shards)), ToldParts)
        log = self._same_log({core: told.planned.log for core, told in found.items()})
        start: Positions = {}
        end: Positions = {}
        gaps: dict[str, ShardGap] = {}
        parts: list[tuple[Ticket, Part]] = []
        for core, told in found.items():
            self._locations[core] = told.location
            start |= told.planned.start
            end |= told.planned.end
            gaps |= told.planned.gaps
            for each in told.parts:
                parts.append((_ticket(log, plan, each, core, told.location), Part(each.shard, each.rows_max, each.bytes_max)))
        return Planned(log, _sorted(start), _sorted(end), gaps), parts

    def advance(self, wanted: Advance) -> Advanced:
        """The end of a batch with limits."""
        self._check_shards(wanted.start)
        self._check_shards(wanted.end or {})
        asked = {core: _advance_of(wanted, shards) for core, shards in self._cores.items()}
        found = {core: told.steps for core, told in self._ask_all(lambda core, _: AskWhole(asked[core]), ToldSteps).items()}
        batch = SharedBatch(wanted.rows_max, wanted.bytes_max, found)
        while (share := batch.next_share()) is not None:
            end = found[share.core].latest if wanted.end is None else asked[share.core].end  # it does not grow meanwhile
            limited = msgspec.structs.replace(
                asked[share.core],
                start=batch.start_of(share.core),
                end=end,
                rows_max=share.rows_max,
                bytes_max=share.bytes_max,
            )
            batch.take(share.core, self._ask(share.core, AskSteps(limited, share.may_exceed), ToldSteps).steps)
        return Advanced(_sorted(batch.end), batch.rows, _sorted(batch.latest))

    def backlog(self, wanted: AskBacklog, steps_max: int = STEPS_MAX) -> Backlog:
        """How many records in a range match the filters."""
        self._check_shards(wanted.start)
        self._check_shards(wanted.end or {})
        share = max(steps_max // len(self._cores), 1)
        found = self._ask_all(lambda _, shards: AskCount(_backlog_of(wanted, shards), share), ToldCount)
        counts = [told.backlog for told in found.values()]
        return Backlog(sum(each.rows for each in counts), any(each.is_estimate for each in counts))

    def scan(self, ticket: Ticket) -> Generator[pa.RecordBatch, None, None]:
        """The rows of a ticket."""
        core = self._leaders.get(ticket.shard, self._name)
        if core != self._name:
            where = self._locations.get(core) or ticket.location
            at = f" at {where}" if where else ""
            fail("unavailable", f"shard {ticket.shard} is led by core {core}: read this part there{at}, as its plan says")
        return self._own.view.scan(ticket)

    # The rest

    def _with_size(self, plan: Plan) -> Plan:
        """The same plan, with a size of the parts in place of their number, which only all cores together can have."""
        wanted = plan.partitions
        if not wanted:
            return plan
        plan = msgspec.structs.replace(plan, partitions=0)
        found = self._ask_all(lambda _, shards: AskSize(_plan_of(plan, shards)), ToldSize)
        rows = -(-sum(told.size.rows for told in found.values()) // wanted)
        size_bytes = -(-sum(told.size.size_bytes for told in found.values()) // wanted)
        return msgspec.structs.replace(
            plan, part_rows_max=_least(plan.part_rows_max, rows), part_bytes_max=_least(plan.part_bytes_max, size_bytes)
        )

    def _check_shards(self, positions: Positions) -> None:
        unknown = sorted(from_wire(positions).keys() - self._leaders.keys())
        if unknown:
            raise UsageError(
                f"the log has {len(self._leaders)} shards and no shard {unknown[0]}", "are these positions of another log?"
            )

    def _same_log(self, logs: Mapping[str, str]) -> str:
        own = logs[self._name]
        for core, log in logs.items():
            if log != own:
                fail("unavailable", f"core {core} has the log {log}, and core {self._name} the log {own}")
        return own


def _ticket(log: str, plan: Plan, part: ToldPart, core: str, location: str) -> Ticket:
    return Ticket(log, plan.filters, part.shard, part.start, part.end, plan.columns, plan.on_loss, part.gone, core, location)


def _raise(problems: Sequence[HistoryError]) -> NoReturn:
    """Raise one error for several: what retention has deleted is told of all cores."""
    for each in problems:
        if each.problem.code != "data-loss":
            raise each
    fail_for_loss({int(shard): gap for each in problems for shard, gap in each.problem.gaps.items()})


def _plan_of(plan: Plan, shards: Collection[int]) -> Plan:
    return msgspec.structs.replace(plan, start=_bound_of(plan.start, shards), end=_bound_of(plan.end, shards))


def _bound_of(bound: RangeBound, shards: Collection[int]) -> RangeBound:
    if bound.positions is None:
        return bound
    return RangeBound(positions=_of(bound.positions, shards), gone=_of(bound.gone, shards))


def _advance_of(wanted: Advance, shards: Collection[int]) -> Advance:
    end = None if wanted.end is None else _of(wanted.end, shards)
    start, gone = _of(wanted.start, shards), _of(wanted.gone, shards)
    return msgspec.structs.replace(wanted, start=start, end=end, gone=gone, rows_max=None, bytes_max=None)


def _backlog_of(wanted: AskBacklog, shards: Collection[int]) -> AskBacklog:
    end = None if wanted.end is None else _of(wanted.end, shards)
    return msgspec.structs.replace(wanted, start=_of(wanted.start, shards), end=end)


def _of(by_shard: Mapping[str, Value], shards: Collection[int]) -> dict[str, Value]:
    return {shard: value for shard, value in by_shard.items() if int(shard) in shards}


def _sorted(positions: Positions) -> Positions:
    return to_wire(from_wire(positions))


def _least(given: int | None, found: int) -> int:
    return max(found, 1) if given is None else min(given, max(found, 1))
