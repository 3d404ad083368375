"""What every registry of client ids does, whether it answers at once or after a while."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

import pytest

from braidmq.access.contract import Refused
from braidmq.broker.session.local import LocalRegistry
from braidmq.broker.session.ports import Claim, Grant, GrantEnding, Registry
from braidmq.storage.fences import FenceTable


def local() -> Registry:
    return LocalRegistry(FenceTable())


@pytest.fixture(params=[local], ids=lambda make: str(make.__name__))
def registry(request: pytest.FixtureRequest) -> Registry:
    make: Callable[[], Registry] = request.param
    return make()


def granted(registry: Registry, client_id: str = "c") -> Grant:
    """Claim a client id; the grant, which may have to be waited for."""

    async def wait() -> Grant | Refused:
        answer = registry.claim(Claim(client_id, None, False, 0, None, None))
        return await answer if inspect.isawaitable(answer) else answer

    answer = asyncio.run(wait())
    assert isinstance(answer, Grant), answer
    assert answer.client_id == client_id
    return answer


def test_guards_of_a_client_id_rise_even_if_the_clock_does_not(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.broker.session.local.time", lambda: 5.0)
    guards = []
    for _ in range(3):
        grant = granted(registry)
        assert registry.commit(grant)
        guards.append(grant.guard)

    assert guards == sorted(set(guards))


def test_a_grant_is_refused_once_a_newer_one_was_committed(registry: Registry) -> None:
    older = granted(registry)
    assert registry.commit(older)
    newer = granted(registry)
    assert registry.commit(newer)

    assert not registry.commit(older)

    assert registry.commit(newer), "and that changes nothing for the newer one"


def test_an_uncommitted_grant_does_not_affect_the_owner(registry: Registry) -> None:
    owner = granted(registry)
    assert registry.commit(owner)

    registry.end(granted(registry), keeps_session=True, ending=GrantEnding.PUBLISH)

    assert registry.commit(owner)


@pytest.mark.parametrize("keeps_session", [False, True])
def test_ending_an_old_grant_does_not_affect_a_newer_one(registry: Registry, keeps_session: bool) -> None:
    older = granted(registry)
    assert registry.commit(older)
    newer = granted(registry)
    assert registry.commit(newer)

    registry.end(older, keeps_session=keeps_session, ending=GrantEnding.PUBLISH)

    assert not registry.commit(older)
    assert granted(registry).guard > newer.guard


@pytest.mark.parametrize("keeps_session", [False, True])
def test_a_released_client_id_can_be_claimed_again(registry: Registry, keeps_session: bool) -> None:
    first = granted(registry)
    assert registry.commit(first)
    registry.end(first, keeps_session=keeps_session, ending=GrantEnding.PUBLISH)

    second = granted(registry)

    assert registry.commit(second)
    assert second.guard > first.guard or not keeps_session


def test_client_ids_do_not_affect_each_other(registry: Registry) -> None:
    one = granted(registry, "one")
    assert registry.commit(one)
    two = granted(registry, "two")
    assert registry.commit(two)

    registry.end(two, keeps_session=False, ending=GrantEnding.PUBLISH)

    assert registry.commit(one)


def test_the_local_registry_forgets_a_client_id_that_has_neither_connection_nor_session() -> None:
    fences = FenceTable()
    registry = LocalRegistry(fences)
    grant = granted(registry)
    registry.commit(grant)

    registry.end(grant, keeps_session=True, ending=GrantEnding.PUBLISH)
    assert fences.guard("c") == grant.guard
    registry.end(grant, keeps_session=False, ending=GrantEnding.PUBLISH)

    assert len(fences) == 0
