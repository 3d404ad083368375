"""Live followers of the shards of a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from braidmq.lane.records.records import Record
from braidmq.storage.append_queue import call_waiter

OnRecords = Callable[[int, Sequence[Record]], None]


class ShardFollower:
    """A follower of a shard; `stop` ends it at once."""

    __slots__ = ("callback", "is_active", "_followers")

    def __init__(self, callback: OnRecords, followers: list[ShardFollower]) -> None:
        self.callback = callback
        self.is_active = True
        self._followers = followers

    def stop(self) -> None:
        """Stop the callbacks, even for a commit that is being handed out."""
        if self.is_active:
            self.is_active = False
            self._followers.remove(self)


class Followers:
    """The followers of all shards."""

    def __init__(self, shards: int) -> None:
        self._by_shard: list[list[ShardFollower]] = [[] for _ in range(shards)]

    def add(self, shard: int, callback: OnRecords) -> ShardFollower:
        """Follow a shard from now on."""
        following = ShardFollower(callback, self._by_shard[shard])
        self._by_shard[shard].append(following)
        return following

    def hand_out(self, news: Sequence[tuple[int, Sequence[Record]]]) -> None:
        """Pass newly committed records to the followers; the watermarks have already risen."""
        # A follower added in one of these calls could already read these records, and must not get them twice.
        now = [(shard, records, tuple(self._by_shard[shard])) for shard, records in news]
        for shard, records, followers in now:
            for following in followers:
                if following.is_active:
                    call_waiter(following.callback, shard, records)
