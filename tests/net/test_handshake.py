"""The handshake of two nodes: who is accepted, who is not, and what an attacker between them can do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from braidmq.net.frames import Frame, FrameKind, encode
from braidmq.net.handshake import Handshake, NotAccepted, Side, hello, refusal
from braidmq.net.proto_v1 import Hello
from tests.net.frames_in import frames_in

SECRET = b"a secret that all nodes share"
CORE = hello("braid", "core1", "core", 100, "calls", 4)
EDGE = hello("braid", "edge1", "replicant", 7, "calls", 4)


def accept_all(peer: Hello) -> None:
    return None


def pair(
    edge: Hello = EDGE, core: Hello = CORE, *, edge_secret: bytes = SECRET, core_secret: bytes = SECRET
) -> tuple[Handshake, Handshake]:
    """A connecting and an accepting side."""
    return Handshake(Side.CONNECT, edge, edge_secret, accept_all), Handshake(Side.ACCEPT, core, core_secret, accept_all)


def pass_on(data: bytes, to: Handshake) -> bytes:
    """Let a side receive bytes; its answer."""
    return b"".join(to.receive(frame) for frame in frames_in(data))


def shake(edge: Handshake, core: Handshake) -> None:
    """Let two sides talk until they have nothing more to say."""
    to_core, to_edge = edge.begin(), b""
    while to_core or to_edge:
        to_edge = pass_on(to_core, core)
        to_core = pass_on(to_edge, edge)


def test_nodes_with_one_secret_accept_each_other() -> None:
    edge, core = pair()

    shake(edge, core)

    assert edge.peer is not None
    assert core.peer is not None
    assert (edge.peer.name, core.peer.name) == ("core1", "edge1")
    assert core.peer.incarnation == 7


def test_the_secret_and_what_depends_on_it_alone_never_travel() -> None:
    said: list[bytes] = []
    for _ in range(2):
        edge, core = pair()
        first = edge.begin()
        answer = pass_on(first, core)
        said.append(first + answer + pass_on(answer, edge))

    assert all(SECRET not in each for each in said)
    digests = [each[-40:] for each in said]
    assert digests[0] != digests[1]


@pytest.mark.row("44")
@pytest.mark.parametrize("secret", [b"", b"another secret"])
def test_another_secret_is_found_by_the_connecting_side_first(secret: bytes) -> None:
    edge, core = pair(edge_secret=secret)
    answer = pass_on(edge.begin(), core)

    with pytest.raises(NotAccepted, match=r"cluster\.secret") as found:
        pass_on(answer, edge)

    assert found.value.is_ours
    assert edge.peer is None
    assert core.peer is None


@pytest.mark.row("44")
def test_a_client_that_does_not_know_the_secret_is_not_let_in() -> None:
    core = Handshake(Side.ACCEPT, CORE, SECRET, accept_all)
    edge, other = pair(edge_secret=b"guess", core_secret=b"guess")
    answer = pass_on(edge.begin(), other)
    proof = pass_on(answer, edge)
    pass_on(Handshake(Side.CONNECT, EDGE, b"guess", accept_all).begin(), core)

    with pytest.raises(NotAccepted, match=r"cluster\.secret"):
        pass_on(proof, core)

    assert core.peer is None


def test_a_proof_is_valid_for_one_connection_only() -> None:
    edge, core = pair()
    recorded = pass_on(pass_on(edge.begin(), core), edge)
    another = Handshake(Side.ACCEPT, CORE, SECRET, accept_all)
    pass_on(edge.begin(), another)

    with pytest.raises(NotAccepted):
        pass_on(recorded, another)


def test_a_node_cannot_be_made_to_answer_its_own_question() -> None:
    """An attacker opens a second connection and sends back what the node said on the first."""
    first = Handshake(Side.ACCEPT, CORE, SECRET, accept_all)
    stranger = Handshake(Side.CONNECT, EDGE, b"guess", accept_all)
    answer = pass_on(stranger.begin(), first)
    frames = list(frames_in(answer))

    with pytest.raises(NotAccepted):
        first.receive(frames[1])  # its own proof, sent back


@pytest.mark.row("44")
def test_a_modified_hello_is_detected() -> None:
    edge, core = pair()
    changed = Handshake(Side.CONNECT, replace(EDGE, name="core2"), SECRET, accept_all, nonce=edge._mine.nonce)
    answer = pass_on(changed.begin(), core)

    with pytest.raises(NotAccepted):
        pass_on(answer, edge)


@pytest.mark.row("44")
@pytest.mark.parametrize(
    ("core", "reason"),
    [
        (replace(CORE, cluster="other"), "cluster"),
        (replace(CORE, version_min=2, version_max=3), "version"),
    ],
)
def test_nodes_that_do_not_belong_together_say_why(core: Hello, reason: str) -> None:
    edge, accepting = pair(core=core)

    with pytest.raises(NotAccepted, match=reason) as found:
        shake(edge, accepting)

    assert found.value.is_ours


@pytest.mark.row("F8")
def test_version_n_and_n_minus_1_speak_the_lower_one() -> None:
    edge, core = pair(core=replace(CORE, version_min=1, version_max=2))

    shake(edge, core)

    assert edge.version == core.version == 1


def test_a_peer_with_the_right_secret_can_still_be_rejected() -> None:
    edge = Handshake(Side.CONNECT, EDGE, SECRET, accept_all)
    core = Handshake(Side.ACCEPT, CORE, SECRET, lambda peer: f"there is another node named {peer.name}")
    proof = pass_on(pass_on(edge.begin(), core), edge)

    with pytest.raises(NotAccepted, match="another node named edge1"):
        pass_on(proof, core)


def test_a_refusal_is_told_to_the_peer() -> None:
    edge, _ = pair()
    edge.begin()

    with pytest.raises(NotAccepted, match="no room") as found:
        pass_on(refusal("no room"), edge)

    assert not found.value.is_ours


@pytest.mark.row("44")
@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameKind.CALL, 0, 1, b""),
        Frame(FrameKind.HELLO, 0, 0, b""),
        Frame(FrameKind.HELLO, 0, 0, b"\x93\x01\x02\x03"),
        Frame(FrameKind.HELLO, 0, 0, b"\x91\xa7Welcome"),
        Frame(FrameKind.HELLO, 0, 0, b"\x92\xa5Proof\xc4\x01x"),
    ],
    ids=["a call", "nothing", "garbage", "welcome too early", "proof too early"],
)
def test_other_frames_are_rejected_before_the_handshake_is_complete(frame: Frame) -> None:
    _, core = pair()

    with pytest.raises(NotAccepted):
        core.receive(frame)

    assert core.peer is None


def test_a_second_hello_is_refused() -> None:
    edge, core = pair()
    pass_on(edge.begin(), core)

    with pytest.raises(NotAccepted, match="order"):
        pass_on(edge.begin(), core)


def test_nothing_of_the_handshake_is_legal_after_it() -> None:
    edge, core = pair()
    shake(edge, core)

    with pytest.raises(NotAccepted):
        pass_on(encode(FrameKind.HELLO, 0, b"\x91\xa7Welcome"), edge)
