"""Records of several runs, each in order of time, as one; and how far each of them has come."""

from __future__ import annotations

from braidmq.lane.records.records import Record


def merge_runs(runs: list[list[Record]], shards: list[int], upto: int) -> list[tuple[int, Record]]:
    """Take the records at or below ``upto`` off the front of the runs: in order of time, each with its run's shard.

    Records of one timestamp stay in the order of their runs.
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
        # As long as no other run has an earlier one, it goes on with this.
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
    """Set the timestamp of each shard that has a record here to that of its last one; ``last`` has all shards."""
    missing = set(last)
    previous: int | None = None
    for place in range(len(records) - 1, -1, -1):
        pair = records[place]
        shard = pair[0]
        # Neighbours mostly are of one shard.
        if shard is not previous and shard in missing:
            record = pair[1]
            last[shard] = record.timestamp
            missing.remove(shard)
            if not missing:
                break
        previous = shard
