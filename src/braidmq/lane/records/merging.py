"""Merges runs of records that are each in order of time, and notes the last timestamp of each shard."""

from __future__ import annotations

from braidmq.lane.records.records import Record


def merge_runs(runs: list[list[Record]], shards: list[int], upto: int) -> list[tuple[int, Record]]:
    """Remove the records at or below ``upto`` from the runs; returns them in order of time, each with its run's shard.

    Records with equal timestamps stay in the order of their runs.
    """
    merged: list[tuple[int, Record]] = []
    count = len(runs)
    places = [0] * count
    while True:
        best = -1
        best_timestamp = upto + 1
        for run in range(count):
            records = runs[run]
            place = places[run]
            if place < len(records):
                record = records[place]
                if record.timestamp < best_timestamp:
                    best = run
                    best_timestamp = record.timestamp
        if best < 0:
            break
        records = runs[best]
        place = places[best]
        # Continue with this run as long as no other has an earlier record.
        limit = upto + 1
        for run in range(count):
            if run != best and places[run] < len(runs[run]):
                record = runs[run][places[run]]
                if record.timestamp + (run > best) < limit:
                    limit = record.timestamp + (run > best)
        shard = shards[best]
        while place < len(records):
            record = records[place]
            if record.timestamp >= limit:
                break
            merged.append((shard, record))
            place += 1
        places[best] = place
    for run in range(count):
        if places[run]:
            runs[run] = runs[run][places[run] :]
    return merged


def note_last(records: list[tuple[int, Record]], last: dict[int, int]) -> None:
    """Set the timestamp of each shard with records here to that of its last record; ``last`` has all shards."""
    missing = set(last)
    previous: int | None = None
    for place in range(len(records) - 1, -1, -1):
        pair = records[place]
        shard = pair[0]
        # Adjacent records mostly have the same shard.
        if shard is not previous and shard in missing:
            record = pair[1]
            last[shard] = record.timestamp
            missing.remove(shard)
            if not missing:
                break
        previous = shard
